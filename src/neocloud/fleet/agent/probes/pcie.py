# pyright: strict
"""PCIe links: speed and width as they are, against what both ends are capable of."""

import re
from pathlib import PurePath

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

DEVICES = "sys/bus/pci/devices"
BRIDGE, DISPLAY, NVIDIA = "0x06", "0x03", "0x10de"
_SPEED = re.compile(r"(\d{1,4}(?:\.\d)?) GT/s")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    for address in tree.names(DEVICES):
        folder = f"{DEVICES}/{address}"
        kind = tree.optional(f"{folder}/class") or ""
        if not kind.startswith(BRIDGE):
            _device(tree, folder, address, found, is_gpu=kind.startswith(DISPLAY))
    if not found.readings:
        found.leave_out("There is no device with a PCIe link here", "pcie_degraded")
    return found


def _device(tree: Tree, folder: str, address: str, found: Found, *, is_gpu: bool) -> None:
    """GPUs save power by slower links, so the speed of theirs is judged by NVML."""
    width, most_width = (tree.number(f"{folder}/{name}_link_width") for name in ("current", "max"))
    speed, most_speed = (_speed(tree, f"{folder}/{name}_link_speed") for name in ("current", "max"))
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
    if not _ADDRESS.fullmatch(parent.name):
        return None, None
    above = f"{DEVICES}/{parent.name}"
    return _speed(tree, f"{above}/max_link_speed"), tree.number(f"{above}/max_link_width") or None


def _speed(tree: Tree, name: str) -> float | None:
    match = _SPEED.match(tree.optional(name) or "")
    return float(match[1]) if match else None
