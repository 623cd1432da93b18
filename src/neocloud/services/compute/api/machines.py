"""The power state and the serial log of an instance's machine, read from the engine at each call."""

from neocloud.core import contract
from neocloud.core.reconcile.reconciler import RetryLater
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.engines.base import EngineError, PodPhase, Reference
from neocloud.messages.neocloud.compute.v1 import (
    GetMachineRequest,
    Machine,
    ReadSerialLogRequest,
    ReadSerialLogResponse,
)
from neocloud.services.compute.api.instances import instance_row
from neocloud.services.compute.machine_control import MachineControl
from neocloud.services.compute.runtime_state import RuntimeState, read_runtime_state
from neocloud.services.compute.types import POD_CONTAINER, namespace, pod_name

SERVICE = "neocloud.compute.v1.MachineService"
OFF = "off"


async def get(call: Call, request: GetMachineRequest) -> Machine:
    engine, instance_id = call.dependencies.engine, request.instance_id
    runtime = await call.dependencies.store.read(lambda tx: _runtime_state(tx, instance_id))
    capabilities = await engine.capabilities()
    answer = Machine(
        instance_id=instance_id,
        power=OFF,
        reason=str(runtime.stop_reason),
        acceleration=capabilities.details.get("acceleration", "").partition(" ")[0],
    )
    pod = (await engine.observe(namespace(instance_id))).pod(pod_name(instance_id))
    if pod is None or pod.phase is not PodPhase.RUNNING:
        return answer
    answer.restarts = pod.restart_count
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


def _runtime_state(tx: Transaction, instance_id: str) -> RuntimeState:
    return read_runtime_state(tx, instance_row(tx, instance_id).id)


METHODS = (
    Method(
        f"{SERVICE}/Get",
        get,
        "compute.instances.get",
        target=lambda request: request.instance_id,
    ),
    Method(
        f"{SERVICE}/ReadSerialLog",
        read_serial_log,
        "compute.instances.readSerialLog",
        target=lambda request: request.instance_id,
    ),
)
