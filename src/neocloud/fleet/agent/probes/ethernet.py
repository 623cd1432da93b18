# pyright: strict
"""Network interfaces that are devices: how often their links changed."""

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

FOLDER = "sys/class/net"
ETHERNET = 1


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    for name in tree.names(FOLDER):
        folder = f"{FOLDER}/{name}"
        if not tree.exists(f"{folder}/device") or tree.number(f"{folder}/type") != ETHERNET:
            continue
        changes = tree.number(f"{folder}/carrier_changes")
        if changes is None:
            found.fail_to_read("carrier_changes", name, "the interface has no such counter")
        else:
            found.read("carrier_changes", name, changes)
    if not found.readings and not found.unreadable:
        found.leave_out("There is no network interface that is a device", "carrier_changes")
    return found
