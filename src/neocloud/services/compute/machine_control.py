"""Client of the control program in a machine's pod: `machine-control VERB ARGUMENTS` prints one JSON line."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from neocloud.core.json_types import JsonObject
from neocloud.core.reconcile.reconciler import POLL_SECONDS, RetryLater
from neocloud.engines.base import Engine, Reference
from neocloud.engines.calls import engine_call
from neocloud.services.compute.types import POD_CONTAINER, namespace, pod_name

logger = logging.getLogger(__name__)

PROGRAM = "machine-control"
TIMEOUT_SECONDS = 45.0


@dataclass(frozen=True)
class GuestStatus:
    """The state of a guest; `state` is QEMU's name for it: running, paused, io-error, ..."""

    state: str
    reason: str = ""
    disk_sizes: Mapping[str, int] = field(default_factory=dict)
    """The sizes that the guest sees, by disk id."""

    @property
    def is_running(self) -> bool:
        return self.state == "running"


NOT_UP = "QEMU does not answer"
"""Begins the program's answer before QEMU has made its socket, as in each normal start."""


class MachineControl:
    """The control program of one machine."""

    def __init__(self, engine: Engine, instance_id: str) -> None:
        self._engine = engine
        self._pod = Reference("Pod", namespace(instance_id), pod_name(instance_id))

    async def status(self) -> GuestStatus:
        answer = await self._call("status")
        return GuestStatus(str(answer.get("state", "")), str(answer.get("reason", "")), _disk_sizes(answer))

    async def resize_disk(self, disk_id: str, size_bytes: int) -> None:
        await self._call("resize-disk", disk_id, str(size_bytes))

    async def freeze(self) -> None:
        """Let the guest flush its writes, then write nothing until `thaw`."""
        await self._call("freeze")

    async def thaw(self) -> None:
        await self._call("thaw")

    async def _call(self, verb: str, *arguments: str) -> JsonObject:
        """Run the program and return its answer. Raises RetryLater while the machine cannot answer."""
        command = [PROGRAM, verb, *arguments]
        result = await engine_call(
            self._engine.exec(self._pod, command, container=POD_CONTAINER, timeout_seconds=TIMEOUT_SECONDS),
            waiting="the machine does not answer yet",
            retry_seconds=POLL_SECONDS,
        )
        answer = _parsed(result.stdout)
        if result.exit_code or answer is None:
            why = str((answer or {}).get("error") or result.stderr.decode(errors="replace").strip())
            logger.debug("%s of %s: %s", verb, self._pod.namespace, why)
            if why.startswith(NOT_UP):
                raise RetryLater("the machine does not answer yet", delay_seconds=POLL_SECONDS)
            raise RetryLater(f"{verb}: {why or 'the answer is not JSON'}", delay_seconds=POLL_SECONDS)
        return answer


def _disk_sizes(answer: JsonObject) -> dict[str, int]:
    disks = answer.get("disks")
    found = disks.items() if isinstance(disks, dict) else ()
    return {
        disk_id: int(size)
        for disk_id, disk in found
        if isinstance(disk, dict) and isinstance(size := disk.get("size_bytes"), int)
    }


def _parsed(output: bytes) -> JsonObject | None:
    try:
        answer = json.loads(output)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
