# pyright: strict
"""Tasks that are blocked in the kernel (state D)."""

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree
from neocloud.fleet.kernel_log import visible

MOST_NAMED = 64


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    for pid in tree.names("proc"):
        if not pid.isdigit():
            continue
        stat = tree.optional(f"proc/{pid}/stat")  # a process may end meanwhile
        if stat is None:
            continue
        # The name is the process's own and may hold anything, so the fields are counted from its last ")".
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        if len(fields) > 19 and fields[0] == "D" and len(found.readings) < MOST_NAMED:
            found.read("blocked_task_s", f"{pid}@{fields[19]}", 1, visible(name, 64))
    if not found.readings:
        found.read("blocked_task_s", "", 0, "no task is blocked")
    return found
