"""Links: PCIe against what both ends are capable of, InfiniBand and RoCE ports, and network interfaces."""

import re
from pathlib import PurePath

from neocloud.fleet.agent.checks import IB_COUNTERS
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import ProbeResult

PCI_DEVICES = "sys/bus/pci/devices"
BRIDGE, DISPLAY, NVIDIA = "0x06", "0x03", "0x10de"
_PCI_SPEED = re.compile(r"(\d{1,4}(?:\.\d)?) GT/s")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
INFINIBAND = "sys/class/infiniband"
ACTIVE, LINK_UP = "4", "5"
_IB_RATE = re.compile(r"(\d{1,6}(?:\.\d)?) Gb/sec")
INTERFACES = "sys/class/net"
ETHERNET = 1


def pcie(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    for address in tree.names(PCI_DEVICES):
        folder = f"{PCI_DEVICES}/{address}"
        kind = tree.optional(f"{folder}/class") or ""
        if not kind.startswith(BRIDGE):
            _pci_device(tree, folder, address, found, is_gpu=kind.startswith(DISPLAY))
    if not found.readings:
        found.leave_out("There is no device with a PCIe link here", "pcie_degraded")
    return found


def _pci_device(tree: Tree, folder: str, address: str, found: ProbeResult, *, is_gpu: bool) -> None:
    """GPUs save power by slower links, so the speed of their links is judged by NVML."""
    width, most_width = (tree.number(f"{folder}/{name}_link_width") for name in ("current", "max"))
    speed, most_speed = (_pci_speed(tree, f"{folder}/{name}_link_speed") for name in ("current", "max"))
    if not width or not most_width or width == 255:
        return
    port_speed, port_width = _port_of(tree, folder)
    best_width = min(most_width, port_width or most_width)
    best_speed = min(most_speed or 0, port_speed or most_speed or 0)
    is_slow = bool(speed and best_speed and speed < best_speed and not is_gpu)
    note = f"x{width} of x{best_width}"
    if speed and best_speed and not is_gpu:
        note += f", {speed:g} of {best_speed:g} GT/s"
    found.read("pcie_degraded", address, int(width < best_width) + int(is_slow), note)


def _port_of(tree: Tree, folder: str) -> tuple[float | None, int | None]:
    """Return speed and width of the port above a device; None for what is not known."""
    parent = PurePath(tree.path(folder).resolve()).parent
    if not _PCI_ADDRESS.fullmatch(parent.name):
        return None, None
    above = f"{PCI_DEVICES}/{parent.name}"
    return _pci_speed(tree, f"{above}/max_link_speed"), tree.number(f"{above}/max_link_width") or None


def _pci_speed(tree: Tree, name: str) -> float | None:
    match = _PCI_SPEED.match(tree.optional(name) or "")
    return float(match[1]) if match else None


def infiniband(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    ports = [
        (f"{INFINIBAND}/{device}/ports/{port}", f"{device}/{port}")
        for device in tree.names(INFINIBAND)
        for port in tree.names(f"{INFINIBAND}/{device}/ports")
    ]
    if expected.ib_ports is not None:
        missing = max(0, expected.ib_ports - len(ports))
        found.read("ib_port_missing", "", missing, f"{len(ports)} of {expected.ib_ports} ports")
    else:
        found.leave_out("The expected number is not given (ib_ports)", "ib_port_missing")
    if not ports:
        found.leave_out("There is no InfiniBand port here", "ib_port_down_s", "ib_rate_low", *IB_COUNTERS)
    for folder, name in ports:
        _ib_port(tree, folder, name, expected, found)
    if ports and expected.ib_rate_gbps is None:
        found.leave_out("The expected rate is not given (ib_rate_gbps)", "ib_rate_low")
    if ports:
        read = {each.check for each in found.readings}
        found.leave_out("The ports have no such counter", *(name for name in IB_COUNTERS if name not in read))
    return found


def _ib_port(tree: Tree, folder: str, name: str, expected: Expected, found: ProbeResult) -> None:
    try:
        state, physical = tree.text(f"{folder}/state"), tree.text(f"{folder}/phys_state")
    except OSError as error:
        found.fail_to_read("ib_port_down_s", name, error)
        return
    is_up = state.partition(":")[0] == ACTIVE and physical.partition(":")[0] == LINK_UP
    found.read("ib_port_down_s", name, int(not is_up), f"{state}, {physical}")
    if expected.ib_rate_gbps is not None and is_up:
        rate = _IB_RATE.match(tree.optional(f"{folder}/rate") or "")
        if rate:
            is_low = float(rate[1]) < expected.ib_rate_gbps
            found.read("ib_rate_low", name, int(is_low), f"{rate[1]} of {expected.ib_rate_gbps} Gb/s")
        else:
            found.fail_to_read("ib_rate_low", name, "the port names no rate")
    for check, file in IB_COUNTERS.items():
        value = tree.number(f"{folder}/{file}")
        if value is not None:
            found.read(check, name, value)


def ethernet(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    for name in tree.names(INTERFACES):
        folder = f"{INTERFACES}/{name}"
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
