# pyright: strict
"""Errors of the host's memory, as the kernel's EDAC counts them."""

import re

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

FOLDER = "sys/devices/system/edac/mc"
_CONTROLLER = re.compile(r"mc\d{1,4}")
CHECKS = {"memory_errors_uncorrected": "ue_count", "memory_errors_corrected": "ce_count"}


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    controllers = [name for name in tree.names(FOLDER) if _CONTROLLER.fullmatch(name)]
    for name in controllers:
        for check, file in CHECKS.items():
            value = tree.number(f"{FOLDER}/{name}/{file}")
            if value is None:
                found.fail_to_read(check, name, f"there is no number in {file}")
            else:
                found.read(check, name, value)
    if not controllers:
        found.leave_out("The kernel has no EDAC driver for this host's memory", *CHECKS)
    return found
