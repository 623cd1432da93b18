"""Client of the control program in a machine's pod: `machine-control VERB ARGUMENTS` prints one JSON line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neocloud.core.reconcile.reconciler import POLL_SECONDS, RetryLater
from neocloud.engines.base import Engine, Reference
from neocloud.engines.calls import engine_call
from neocloud.services.compute.types import POD_CONTAINER, namespace, pod_name

PROGRAM = "machine-control"
TIMEOUT_SECONDS = 45.0


@dataclass(frozen=True)
class GuestStatus:
    """`state` as QEMU says it: running, paused, io-error, ..."""

    state: str
    reason: str = ""
    disk_sizes: Mapping[str, int] = field(default_factory=dict)
    """As the guest sees them, by disk id."""

    @property
    def is_running(self) -> bool:
        return self.state == "running"


class MachineControl:
    """The control program of one machine."""

    def __init__(self, engine: Engine, instance_id: str) -> None:
        self._engine = engine
        self._pod = Reference("Pod", namespace(instance_id), pod_name(instance_id))

    async def status(self) -> GuestStatus:
        answer = await self._call("status")
        disks = answer.get("disks") or {}
        sizes = {disk_id: int(disk["size_bytes"]) for disk_id, disk in disks.items()}
        return GuestStatus(str(answer.get("state", "")), str(answer.get("reason", "")), sizes)

    async def resize_disk(self, disk_id: str, size_bytes: int) -> None:
        await self._call("resize-disk", disk_id, str(size_bytes))

    async def freeze(self) -> None:
        """Let the guest flush its writes, then write nothing until `thaw`."""
        await self._call("freeze")

    async def thaw(self) -> None:
        await self._call("thaw")

    async def _call(self, verb: str, *arguments: str) -> dict[str, Any]:
        """Raises RetryLater while the machine cannot answer."""
        command = [PROGRAM, verb, *arguments]
        result = await engine_call(
            self._engine.exec(self._pod, command, container=POD_CONTAINER, timeout_seconds=TIMEOUT_SECONDS),
            waiting="the machine does not answer yet",
            retry_seconds=POLL_SECONDS,
        )
        answer = _parsed(result.stdout)
        if result.exit_code or answer is None:
            why = (answer or {}).get("error") or result.stderr.decode(errors="replace").strip()
            raise RetryLater(f"{verb}: {why or 'no answer that can be read'}", delay_seconds=POLL_SECONDS)
        return answer


def _parsed(output: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(output)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
