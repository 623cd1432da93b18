# pyright: strict
"""Tasks of the host's own that are blocked in the kernel (state D).

Those of containers are left out, and so are callers of vfork: a tenant can keep either blocked for as long
as it likes. What blocks them for a reason of the host's, the kernel itself reports as a hung task.
"""

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree
from neocloud.fleet.kernel_log import visible

MOST_NAMED = 64
VFORK = "wait_for_vfork_done"


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
        is_blocked = len(fields) > 19 and fields[0] == "D"
        if is_blocked and _is_own(tree, pid) and len(found.readings) < MOST_NAMED:
            found.read("blocked_task_s", f"{pid}@{fields[19]}", 1, visible(name, 64))
    if not found.readings:
        found.read("blocked_task_s", "", 0, "no task is blocked")
    return found


def _is_own(tree: Tree, pid: str) -> bool:
    is_same = tree.link_name(f"proc/{pid}/ns/pid") in ("", tree.link_name("proc/self/ns/pid"))
    return is_same and tree.optional(f"proc/{pid}/wchan") != VFORK
