"""Port forwards in the kernel whose containers died without a farewell.

When everything of a cloud is killed at once, nobody tells netavark to remove its rules. The port then looks
free, as nobody listens on it, but the dead forward stands before any new one and swallows its connections.
Forwards of containers that have a process, whoever runs them, are never touched.

The network of a container with a user namespace is made after its monitor, which listens on published ports
to keep them and never answers. A client that connects between the two would wait for ever.
"""

import asyncio
import re
import shlex
from collections.abc import Iterable, Sequence

from neocloud.engines.podman.processes import living_containers

_FORWARD = re.compile(r'-A NETAVARK-HOSTPORT-DNAT .*"dnat name: \S+ id: ([0-9a-f]{64})" -j (NETAVARK-DN-\w+)')
_START_SECONDS = 5.0
"""A container that starts has its forwards a moment before its first process."""


async def remove_dead_forwards() -> None:
    """Take the forwards of dead containers out of the machine's address translation; may be repeated."""
    dead = await _dead_containers(await _rules())
    if dead:
        await asyncio.sleep(_START_SECONDS)
        rules = await _rules()
        for command in removal(rules, dead & await _dead_containers(rules)):
            await _iptables(*command)


async def end_early_connections(places: Iterable[tuple[str, int]]) -> None:
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


def containers(rules: Iterable[str]) -> set[str]:
    """Ids of the containers that have a forward."""
    return {found[1] for rule in rules if (found := _FORWARD.match(rule))}


def removal(rules: Sequence[str], dead: set[str]) -> list[list[str]]:
    """iptables arguments that remove the forwards of these containers, and chains that nothing else uses."""
    forwards = [(rule, found[1], found[2]) for rule in rules if (found := _FORWARD.match(rule))]
    unused = {chain for _, _, chain in forwards} - {chain for _, id_, chain in forwards if id_ not in dead}
    deletions = [["--delete", *shlex.split(rule)[1:]] for rule, id_, _ in forwards if id_ in dead]
    flushes = [["--flush", chain] for chain in sorted(unused)]
    return [*deletions, *flushes, *(["--delete-chain", chain] for chain in sorted(unused))]


async def _dead_containers(rules: Iterable[str]) -> set[str]:
    published = containers(rules)
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
