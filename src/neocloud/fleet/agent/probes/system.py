"""The host itself: processors, memory, load, tasks, heat and the clock.

Only the host's own tasks in state D count. Those of containers are left out, and so are callers of vfork:
a tenant can keep either blocked for as long as it likes. The kernel itself reports tasks that a fault of the
host blocks as hung.
"""

import re

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import ProbeResult
from neocloud.fleet.policy.kernel_log import visible

CPUS_ONLINE = "sys/devices/system/cpu/online"
_MEMORY_TOTAL = re.compile(r"MemTotal: +(\d{1,15}) kB")
MOST_TASKS = 64
VFORK = "wait_for_vfork_done"
EDAC = "sys/devices/system/edac/mc"
_EDAC_CONTROLLER = re.compile(r"mc\d{1,4}")
EDAC_COUNTS = {"memory_errors_uncorrected": "ue_count", "memory_errors_corrected": "ce_count"}
THERMAL = "sys/class/thermal"
_ZONE = re.compile(r"thermal_zone\d{1,4}")
_TRIP = re.compile(r"(trip_point_\d{1,3})_type")
CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0"
FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})


def capacity(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    cpus = _count_ranges(tree.text(CPUS_ONLINE))
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


def _memory(tree: Tree, expected: Expected, found: ProbeResult) -> None:
    if expected.memory_mib is None:
        found.leave_out("The expected size is not given (memory_mib)", "memory_missing")
        return
    match = _MEMORY_TOTAL.search(tree.text("proc/meminfo"))
    if match is None:
        found.fail_to_read("memory_missing", "", "the kernel gives no total")
        return
    has = int(match[1]) // 1024
    missing = 100 * max(0, expected.memory_mib - has) / max(1, expected.memory_mib)
    found.read("memory_missing", "", missing, f"{has} of {expected.memory_mib} MiB")


def _count_ranges(ranges: str) -> int:
    """Return how many processors "0-3,6" names. Raises ValueError."""
    count = 0
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(1, count)


def tasks(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    for pid in tree.names("proc"):
        if not pid.isdigit():
            continue
        stat = tree.optional(f"proc/{pid}/stat")  # a process may end meanwhile
        if stat is None:
            continue
        # The name is the process's own and may hold anything, so the fields are counted from its last ")".
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        is_blocked = len(fields) > 19 and fields[0] == "D"
        if is_blocked and _is_own(tree, pid) and len(found.readings) < MOST_TASKS:
            found.read("blocked_task_s", f"{pid}@{fields[19]}", 1, visible(name, 64))
    if not found.readings:
        found.read("blocked_task_s", "", 0, "no task is blocked")
    return found


def _is_own(tree: Tree, pid: str) -> bool:
    is_same = tree.link_name(f"proc/{pid}/ns/pid") in ("", tree.link_name("proc/self/ns/pid"))
    return is_same and tree.optional(f"proc/{pid}/wchan") != VFORK


def memory_errors(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    controllers = [name for name in tree.names(EDAC) if _EDAC_CONTROLLER.fullmatch(name)]
    for name in controllers:
        for check, file in EDAC_COUNTS.items():
            value = tree.number(f"{EDAC}/{name}/{file}")
            if value is None:
                found.fail_to_read(check, name, f"there is no number in {file}")
            else:
                found.read(check, name, value)
    if not controllers:
        found.leave_out("The kernel has no EDAC driver for this host's memory", *EDAC_COUNTS)
    return found


def thermal(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    for zone in tree.names(THERMAL):
        if _ZONE.fullmatch(zone):
            _zone(tree, f"{THERMAL}/{zone}", zone, found)
    if not found.readings and not found.unreadable:
        found.leave_out("There is no thermal zone with a critical temperature", "thermal_zone")
    return found


def _zone(tree: Tree, folder: str, zone: str, found: ProbeResult) -> None:
    trips = [match[1] for name in tree.names(folder) if (match := _TRIP.fullmatch(name))]
    critical = [
        tree.number(f"{folder}/{trip}_temp")
        for trip in trips
        if tree.optional(f"{folder}/{trip}_type") == "critical"
    ]
    limits = [each for each in critical if each is not None and each > 0]
    if not limits:
        return
    name = f"{zone} ({tree.optional(f'{folder}/type') or 'unnamed'})"
    now = tree.number(f"{folder}/temp")
    if now is None:
        found.fail_to_read("thermal_zone", name, "the zone gives no temperature")
    else:
        left = (min(limits) - now) / 1000
        found.read("thermal_zone", name, left, f"{now / 1000:g} °C, critical at {min(limits) / 1000:g} °C")


def clock(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    try:
        state = tree.clock()
    except OSError as error:
        found.fail_to_read("clock_offset_s", "", error)
    else:
        if state.is_disciplined:
            found.read("clock_offset_s", "", abs(state.offset_s), f"offset {state.offset_s:+.6f} s")
        else:
            found.leave_out("No time service disciplines the kernel's clock, so its offset is not known",
                            "clock_offset_s")  # fmt: skip
    current = tree.optional(f"{CLOCK_SOURCE}/current_clocksource")
    if current is None:
        found.leave_out("The kernel names no clock source", "slow_clocksource")
    else:
        found.read("slow_clocksource", "", int(current not in FAST_CLOCKS), current)
    return found
