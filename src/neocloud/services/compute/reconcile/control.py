"""Talking to the control program in a machine's pod: `machine-control VERB ARGUMENTS`, one JSON line back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neocloud.core.reconcile.reconciler import RetryLater
from neocloud.engines.base import Engine, EngineError, Reference
from neocloud.services.compute.resources.instance import POD_CONTAINER, namespace, pod_name

PROGRAM = "machine-control"
TIMEOUT_SECONDS = 45.0
POLL_SECONDS = 0.5


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
        answer = await self._ask("status")
        disks = answer.get("disks") or {}
        sizes = {disk_id: int(disk["size_bytes"]) for disk_id, disk in disks.items()}
        return GuestStatus(str(answer.get("state", "")), str(answer.get("reason", "")), sizes)

    async def resize_disk(self, disk_id: str, size_bytes: int) -> None:
        await self._ask("resize-disk", disk_id, str(size_bytes))

    async def freeze(self) -> None:
        """Let the guest write out what it holds, then write nothing until `thaw`."""
        await self._ask("freeze")

    async def thaw(self) -> None:
        await self._ask("thaw")

    async def _ask(self, verb: str, *arguments: str) -> dict[str, Any]:
        """Raises RetryLater while the machine cannot answer."""
        try:
            result = await self._engine.exec(
                self._pod,
                [PROGRAM, verb, *arguments],
                container=POD_CONTAINER,
                timeout_seconds=TIMEOUT_SECONDS,
            )
        except EngineError as error:
            raise RetryLater(
                f"the machine does not answer yet: {error}", delay_seconds=POLL_SECONDS
            ) from error
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
