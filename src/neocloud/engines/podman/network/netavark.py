"""Remove what netavark, Podman's network program, leaves behind in the kernel's rules.

Networks: netavark leaves one empty chain for each network that published ports, and never removes its tables.
Where another Podman changes the rules at the same moment, it may fail and leave rules of a network. Chains
and rules of our own networks are removed with them. The tables are shared with every other Podman on the
machine: they are removed only if they were not there before us and no network, ours or another's, is left in
them.

Port forwards: if everything of a cloud is killed at the same moment, netavark is not called to remove its
rules. The port then looks free, because nobody listens on it, but the stale forward precedes any new one and
swallows its connections. Forwards of running containers, our own or others', are never changed.

Early connections: the network of a container with a user namespace is created after its monitor, which
listens on published ports to reserve them and never answers. A client that connects in between would wait for
ever.
"""

import asyncio
import hashlib
import json
import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NotRequired, TypedDict

from neocloud.engines.podman.containers import living_containers
from neocloud.engines.podman.layout import Layout, read_record, write_record

logger = logging.getLogger(__name__)


class _Chain(TypedDict):
    name: str
    hook: NotRequired[str]
    policy: NotRequired[str]


class _Jump(TypedDict):
    target: str


class _Expression(TypedDict):
    jump: NotRequired[_Jump]


class _Rule(TypedDict):
    chain: str
    expr: list[_Expression]


class Entry(TypedDict):
    """A chain or rule of a table, as `nft -j` lists it."""

    chain: NotRequired[_Chain]
    rule: NotRequired[_Rule]


_TABLES = (("ip", "nat"), ("ip", "filter"), ("ip6", "nat"), ("ip6", "filter"), ("inet", "netavark"))
_NETWORK_CHAIN = re.compile(r"NETAVARK-(DN-)?[0-9A-F]{13}|nv_.*")
_SHARED_CHAIN = re.compile(r"NETAVARK[-_].*")
_FORWARD = re.compile(r'-A NETAVARK-HOSTPORT-DNAT .*"dnat name: \S+ id: ([0-9a-f]{64})" -j (NETAVARK-DN-\w+)')
_START_SECONDS = 5.0
"""A starting container has its forwards a moment before its first process."""


async def remember_tables(layout: Layout) -> None:
    """Record, once, which tables existed before ours."""
    path = layout.engine / "tables-before.json"
    if read_record(path) is None:
        present = [" ".join(table) for table in _TABLES if await _listed(*table)]
        write_record(path, {"tables": present})


async def remove_network_rules(network: str) -> None:
    """Remove what a removed network left; the kernel refuses, rightly, to remove a chain that is used."""
    mark = _mark(network)
    await _nft("delete", "chain", "ip", "nat", f"NETAVARK-DN-{mark}")
    rules = {table: await _rules(table) for table in ("nat", "filter")}
    for table, command in network_removal(rules, mark):
        await _iptables(*command, table=table)


def _mark(network: str) -> str:
    """Return what netavark calls a network in the names of chains."""
    return hashlib.sha512(network.encode()).hexdigest()[:13].upper()


def network_removal(rules: Mapping[str, Sequence[str]], mark: str) -> list[tuple[str, list[str]]]:
    """Return tables and iptables arguments that remove the rules of a network, by those of each table."""
    chain = f"NETAVARK-{mark}"
    words = {table: [shlex.split(rule) for rule in listed] for table, listed in rules.items()}
    ranges = {rule[rule.index("-s") + 1] for rule in words["nat"] if rule[-1] == chain and "-s" in rule}
    removed: list[tuple[str, list[str]]] = []
    for table, listed in words.items():
        for rule in listed:
            named = {rule[at + 1] for at, word in enumerate(rule[:-1]) if word in {"-s", "-d"}}
            if rule[0] == "-A" and rule[1] != chain and named & ranges:
                removed.append((table, ["--delete", *rule[1:]]))
    if ["-N", chain] in words["nat"]:
        removed += [("nat", ["--flush", chain]), ("nat", ["--delete-chain", chain])]
    return removed


async def remove_tables(layout: Layout) -> None:
    """Remove the tables that netavark created for us and that no network uses."""
    before = read_record(layout.engine / "tables-before.json")
    if before is None:
        return
    for family, name in _TABLES:
        entries = await _listed(family, name)
        if entries and f"{family} {name}" not in before["tables"] and is_unused(entries):
            await _nft("delete", "table", family, name)


def is_unused(entries: Sequence[Entry]) -> bool:
    """Return whether a table, as `nft -j` lists it, holds only what removed networks left."""
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


def _jumps_to_netavark(rule: _Rule) -> bool:
    targets = [part["jump"]["target"] for part in rule["expr"] if "jump" in part]
    return bool(targets) and all(_SHARED_CHAIN.fullmatch(target) for target in targets)


async def _listed(family: str, name: str) -> list[Entry]:
    """Return the table with its chains and rules; an empty list if there is no such table."""
    output = await _nft("-j", "list", "table", family, name)
    return json.loads(output)["nftables"][1:] if output else []


async def _nft(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "nft", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return output if process.returncode == 0 else b""


async def remove_stale_port_forwards() -> None:
    """Remove the port forwards of containers that have no process; may be repeated."""
    stale = await _stale_containers(await _rules())
    if stale:
        await asyncio.sleep(_START_SECONDS)
        rules = await _rules()
        stale &= await _stale_containers(rules)
        if stale:
            logger.warning("Removing port forwards that %d killed containers left", len(stale))
        for command in forward_removal(rules, stale):
            await _iptables(*command)


async def reset_early_connections(endpoints: Iterable[tuple[str, int]]) -> None:
    """Reset connections that a container's monitor accepted before the forwards existed; clients can retry.

    `endpoints` are addresses and ports of this machine that the container publishes.
    """
    for address, port in endpoints:
        local = () if address == "0.0.0.0" else ("src", address)  # nosec B104
        sockets = ("--kill", "--no-header", "--tcp", "state", "established", *local, f"sport = :{port}")
        process = await asyncio.create_subprocess_exec(
            "ss", *sockets, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await process.wait()


def forwarded_containers(rules: Iterable[str]) -> set[str]:
    """Return the ids of the containers that have a port forward."""
    return {found[1] for rule in rules if (found := _FORWARD.match(rule))}


def forward_removal(rules: Sequence[str], stale: set[str]) -> list[list[str]]:
    """Return iptables arguments that remove the forwards of these containers and their unused chains."""
    forwards = [(rule, found[1], found[2]) for rule in rules if (found := _FORWARD.match(rule))]
    unused = {chain for _, _, chain in forwards} - {chain for _, id_, chain in forwards if id_ not in stale}
    deletions = [["--delete", *shlex.split(rule)[1:]] for rule, id_, _ in forwards if id_ in stale]
    flushes = [["--flush", chain] for chain in sorted(unused)]
    return [*deletions, *flushes, *(["--delete-chain", chain] for chain in sorted(unused))]


async def _stale_containers(rules: Iterable[str]) -> set[str]:
    published = forwarded_containers(rules)
    return published - await asyncio.to_thread(living_containers) if published else set()


async def _rules(table: str = "nat") -> list[str]:
    return (await _iptables("--list-rules", table=table)).splitlines()


async def _iptables(*arguments: str, table: str = "nat") -> str:
    """Return its output; empty if it failed, as for a rule that somebody else has just removed."""
    command = ("iptables", "--wait", "--table", table, *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace") if process.returncode == 0 else ""
