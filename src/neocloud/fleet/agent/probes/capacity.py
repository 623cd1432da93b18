# pyright: strict
"""Processors and memory against what is expected, and the load."""

import re

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

ONLINE = "sys/devices/system/cpu/online"
_TOTAL = re.compile(r"MemTotal: +(\d{1,15}) kB")


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    cpus = _count(tree.text(ONLINE))
    if expected.cpus is None:
        found.leave_out("The expected number is not given (cpus)", "cpus_missing")
    else:
        found.read("cpus_missing", "", max(0, expected.cpus - cpus), f"{cpus} of {expected.cpus} online")
    _memory(tree, expected, found)
    try:
        load = float(tree.text("proc/loadavg").split()[1])
        found.read("load_per_cpu", "", load / cpus, f"load {load:g} on {cpus}")
    except (OSError, ValueError, IndexError) as error:
        found.fail_to_read("load_per_cpu", "", error)
    return found


def _memory(tree: Tree, expected: Expected, found: Found) -> None:
    if expected.memory_mib is None:
        found.leave_out("The expected size is not given (memory_mib)", "memory_missing")
        return
    match = _TOTAL.search(tree.text("proc/meminfo"))
    if match is None:
        found.fail_to_read("memory_missing", "", "the kernel gives no total")
        return
    has = int(match[1]) // 1024
    missing = 100 * max(0, expected.memory_mib - has) / max(1, expected.memory_mib)
    found.read("memory_missing", "", missing, f"{has} of {expected.memory_mib} MiB")


def _count(ranges: str) -> int:
    """Return how many processors "0-3,6" names. Raises ValueError."""
    count = 0
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(1, count)
