# pyright: strict
"""NVMe controllers: whether the kernel gets through to them, and whether all are there."""

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

FOLDER = "sys/class/nvme"
LIVE = "live"


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    names = tree.names(FOLDER)
    for name in names:
        state = tree.optional(f"{FOLDER}/{name}/state")
        if state is None:
            found.fail_to_read("nvme_not_live", name, "the controller names no state")
        else:
            found.read("nvme_not_live", name, int(state != LIVE), state)
    if not names:
        found.leave_out("There is no NVMe controller here", "nvme_not_live")
    if expected.nvmes is None:
        found.leave_out("The expected number is not given (nvmes)", "nvme_missing")
    else:
        missing = max(0, expected.nvmes - len(names))
        found.read("nvme_missing", "", missing, f"{len(names)} of {expected.nvmes} controllers")
    return found
