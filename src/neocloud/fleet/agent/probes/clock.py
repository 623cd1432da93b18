# pyright: strict
"""The clock: how far it is from its source, and what it counts."""

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

FOLDER = "sys/devices/system/clocksource/clocksource0"
FAST = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
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
    current = tree.optional(f"{FOLDER}/current_clocksource")
    if current is None:
        found.leave_out("The kernel names no clock source", "slow_clocksource")
    else:
        found.read("slow_clocksource", "", int(current not in FAST), current)
    return found
