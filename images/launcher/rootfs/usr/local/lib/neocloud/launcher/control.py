"""`machine-control`: observe and change the running machine. The output is one JSON object on one line.

    machine-control status | power-button | reset | freeze | thaw
    machine-control resize-disk ID BYTES | limit-disk ID JSON | attach-disk JSON | detach-disk ID

Exit code 0: done; 1: failed, and `error` says why.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from launcher import disks, rights
from launcher.command_line import (
    FREE_PORTS,
    LIMITS,
    LIMITS_PREFIX,
    Places,
    block_device,
    block_node,
    limits_name,
    limits_object,
    node_name,
)
from launcher.desired import parse_disk, parse_limits
from launcher.encryption import KeyMissing, key_name, sent_key
from launcher.guest_agent import AgentError, ask_agent
from launcher.qmp import Qmp, QmpError

REASONS = {"io-error": "A disk of the host is full or failed; the machine continues when there is space"}
_FREEZE_SECONDS, _ASK_SECONDS, _UNPLUG_SECONDS = 20.0, 3.0, 5.0
_LOOK_SECONDS = 0.1
_PERIPHERALS = "/machine/peripheral"
_PENDING = "in the process of unplug"
"""In QEMU's refusal to request a second time what the guest has not answered yet."""

ERRORS = (QmpError, AgentError, disks.DiskError, rights.RightsError, KeyMissing, ValueError, KeyError)


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

    def limit_disk(self, name: str, text: str) -> dict[str, Any]:
        """Change the limits of a disk, which apply to the next operation."""
        if name not in self._limits():
            raise ValueError(f"Disk {name} has no limits; stop the machine and start it to give it some")
        limits = limits_object(name, parse_limits(json.loads(text)))["limits"]
        self._qmp.ask("qom-set", path=f"/objects/{limits_name(name)}", property="limits", value=limits)
        return {"limits": self._limits()[name]}

    def attach_disk(self, text: str) -> dict[str, Any]:
        """Attach a disk, described as in machine.json; do nothing if it is attached."""
        disk = parse_disk(json.loads(text))
        if disk.id in self._disks():
            return {}
        self._remove_node(disk.id)  # left by an attempt that was interrupted
        device = block_device(disk) | {"bus": self._free_port()}
        disk = disks.prepare(disk)
        try:
            if disk.key:
                self._ask("object-add", sent_key(disk.id, disk.key))
            if disk.limits is not None:
                self._ask("object-add", limits_object(disk.id, disk.limits))
            self._ask("blockdev-add", block_node(disk))
            self._ask("device_add", device)
        except QmpError:
            self._remove_node(disk.id)
            raise
        return {}

    def detach_disk(self, name: str) -> dict[str, Any]:
        """Request the guest to release the disk and wait a moment for it; do nothing if it is not attached.

        `is_detached` is false as long as the guest has not released it: repeat the call.
        """
        if name in self._disks() and not self._is_released(name):
            return {"is_detached": False}
        self._remove_node(name)
        return {"is_detached": True}

    def _is_released(self, name: str) -> bool:
        device = f"device-{name}"
        try:
            self._qmp.ask("device_del", id=device)
        except QmpError as error:
            if _PENDING not in str(error):
                raise
        end = time.monotonic() + _UNPLUG_SECONDS
        while name in self._disks():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _remove_node(self, name: str) -> None:
        """Close the file of a disk that no device uses, and remove its limits and its key."""
        if any(node["node-name"] == node_name(name) for node in self._qmp.ask("query-named-block-nodes")):
            self._qmp.ask("blockdev-del", node_name=node_name(name))
        held = {entry["name"] for entry in self._qmp.ask("qom-list", path="/objects")}
        for owned in held & {limits_name(name), key_name(name)}:
            self._qmp.ask("object-del", id=owned)

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
        limits = self._limits()
        for device in self._qmp.ask("query-block"):
            parts = str(device.get("qdev", "")).split("/")
            name = next((part for part in parts if part.startswith("device-")), "")
            if name and device.get("inserted"):
                disk = found[name.removeprefix("device-")] = {
                    "size_bytes": device["inserted"]["image"]["virtual-size"],
                    "io_status": device.get("io-status", "ok"),
                }
                if name.removeprefix("device-") in limits:
                    disk["limits"] = limits[name.removeprefix("device-")]
        return found

    def _limits(self) -> dict[str, dict[str, int]]:
        """Return the limits that QEMU holds, by the id of the disk."""
        found = {}
        for entry in self._qmp.ask("qom-list", path="/objects"):
            if entry["name"].startswith(LIMITS_PREFIX):
                held = self._qmp.ask("qom-get", path=f"/objects/{entry['name']}", property="limits")
                limits = {name: held[theirs] for name, theirs in LIMITS.items()}
                found[entry["name"].removeprefix(LIMITS_PREFIX)] = limits
        return found

    def _ask(self, command: str, arguments: dict[str, Any]) -> None:
        self._qmp.ask_with({"execute": command, "arguments": arguments})

    def _size(self, name: str) -> int:
        try:
            return self._disks()[name]["size_bytes"]
        except KeyError:
            raise ValueError(f"This machine has no disk {name}; it has {', '.join(self._disks())}") from None

    def _free_port(self) -> str:
        """Return a port without a disk. `query-pci` knows only what the guest's firmware has found."""
        names = [entry["name"] for entry in self._qmp.ask("qom-list", path=_PERIPHERALS)]
        buses = {
            self._qmp.ask("qom-get", path=f"{_PERIPHERALS}/{name}", property="parent_bus")
            for name in names
            if name.startswith("device-")
        }
        used = {bus.rpartition("/")[2] for bus in buses}
        for name in names:
            if name.startswith("port") and name not in used:
                return name
        raise ValueError(f"{FREE_PORTS} disks were attached already; restart the machine to attach more")


def main() -> int:
    verbs: dict[str, tuple[int, Callable[..., dict[str, Any]]]] = {
        "status": (0, Control.status),
        "power-button": (0, Control.power_button),
        "reset": (0, Control.reset),
        "freeze": (0, Control.freeze),
        "thaw": (0, Control.thaw),
        "resize-disk": (2, Control.resize_disk),
        "limit-disk": (2, Control.limit_disk),
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
