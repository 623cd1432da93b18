# pyright: standard
"""Fakes of machines, and of the pods that import and export their disks.

Pass `FakeMachines(world).respond` as the `responder` of a FakeEngine: it answers `machine-control` as the
launcher's control program does, but no guest runs; a test sets the state of one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neocloud.emulator.fakes import respond_as_login_node
from neocloud.engines.base import ExecResult, Reference
from neocloud.engines.fake import FakeWorld
from neocloud.engines.fake.world import ContainerState
from neocloud.engines.manifest import Secret
from neocloud.services.compute.disk_export import CLUSTER, ExportedFile
from neocloud.services.compute.disk_import import WHOLE
from neocloud.services.compute.reconcile.disk_export_pod import EXPORT_POD
from neocloud.services.compute.reconcile.image_import import IMPORT_POD

PROGRAM = "machine-control"
EMPTY_DISK_BYTES = 2**30


@dataclass
class FakeMachines:
    """All machines of one fake world, by the name of their namespace."""

    world: FakeWorld
    states: dict[str, str] = field(default_factory=dict)
    """The state that QEMU reports for a guest; "running" where none is set."""
    reasons: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    """All calls but `status`, as (namespace, verb, arguments...)."""
    mute: set[str] = field(default_factory=set)
    """Machines whose QEMU does not answer."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of disks that were changed while their machine ran."""
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    """Limits of disks, likewise."""
    attached: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The disks of each guest as it was described to the machine, with the time of its start."""
    keeping: set[str] = field(default_factory=set)
    """Disks that their guest does not release."""

    imported: dict[str, bytes] = field(default_factory=dict)
    """The file that was written to each import of an image."""

    exported: bytes = field(default_factory=lambda: empty_disk())
    """The file that each export of a disk reads: nothing was ever written to a disk of a fake machine."""

    def respond(
        self, pod: Reference, container: str, command: Sequence[str], stdin: bytes
    ) -> ExecResult | None:
        if pod.name == EXPORT_POD:
            return self._export(command)
        if pod.name == IMPORT_POD:
            return self._import(pod, command, stdin)
        if not command or command[0] != PROGRAM:
            return respond_as_login_node(pod, container, command, stdin)
        if pod.namespace in self.mute:
            return _answer({"error": "QEMU does not answer on its socket"}, exit_code=1)
        verb, *arguments = command[1:]
        if verb == "status":
            return _answer(self._status(pod))
        self.calls.append((pod.namespace, verb, *arguments))
        disks = self._disks(pod)
        if verb == "resize-disk":
            self.sizes[arguments[0]] = int(arguments[1])
        elif verb == "limit-disk":
            self.limits[arguments[0]] = json.loads(arguments[1])
        elif verb == "attach-disk":
            disk = json.loads(arguments[0])
            claims = {claim.name for claim in self.world.pods[pod].manifest.mounted_claims}
            if disk["id"] not in claims:
                return _answer({"error": f"{disk['path']} is not there"}, exit_code=1)
            disks[disk["id"]] = disk
        elif verb == "detach-disk":
            if arguments[0] in disks and arguments[0] in self.keeping:
                return _answer({"is_detached": False})
            disks.pop(arguments[0], None)
            return _answer({"is_detached": True})
        return _answer({})

    def _export(self, command: Sequence[str]) -> ExecResult:
        """Answer as the pod that reads a disk for its export."""
        if command[0] == "cat":
            return _answer({"file_size_bytes": len(self.exported)})
        offset, size = map(int, command[-2:])
        return ExecResult(0, self.exported[offset : offset + size], b"")

    def _import(self, pod: Reference, command: Sequence[str], stdin: bytes) -> ExecResult:
        """Answer as the pod that imports an image: the file is kept, and taken for a disk of its length."""
        if command[0] == "stat":
            return ExecResult(0, b"1000000000 4096\n", b"")
        if command[0] == "cat":
            return ExecResult(1, b"", b"")
        if not command[1].endswith(f"/{WHOLE}"):
            kept = b"" if "seek=0" in command else self.imported.get(pod.namespace, b"")
            self.imported[pod.namespace] = kept + stdin
            return ExecResult(0, b"", b"")
        found = self.world.pods[pod].containers[0]
        found.logs.append(json.dumps({"size_bytes": len(self.imported[pod.namespace])}))
        found.state, found.exit_code = ContainerState.EXITED, 0
        return ExecResult(0, b"", b"")

    def _disks(self, pod: Reference) -> dict[str, Any]:
        """Return the guest's disks by id: those of its start, and what was done since."""
        started_at = self.world.pods[pod].containers[0].started_at
        known = self.attached.get(pod.namespace)
        if known is None or known["started_at"] != started_at:
            disks = {disk["id"]: disk for disk in self.desired(pod.namespace)["disks"]}
            known = self.attached[pod.namespace] = {"started_at": started_at, "disks": disks}
        return known["disks"]

    def desired(self, namespace: str) -> dict[str, Any]:
        """Return the machine's desired state, as the machine reads it."""
        secret = self.world.objects[Reference("Secret", namespace, "machine")]
        assert isinstance(secret, Secret)
        return json.loads(secret.contents["machine.json"])

    def _status(self, pod: Reference) -> dict[str, object]:
        namespace = pod.namespace
        disks = {
            disk_id: {
                "size_bytes": self.sizes.setdefault(disk_id, disk["size_bytes"]),
                "io_status": "ok",
                "limits": self.limits.setdefault(disk_id, disk["limits"]),
            }
            for disk_id, disk in self._disks(pod).items()
        }
        state = self.states.get(namespace, "running")
        return {"state": state, "reason": self.reasons.get(namespace, ""), "disks": disks}


def empty_disk() -> bytes:
    """Return an empty disk as a qcow2 file."""
    file = ExportedFile.of_empty_disk(EMPTY_DISK_BYTES)
    return b"".join(bytes(file.cluster(number)) for number in range(file.size // CLUSTER))


def _answer(content: Mapping[str, object], exit_code: int = 0) -> ExecResult:
    return ExecResult(exit_code, (json.dumps(content) + "\n").encode(), b"")
