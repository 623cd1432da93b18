# pyright: strict
"""InfiniBand and RoCE ports: state, rate and counters."""

import re

from neocloud.fleet.agent.checks import IB_COUNTERS
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

FOLDER = "sys/class/infiniband"
ACTIVE, LINK_UP = "4", "5"
_RATE = re.compile(r"(\d{1,6}(?:\.\d)?) Gb/sec")


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    ports = [
        (f"{FOLDER}/{device}/ports/{port}", f"{device}/{port}")
        for device in tree.names(FOLDER)
        for port in tree.names(f"{FOLDER}/{device}/ports")
    ]
    if expected.ib_ports is not None:
        missing = max(0, expected.ib_ports - len(ports))
        found.read("ib_port_missing", "", missing, f"{len(ports)} of {expected.ib_ports} ports")
    else:
        found.leave_out("The expected number is not given (ib_ports)", "ib_port_missing")
    if not ports:
        found.leave_out("There is no InfiniBand port here", "ib_port_down_s", "ib_rate_low", *IB_COUNTERS)
    for folder, name in ports:
        _port(tree, folder, name, expected, found)
    if ports and expected.ib_rate_gbps is None:
        found.leave_out("The expected rate is not given (ib_rate_gbps)", "ib_rate_low")
    if ports:
        read = {each.check for each in found.readings}
        found.leave_out("The ports have no such counter", *(name for name in IB_COUNTERS if name not in read))
    return found


def _port(tree: Tree, folder: str, name: str, expected: Expected, found: Found) -> None:
    try:
        state, physical = tree.text(f"{folder}/state"), tree.text(f"{folder}/phys_state")
    except OSError as error:
        found.fail_to_read("ib_port_down_s", name, error)
        return
    is_up = state.partition(":")[0] == ACTIVE and physical.partition(":")[0] == LINK_UP
    found.read("ib_port_down_s", name, int(not is_up), f"{state}, {physical}")
    if expected.ib_rate_gbps is not None and is_up:
        rate = _RATE.match(tree.optional(f"{folder}/rate") or "")
        if rate:
            is_low = float(rate[1]) < expected.ib_rate_gbps
            found.read("ib_rate_low", name, int(is_low), f"{rate[1]} of {expected.ib_rate_gbps} Gb/s")
        else:
            found.fail_to_read("ib_rate_low", name, "the port names no rate")
    for check, file in IB_COUNTERS.items():
        value = tree.number(f"{folder}/{file}")
        if value is not None:
            found.read(check, name, value)
