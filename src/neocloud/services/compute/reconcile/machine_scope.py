"""The machine of an instance: the client of its control program, the data of one run, and the status.

`machine-control VERB ARGUMENTS` runs in the machine's pod and prints one line of JSON.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from neocloud.core import wire
from neocloud.core.json_values import as_object, is_object
from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    POLL_SECONDS,
    RESYNC_SECONDS,
    Context,
    ReconcileResult,
    RetryLater,
)
from neocloud.core.store.protocol import HistoryEntry, Resource, Store, Transaction
from neocloud.engines.base import Engine, Observation, ObservedPod, PodPhase, Reference
from neocloud.engines.calls import engine_call
from neocloud.messages.nebius.compute.v1 import Instance, InstanceStatus, NetworkInterfaceSpec
from neocloud.services.compute.disk_limits import DiskLimits, parse_limits
from neocloud.services.compute.preemption import finish_preemption, waiting_for
from neocloud.services.compute.render import InterfaceView, MachineView
from neocloud.services.compute.types import (
    POD_CONTAINER,
    InstanceReason,
    InstanceState,
    InstanceStateEnum,
    RuntimeState,
    StopReason,
    attached_disks,
    attachments_of,
    existing_disks,
    hostname,
    namespace,
    pod_name,
    read_runtime_state,
    write_runtime_state,
)

logger = logging.getLogger(__name__)


PROGRAM = "machine-control"
TIMEOUT_SECONDS = 45.0
ATTACH_SECONDS = 600.0
"""How long a disk may take that is a plain copy of an image or snapshot and is encrypted first."""


@dataclass(frozen=True)
class GuestStatus:
    """The state of a guest; `state` is QEMU's name for it: running, paused, io-error, ..."""

    state: str
    reason: str = ""
    disk_sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """The sizes that the guest sees, by disk id."""
    disk_limits: Mapping[str, DiskLimits] = field(default_factory=dict[str, DiskLimits])
    """The limits that QEMU enforces, by disk id; a machine of an earlier release enforces none."""

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
        state, reason = str(answer.get("state", "")), str(answer.get("reason", ""))
        return GuestStatus(state, reason, _disk_sizes(answer), _disk_limits(answer))

    async def resize_disk(self, disk_id: str, size_bytes: int) -> None:
        await self._call("resize-disk", disk_id, str(size_bytes))

    async def attach_disk(self, disk: Mapping[str, object]) -> None:
        """Attach a disk, described as in machine.json; nothing happens if it is attached."""
        await self._call("attach-disk", json.dumps(disk), timeout_seconds=ATTACH_SECONDS)

    async def detach_disk(self, disk_id: str) -> bool:
        """Request the guest to release a disk; False as long as it has not. May be repeated."""
        return bool((await self._call("detach-disk", disk_id)).get("is_detached", True))

    async def limit_disk(self, disk_id: str, limits: DiskLimits) -> None:
        await self._call("limit-disk", disk_id, json.dumps(limits.to_dict()))

    async def freeze(self) -> None:
        """Let the guest flush its writes, then write nothing until `thaw`."""
        await self._call("freeze")

    async def thaw(self) -> None:
        await self._call("thaw")

    async def _call(
        self, verb: str, *arguments: str, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> dict[str, object]:
        """Run the program and return its answer. Raises RetryLater while the machine cannot answer."""
        command = [PROGRAM, verb, *arguments]
        result = await engine_call(
            self._engine.exec(self._pod, command, container=POD_CONTAINER, timeout_seconds=timeout_seconds),
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


def _disk_sizes(answer: dict[str, object]) -> dict[str, int]:
    return {
        disk_id: int(size)
        for disk_id, disk in as_object(answer.get("disks")).items()
        if isinstance(size := as_object(disk).get("size_bytes"), int)
    }


def _disk_limits(answer: dict[str, object]) -> dict[str, DiskLimits]:
    reported = {
        disk_id: parse_limits(as_object(disk).get("limits"))
        for disk_id, disk in as_object(answer.get("disks")).items()
    }
    return {disk_id: limits for disk_id, limits in reported.items() if limits is not None}


def _parsed(output: bytes) -> dict[str, object] | None:
    try:
        answer = json.loads(output)
    except ValueError:
        return None
    return answer if is_object(answer) else None


@dataclass(frozen=True)
class Addresses:
    """The allocations of an instance and the interface that has their addresses."""

    interface: InterfaceView
    private: Resource
    public: Resource | None


@dataclass
class MachineScope:
    context: Context
    instance: Instance
    """The message as stored."""
    runtime: RuntimeState
    observation: Observation
    starting_since: datetime
    """When the current start began; now, if none is under way."""
    has_run: bool = False
    """Whether it has run since a request started it, also where its pod was lost meanwhile."""
    disks: list[Resource] = field(default_factory=list[Resource])
    """The boot disk first. Found by a step, like all that follows."""
    disk_keys: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The keys of encrypted disks, by id; only of a machine that is to run."""
    detaching: dict[str, bool] = field(default_factory=dict[str, bool])
    """The disks that the instance holds and its spec no longer has; True where it only reads one."""
    detaching_names: dict[str, str] = field(default_factory=dict[str, str])
    released: set[str] = field(default_factory=set[str])
    """The disks that this run has released."""
    addresses: Addresses | None = None
    view: MachineView | None = None
    guest: GuestStatus = GuestStatus("unknown")
    waiting_ids: frozenset[str] = frozenset()
    """The ids of resources that wait for the capacity of this machine."""

    @property
    def id(self) -> str:
        return self.instance.metadata.id

    @property
    def desired_interface(self) -> NetworkInterfaceSpec:
        return self.instance.spec.network_interfaces[0]

    @property
    def state(self) -> str:
        return self.context.resource.state

    @property
    def is_deleting(self) -> bool:
        return self.context.resource.deleted_at is not None

    @property
    def should_run(self) -> bool:
        return not (self.instance.spec.stopped or self.runtime.stop_reason or self.is_deleting)

    @property
    def pod(self) -> ObservedPod | None:
        return self.observation.pod(pod_name(self.id))

    @property
    def is_up(self) -> bool:
        return self.pod is not None and self.pod.phase is PodPhase.RUNNING

    def ended(self) -> StopReason:
        """Return why its pod has ended finally, if it has."""
        pod = self.pod
        if pod is None or not self.should_run or self.state == InstanceState.STOPPED:
            return StopReason.NONE  # a pod that ended while the cloud was stopped ended because of that
        ends = {PodPhase.SUCCEEDED: StopReason.GUEST, PodPhase.FAILED: StopReason.FAILED}
        return ends.get(pod.phase, StopReason.NONE)


_ENDED = re.compile(rf"\b{re.escape(POD_CONTAINER)} ended with code (\d{{1,3}})\b")


def exit_code(pod: ObservedPod | None) -> int | None:
    """Return the code with which a machine's program has ended, if it is known."""
    found = _ENDED.search(pod.message) if pod is not None else None
    return int(found[1]) if found else None


async def read_scope(context: Context, engine: Engine, store: Store) -> MachineScope:
    instance_id = context.resource.id

    instance = wire.resource_message(context.resource)
    wanted = existing_disks(instance.spec)

    def read(tx: Transaction) -> MachineScope:
        held = attachments_of(tx.held_by(instance_id))
        detaching = {disk_id: mode for disk_id, mode in held.items() if disk_id not in wanted}
        return MachineScope(
            context=context,
            instance=instance,
            runtime=read_runtime_state(tx, instance_id),
            observation=Observation(),
            starting_since=_starting_since(tx, context.resource, context.now),
            has_run=_has_run(tx, context.resource),
            detaching=detaching,
            detaching_names={row.id: row.name for row in map(tx.get, detaching) if row is not None},
            waiting_ids=frozenset(waiting_for(tx, instance_id)),
        )

    scope = await store.read(read)
    scope.observation = await engine.observe(namespace(instance_id))
    return scope


async def change_runtime_state(
    store: Store, scope: MachineScope, change: Callable[[RuntimeState], RuntimeState]
) -> None:
    """Change the stored runtime state. Raises RetryLater if spec or state has changed since this run
    began, so that the next run decides."""

    def work(tx: Transaction) -> RuntimeState:
        check_unchanged(tx, scope)
        changed = change(read_runtime_state(tx, scope.id))
        if changed.stop_reason is not StopReason.PREEMPTED:
            finish_preemption(tx, scope.id, scope.context.now)
        write_runtime_state(tx, scope.id, changed)
        return changed

    scope.runtime = await store.write(work)


def check_unchanged(tx: Transaction, scope: MachineScope) -> None:
    """Raise RetryLater if a request has changed spec or state since this run began."""
    row = tx.get(scope.id)
    version = scope.context.resource.resource_version
    if row is None or row.resource_version != version or row.state != scope.state:
        raise RetryLater("it was changed meanwhile", delay_seconds=0)


def _starting_since(tx: Transaction, row: Resource, now: datetime) -> datetime:
    """Read it from the state history, which is written together with the state."""
    if row.state != InstanceState.STARTING:
        return now
    return start_of_last(tx.history(resource_id=row.id), InstanceState.STARTING) or now


def _has_run(tx: Transaction, row: Resource) -> bool:
    """Read it from the state history: a start by a request comes after a stop, or is the first."""
    if row.state != InstanceState.STARTING:
        return row.state == InstanceState.RUNNING
    history = reversed(tx.history(resource_id=row.id))
    before = next((entry.state for entry in history if entry.state != InstanceState.STARTING), "")
    return before == InstanceState.RUNNING


def start_of_last(history: Sequence[HistoryEntry], state: str) -> datetime | None:
    """Return when the resource entered this state, in which it still is."""
    since = None
    for entry in reversed(history):
        if entry.state != state:
            break
        since = entry.at
    return since


def machine_status(scope: MachineScope, result: ReconcileResult) -> ReconcileResult:
    state = _state(scope, result)
    status = InstanceStatus()
    status.CopyFrom(scope.instance.status)
    status.state = InstanceStateEnum.Value(state)
    status.reconciling = bool(result.waiting)
    if scope.addresses is not None:
        del status.network_interfaces[:]
        _add_interface(status, scope, scope.addresses)
    if scope.disks:
        del status.disk_attachments[:]
        for (_, attached), disk in zip(attached_disks(scope.instance.spec), scope.disks, strict=False):
            is_managed = attached.WhichOneof("type") == "managed_disk"
            status.disk_attachments.add(id=disk.id, name=disk.name, is_managed=is_managed)
        for disk_id in scope.detaching:
            status.disk_attachments.add(id=disk_id, name=scope.detaching_names.get(disk_id, ""))
    resync = IDLE_RESYNC_SECONDS if state == InstanceState.STOPPED else RESYNC_SECONDS
    wakes = scope.waiting_ids if state == InstanceState.STOPPED else frozenset[str]()
    return replace(result, wakes=wakes | scope.released).with_status(status, state, resync)


def _state(scope: MachineScope, result: ReconcileResult) -> InstanceState:
    if scope.is_deleting:
        return InstanceState.DELETING
    if result.error is not None and result.error.reason != InstanceReason.DISK_NOT_RELEASED:
        return InstanceState.ERROR
    if not scope.should_run:
        return InstanceState.STOPPED if scope.pod is None else InstanceState.STOPPING
    if result.is_done or (scope.state == InstanceState.RUNNING and scope.is_up):
        return InstanceState.RUNNING
    return InstanceState.STARTING


def _add_interface(status: InstanceStatus, scope: MachineScope, addresses: Addresses) -> None:
    desired, view, card = scope.desired_interface, addresses.interface, addresses.interface.card
    shown = status.network_interfaces.add(
        index=0,
        name=desired.name,
        mac_address=card.mac,
        fqdn=f"{hostname(scope.id, scope.instance.spec)}.{view.domain}",
        security_groups=[{"id": group} for group in card.security_groups],
    )
    shown.ip_address.address = f"{card.address}/32"
    shown.ip_address.allocation_id = addresses.private.id
    if addresses.public is not None:
        shown.public_ip_address.address = f"{card.public_address}/32"
        shown.public_ip_address.allocation_id = addresses.public.id
        shown.public_ip_address.static = desired.public_ip_address.static
