"""Machines on a fake engine: they answer `machine-control` as the launcher's control program does.

Pass `FakeMachines(world).respond` to a FakeEngine as its `responder`. No guest ever runs; a test sets the
state of one: it is paused, or does not answer. Real machines are tested with the real launcher.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neocloud.engines.base import ExecResult, Reference
from neocloud.engines.fake import FakeWorld
from neocloud.engines.manifest import Secret

PROGRAM = "machine-control"


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

    def respond(
        self, pod: Reference, container: str, command: Sequence[str], stdin: bytes
    ) -> ExecResult | None:
        if not command or command[0] != PROGRAM:
            return None
        if pod.namespace in self.mute:
            return _answer({"error": "QEMU does not answer on its socket"}, exit_code=1)
        verb, *arguments = command[1:]
        if verb == "status":
            return _answer(self._status(pod.namespace))
        self.calls.append((pod.namespace, verb, *arguments))
        if verb == "resize-disk":
            self.sizes[arguments[0]] = int(arguments[1])
        return _answer({})

    def desired(self, namespace: str) -> dict[str, Any]:
        """Return the machine's desired state, as the machine reads it."""
        secret = self.world.objects[Reference("Secret", namespace, "machine")]
        assert isinstance(secret, Secret)
        return json.loads(secret.contents["machine.json"])

    def _status(self, namespace: str) -> dict[str, object]:
        disks = {
            disk["id"]: {
                "size_bytes": self.sizes.setdefault(disk["id"], disk["size_bytes"]),
                "io_status": "ok",
            }
            for disk in self.desired(namespace)["disks"]
        }
        state = self.states.get(namespace, "running")
        return {"state": state, "reason": self.reasons.get(namespace, ""), "disks": disks}


def _answer(content: Mapping[str, object], exit_code: int = 0) -> ExecResult:
    return ExecResult(exit_code, (json.dumps(content) + "\n").encode(), b"")
