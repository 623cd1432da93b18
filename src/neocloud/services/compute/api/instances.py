"""Verbs of instances beyond the standard six, the state of their machines, and status fields that are
computed when a resource is read.

Power state and serial log of an instance's machine are read from the engine at each call.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from neocloud.core import contract, wire
from neocloud.core.readers import TransactionReader
from neocloud.core.reconcile.reconciler import RetryLater
from neocloud.core.service import Call, Method, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.engines.base import EngineError, PodPhase, Reference
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.compute.v1 import (
    BatchGetRequest,
    BatchGetResponse,
    Disk,
    DiskStatus,
    GpuCluster,
    Instance,
    InstanceSpec,
    InstanceStatus,
    StartInstanceRequest,
    StopInstanceRequest,
)
from neocloud.messages.neocloud.compute.v1 import (
    GetMachineRequest,
    Machine,
    ReadSerialLogRequest,
    ReadSerialLogResponse,
)
from neocloud.services.compute.api.maintenance import active_maintenance
from neocloud.services.compute.encryption import ENCRYPTED, NOT_ENCRYPTED, is_encrypted
from neocloud.services.compute.maintenance import is_under_maintenance, refusal
from neocloud.services.compute.preemption import finish_preemption, preemption_event
from neocloud.services.compute.public import check_capacity, instance_demands
from neocloud.services.compute.reconcile.machine_scope import MachineControl
from neocloud.services.compute.rules.instance import pricing_violations
from neocloud.services.compute.types import (
    INSTANCE,
    POD_CONTAINER,
    InstanceState,
    InstanceStateEnum,
    RuntimeState,
    StopReason,
    ending,
    namespace,
    pod_name,
    read_runtime_state,
    write_runtime_state,
)


def gpu_cluster_view(cluster: GpuCluster, tx: Transaction, now: datetime) -> None:
    """Add the cluster's instances and their paths in the fabric."""
    for row in tx.list(INSTANCE, parent_id=cluster.metadata.parent_id)[0]:
        if InstanceSpec.FromString(row.spec).gpu_cluster.id != cluster.metadata.id:
            continue
        cluster.status.instances.append(row.id)
        path = InstanceStatus.FromString(row.status).infiniband_topology_path.path
        if path:
            cluster.status.infiniband_topology_path.instances.add(instance_id=row.id, path=path)


def disk_view(disk: Disk, tx: Transaction, now: datetime) -> None:
    """Say whether the disk is encrypted, and of a machine that has it which limits it enforces on it and
    whether it keeps it."""
    said = [disk.status.state_description]
    if disk.status.state == DiskStatus.READY and not said[0]:
        said.append(ENCRYPTED if is_encrypted(tx, disk.metadata.id) else NOT_ENCRYPTED)
    said += _said_by_machine(disk, tx)
    disk.status.state_description = " ".join(filter(None, said))


def _said_by_machine(disk: Disk, tx: Transaction) -> Iterator[str]:
    holders = [disk.status.read_write_attachment, *disk.status.read_only_attachments]
    row = tx.get(next(filter(None, holders), ""))
    if row is None or row.kind != INSTANCE or row.state != InstanceState.RUNNING:
        return
    runtime, name = read_runtime_state(tx, row.id), row.name or row.id
    limits = runtime.disk_limits.get(disk.metadata.id)
    if limits is not None:
        yield f"Limited by its machine {name}: {limits}."
    if disk.metadata.id in runtime.detaching:
        yield f"Being detached: the guest of {name} has not released it."


def instance_view(instance: Instance, tx: Transaction, now: datetime) -> None:
    """Add the maintenance that is announced for the instance."""
    if events := active_maintenance(tx, instance.metadata.id):
        instance.status.maintenance_event_id = events[-1].id


SERVICE = "nebius.compute.v1.InstanceService"


async def start(call: Call, request: StartInstanceRequest) -> Write[Operation]:
    inventory = await call.dependencies.engine.capabilities()
    now = call.dependencies.clock.now()

    def work(tx: Transaction) -> NewOperation:
        row = instance_row(tx, request.id)
        runtime = read_runtime_state(tx, row.id)
        is_off = row.state in (InstanceState.STOPPED, InstanceState.STOPPING, InstanceState.ERROR)
        if is_under_maintenance(row):
            raise refusal(tx, row)
        if not is_off and not runtime.stop_reason:
            return NewOperation(row, _title(row))
        new = wire.resource_message(row)
        new.spec.stopped = False
        reader = TransactionReader(tx, now, inventory=inventory, provided=call.dependencies.provided)
        if violations := list(pricing_violations(new, None, reader)):
            raise contract.bad_request(violations)
        # A stopped instance holds no capacity.
        may_preempt = not new.spec.HasField("preemptible")
        demanded = instance_demands(new.spec)
        check_capacity(reader, row, demanded, [], may_wait=True, may_preempt=may_preempt)
        write_runtime_state(tx, row.id, replace(runtime, stop_reason=StopReason.NONE))
        finish_preemption(tx, row.id, now)
        return _change(tx, call, row, new, InstanceState.STARTING)

    return Write(work)


async def stop(call: Call, request: StopInstanceRequest) -> Write[Operation]:
    def work(tx: Transaction) -> NewOperation:
        row = instance_row(tx, request.id)
        new = wire.resource_message(row)
        if new.spec.stopped and row.state == InstanceState.STOPPED:
            return NewOperation(row, _title(row))
        new.spec.stopped = True
        return _change(tx, call, row, new, InstanceState.STOPPING)

    return Write(work)


def instance_row(tx: Transaction, instance_id: str) -> Resource:
    return row_to_change(tx, INSTANCE, instance_id, "instance")


def _change(
    tx: Transaction,
    call: Call,
    row: Resource,
    new: Instance,
    state: InstanceState,
) -> NewOperation:
    status = InstanceStatus.FromString(row.status)
    status.state, status.reconciling = InstanceStateEnum.Value(state), True
    spec = new.spec.SerializeToString()
    changed = replace(
        row,
        spec=spec,
        status=status.SerializeToString(),
        state=state,
        updated_at=call.dependencies.clock.now(),
        resource_version=row.resource_version + (spec != row.spec),
    )
    tx.update(changed)
    return NewOperation(changed, _title(row), is_done=False)


def _title(row: Resource) -> str:
    return f"instance {row.name}"


async def batch_get(call: Call, request: BatchGetRequest) -> BatchGetResponse:
    """Return the instances. The server has checked that the caller may read each of them."""

    def read(tx: Transaction) -> BatchGetResponse:
        answer = BatchGetResponse()
        for identifier in request.instance_ids:
            row = tx.get(identifier)
            if row is None or row.kind != INSTANCE:
                answer.items[identifier].error.CopyFrom(
                    contract.not_found("instance", identifier).status("compute")
                )
            else:
                instance = answer.items[identifier].instance
                instance.CopyFrom(wire.resource_message(row))
                instance_view(instance, tx, call.dependencies.clock.now())
        return answer

    return await call.dependencies.store.read(read)


MACHINE_SERVICE = "neocloud.compute.v1.MachineService"
OFF = "off"


async def get_machine(call: Call, request: GetMachineRequest) -> Machine:
    engine, instance_id = call.dependencies.engine, request.instance_id
    reason, ended = await call.dependencies.store.read(
        lambda tx: (_stop_reason(tx, instance_id), _runtime_state(tx, instance_id).ended)
    )
    capabilities = await engine.capabilities()
    answer = Machine(
        instance_id=instance_id,
        power=OFF,
        reason=reason,
        acceleration=capabilities.details.get("acceleration", "").partition(" ")[0],
        ended=ended if reason in (StopReason.GUEST, StopReason.FAILED) else "",
    )
    pod = (await engine.observe(namespace(instance_id))).pod(pod_name(instance_id))
    if pod is None or pod.phase is not PodPhase.RUNNING:
        return answer
    answer.restarts, answer.ended = pod.restart_count, ending(pod.last_exit) if pod.restart_count else ""
    if pod.started_at is not None:
        answer.started_at.FromDatetime(pod.started_at)
    try:
        guest = await MachineControl(engine, instance_id).status()
    except RetryLater as error:
        answer.power, answer.reason = "unknown", str(error)
    else:
        answer.power, answer.reason = guest.state, guest.reason
    return answer


async def read_serial_log(call: Call, request: ReadSerialLogRequest) -> ReadSerialLogResponse:
    """Return the log since the machine was started; a machine that is off has none."""
    await call.dependencies.store.read(lambda tx: _runtime_state(tx, request.instance_id))
    pod = Reference("Pod", namespace(request.instance_id), pod_name(request.instance_id))
    try:
        page = await call.dependencies.engine.log_page(
            pod, container=POD_CONTAINER, first_line=request.first_line, tail=request.tail
        )
    except EngineError as error:
        raise contract.bad_state(
            request.instance_id, f"{request.instance_id} has no machine now: {error} Start it first."
        ) from error
    return ReadSerialLogResponse(lines=page.lines, next_line=page.next_line)


def _stop_reason(tx: Transaction, instance_id: str) -> str:
    reason = _runtime_state(tx, instance_id).stop_reason
    event = preemption_event(tx, instance_id) if reason is StopReason.PREEMPTED else None
    if event is None:
        return str(reason)
    return (
        f"{reason} at {event.created_at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC; it stays off until it is started"
    )


def _runtime_state(tx: Transaction, instance_id: str) -> RuntimeState:
    return read_runtime_state(tx, instance_row(tx, instance_id).id)


METHODS = (
    Method(
        f"{SERVICE}/Start",
        start,
        "compute.instances.start",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{SERVICE}/Stop",
        stop,
        "compute.instances.stop",
        target=lambda request: request.id,
        is_change=True,
        is_ending=True,
    ),
    Method(f"{SERVICE}/BatchGet", batch_get, ""),
    Method(
        f"{MACHINE_SERVICE}/Get",
        get_machine,
        "compute.instances.get",
        target=lambda request: request.instance_id,
    ),
    Method(
        f"{MACHINE_SERVICE}/ReadSerialLog",
        read_serial_log,
        "compute.instances.readSerialLog",
        target=lambda request: request.instance_id,
    ),
)
