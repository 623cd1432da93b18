"""`machine-control`: observe and change the running machine. The output is one JSON object on one line.

    machine-control status | power-button | reset | freeze | thaw
    machine-control resize-disk ID BYTES | attach-disk JSON | detach-disk ID

Exit code 0: done; 1: failed, and `error` says why.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from launcher import disks, rights
from launcher.command_line import FREE_PORTS, Places, block_device, block_node, node_name
from launcher.desired import parse_disk
from launcher.guest_agent import AgentError, ask_agent
from launcher.qmp import Qmp, QmpError

REASONS = {"io-error": "A disk of the host is full or failed; the machine continues when there is space"}
_FREEZE_SECONDS, _ASK_SECONDS, _UNPLUG_SECONDS = 20.0, 3.0, 15.0

ERRORS = (QmpError, AgentError, disks.DiskError, rights.RightsError, ValueError, KeyError)


class Control:
    """One connection to QEMU."""

    def __init__(self, qmp: Qmp, places: Places) -> None:
        self._qmp, self._places = qmp, places

    def status(self) -> dict[str, Any]:
        """Return the state in QEMU's terms: running, paused, io-error, shutdown ..."""
        state = self._qmp.ask("query-status")["status"]
        return {"state": state, "reason": REASONS.get(state, ""), "disks": self._disks()}

    def power_button(self) -> dict[str, Any]:
        self._qmp.ask("system_powerdown")
        return {}

    def reset(self) -> dict[str, Any]:
        self._qmp.ask("system_reset")
        return {}

    def resize_disk(self, name: str, size: str) -> dict[str, Any]:
        """Grow a disk, which the guest sees immediately; a disk never becomes smaller."""
        wanted, now = int(size), self._size(name)
        if wanted < now:
            raise ValueError(f"Disk {name} has {now} bytes; it cannot shrink to {wanted}")
        if wanted > now:
            self._qmp.ask("block_resize", node_name=node_name(name), size=wanted)
        return {"size_bytes": self._size(name)}

    def attach_disk(self, text: str) -> dict[str, Any]:
        """Attach a disk, described as in machine.json; do nothing if it is attached."""
        disk = parse_disk(json.loads(text))
        if disk.id in self._disks():
            return {}
        disks.prepare(disk)
        nodes = {node["node-name"] for node in self._qmp.ask("query-named-block-nodes")}
        if node_name(disk.id) not in nodes:
            self._qmp.ask_with({"execute": "blockdev-add", "arguments": block_node(disk)})
        device = block_device(disk) | {"bus": self._free_port()}
        try:
            self._qmp.ask_with({"execute": "device_add", "arguments": device})
        except QmpError:
            self._qmp.ask("blockdev-del", node_name=node_name(disk.id))
            raise
        return {}

    def detach_disk(self, name: str) -> dict[str, Any]:
        """Request the guest to release the disk, and wait for it; do nothing if it is not attached."""
        if name in self._disks():
            self._qmp.ask("device_del", id=f"device-{name}")
            self._qmp.wait_for_event("DEVICE_DELETED", _UNPLUG_SECONDS, device=f"device-{name}")
        if any(node["node-name"] == node_name(name) for node in self._qmp.ask("query-named-block-nodes")):
            self._qmp.ask("blockdev-del", node_name=node_name(name))
        return {}

    def freeze(self) -> dict[str, Any]:
        """Sync and freeze the guest's file systems; always followed by `thaw`.

        A guest without an agent is paused instead, which leaves its disks as after a power failure.
        """
        try:
            return {"filesystems": ask_agent(self._places.agent, "guest-fsfreeze-freeze", _FREEZE_SECONDS)}
        except AgentError as error:
            self._qmp.ask("stop")
            return {"filesystems": 0, "paused": str(error)}

    def thaw(self) -> dict[str, Any]:
        if self._qmp.ask("query-status")["status"] == "paused":
            self._qmp.ask("cont")
            return {"filesystems": 0}
        return {"filesystems": ask_agent(self._places.agent, "guest-fsfreeze-thaw", _ASK_SECONDS)}

    def _disks(self) -> dict[str, dict[str, Any]]:
        """Return size in bytes and the last I/O error of each disk, by id."""
        found = {}
        for device in self._qmp.ask("query-block"):
            parts = str(device.get("qdev", "")).split("/")
            name = next((part for part in parts if part.startswith("device-")), "")
            if name and device.get("inserted"):
                found[name.removeprefix("device-")] = {
                    "size_bytes": device["inserted"]["image"]["virtual-size"],
                    "io_status": device.get("io-status", "ok"),
                }
        return found

    def _size(self, name: str) -> int:
        try:
            return self._disks()[name]["size_bytes"]
        except KeyError:
            raise ValueError(f"This machine has no disk {name}; it has {', '.join(self._disks())}") from None

    def _free_port(self) -> str:
        for bus in self._qmp.ask("query-pci"):
            for device in bus["devices"]:
                is_free = "pci_bridge" in device and not device["pci_bridge"].get("devices")
                if is_free and device["qdev_id"].startswith("port"):
                    return device["qdev_id"]
        raise ValueError(f"{FREE_PORTS} disks were attached already; restart the machine to attach more")


def main() -> int:
    verbs: dict[str, tuple[int, Callable[..., dict[str, Any]]]] = {
        "status": (0, Control.status),
        "power-button": (0, Control.power_button),
        "reset": (0, Control.reset),
        "freeze": (0, Control.freeze),
        "thaw": (0, Control.thaw),
        "resize-disk": (2, Control.resize_disk),
        "attach-disk": (1, Control.attach_disk),
        "detach-disk": (1, Control.detach_disk),
    }
    count, verb = verbs.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, Control.status))
    if count is None or len(sys.argv) - 2 != count:
        print(json.dumps({"error": f"Use it as: {(__doc__ or '').split(chr(10), 2)[2]}"}))
        return 2
    try:
        with Qmp(Places().control_monitor) as qmp:
            print(json.dumps(verb(Control(qmp, Places()), *sys.argv[2:])))
    except ERRORS as error:
        print(json.dumps({"error": str(error)}))
        return 1
    return 0
