"""What netavark, Podman's network program, leaves in the kernel's rules when a network is gone.

It forgets one empty chain for each network that published ports, and never removes the tables it once made.
Chains of our own networks are ours to remove. The tables are shared with every other Podman on the machine:
they go only when they were not there before us and no network, ours or another's, is left in them.
"""

import asyncio
import hashlib
import json
import re
from typing import Any

from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.records import read_record, write_record

_TABLES = (("ip", "nat"), ("ip", "filter"), ("ip6", "nat"), ("ip6", "filter"), ("inet", "netavark"))
_NETWORK_CHAIN = re.compile(r"NETAVARK-(DN-)?[0-9A-F]{13}|nv_.*")
_SHARED_CHAIN = re.compile(r"NETAVARK[-_].*")


async def remember_tables(layout: Layout) -> None:
    """Note, once, which tables others had made before us."""
    path = layout.engine / "tables-before.json"
    if read_record(path) is None:
        present = [" ".join(table) for table in _TABLES if await _listed(*table)]
        write_record(path, {"tables": present})


async def remove_network_chains(network: str) -> None:
    """Remove the chain that stays behind; refused by the kernel, and rightly so, while it is used."""
    mark = hashlib.sha512(network.encode()).hexdigest()[:13].upper()
    await _nft("delete", "chain", "ip", "nat", f"NETAVARK-DN-{mark}")


async def remove_tables(layout: Layout) -> None:
    """Remove the tables that netavark made for us and that serve nobody any more."""
    before = read_record(layout.engine / "tables-before.json")
    if before is None:
        return
    for family, name in _TABLES:
        entries = await _listed(family, name)
        if entries and f"{family} {name}" not in before["tables"] and is_unused(entries):
            await _nft("delete", "table", family, name)


def is_unused(entries: list[dict[str, Any]]) -> bool:
    """Whether a table, as `nft -j` lists it, holds only what netavark made for networks that are gone."""
    chains = [entry["chain"] for entry in entries if "chain" in entry]
    rules = [entry["rule"] for entry in entries if "rule" in entry]
    if any(_NETWORK_CHAIN.fullmatch(chain["name"]) for chain in chains):
        return False
    hooked = {chain["name"] for chain in chains if "hook" in chain}
    others = {chain["name"] for chain in chains} - hooked
    if not all(_SHARED_CHAIN.fullmatch(name) for name in others):
        return False
    if any(chain.get("policy", "accept") != "accept" for chain in chains):
        return False
    return all(rule["chain"] not in hooked or _jumps_to_netavark(rule) for rule in rules)


def _jumps_to_netavark(rule: dict[str, Any]) -> bool:
    targets = [part["jump"]["target"] for part in rule["expr"] if "jump" in part]
    return bool(targets) and all(_SHARED_CHAIN.fullmatch(target) for target in targets)


async def _listed(family: str, name: str) -> list[dict[str, Any]]:
    """Table, chains and rules; nothing when there is no such table."""
    output = await _nft("-j", "list", "table", family, name)
    return json.loads(output)["nftables"][1:] if output else []


async def _nft(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "nft", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return output if process.returncode == 0 else b""
