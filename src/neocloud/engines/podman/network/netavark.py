"""What netavark, Podman's network program, leaves in the kernel's rules when a network is gone.

It forgets one empty chain for each network that published ports, and never removes the tables it once made.
Chains of our own networks are ours to remove. The tables are shared with every other Podman on the machine:
they go only when they were not there before us and no network, ours or another's, is left in them.

Port forwards in the kernel whose containers died without a farewell.

When everything of a cloud is killed at once, nobody tells netavark to remove its rules. The port then looks
free, as nobody listens on it, but the stale forward stands before any new one and swallows its connections.
Forwards of containers that have a process, whoever runs them, are never touched.

The network of a container with a user namespace is made after its monitor, which listens on published ports
to keep them and never answers. A client that connects between the two would wait for ever.
"""

import asyncio
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.processes import living_containers
from neocloud.engines.podman.records import read_record, write_record

_TABLES = (("ip", "nat"), ("ip", "filter"), ("ip6", "nat"), ("ip6", "filter"), ("inet", "netavark"))
_NETWORK_CHAIN = re.compile(r"NETAVARK-(DN-)?[0-9A-F]{13}|nv_.*")
_SHARED_CHAIN = re.compile(r"NETAVARK[-_].*")
_FORWARD = re.compile(r'-A NETAVARK-HOSTPORT-DNAT .*"dnat name: \S+ id: ([0-9a-f]{64})" -j (NETAVARK-DN-\w+)')
_START_SECONDS = 5.0
"""A container that starts has its forwards a moment before its first process."""


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


async def remove_stale_port_forwards() -> None:
    """Take the forwards of stale containers out of the machine's address translation; may be repeated."""
    stale = await _stale_containers(await _rules())
    if stale:
        await asyncio.sleep(_START_SECONDS)
        rules = await _rules()
        for command in forward_removal(rules, stale & await _stale_containers(rules)):
            await _iptables(*command)


async def reset_early_connections(places: Iterable[tuple[str, int]]) -> None:
    """Reset connections that a container's monitor took before the forwards stood; clients can try again.

    `places` are addresses and ports of this machine that the container publishes.
    """
    for address, port in places:
        local = () if address == "0.0.0.0" else ("src", address)  # nosec B104
        sockets = ("--kill", "--no-header", "--tcp", "state", "established", *local, f"sport = :{port}")
        process = await asyncio.create_subprocess_exec(
            "ss", *sockets, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await process.wait()


def forwarded_containers(rules: Iterable[str]) -> set[str]:
    """Ids of the containers that have a forward."""
    return {found[1] for rule in rules if (found := _FORWARD.match(rule))}


def forward_removal(rules: Sequence[str], stale: set[str]) -> list[list[str]]:
    """iptables arguments that remove the forwards of these containers, and chains that nothing else uses."""
    forwards = [(rule, found[1], found[2]) for rule in rules if (found := _FORWARD.match(rule))]
    unused = {chain for _, _, chain in forwards} - {chain for _, id_, chain in forwards if id_ not in stale}
    deletions = [["--delete", *shlex.split(rule)[1:]] for rule, id_, _ in forwards if id_ in stale]
    flushes = [["--flush", chain] for chain in sorted(unused)]
    return [*deletions, *flushes, *(["--delete-chain", chain] for chain in sorted(unused))]


async def _stale_containers(rules: Iterable[str]) -> set[str]:
    published = forwarded_containers(rules)
    return published - await asyncio.to_thread(living_containers) if published else set()


async def _rules() -> list[str]:
    return (await _iptables("--list-rules")).splitlines()


async def _iptables(*arguments: str) -> str:
    """Its output; nothing when it failed, as for a rule that somebody else has just removed."""
    command = ("iptables", "--wait", "--table", "nat", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace") if process.returncode == 0 else ""
