"""The reconciler of endpoints: a program runs until it is stopped, and is restarted when it ends."""

from neocloud.core.reconcile.reconciler import IDLE_RESYNC_SECONDS, RESYNC_SECONDS, ReconcileResult
from neocloud.messages.nebius.ai.v1 import EndpointStatus
from neocloud.services.ai.reconcile.scope import WorkloadScope, set_addresses, set_details
from neocloud.services.ai.reconcile.workload import WorkloadReconciler
from neocloud.services.ai.types import ENDPOINT, EndpointState, EndpointStateEnum, Reason


class EndpointReconciler(WorkloadReconciler):
    kind = ENDPOINT
    is_restarted = True

    def status(self, scope: WorkloadScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        status = EndpointStatus.FromString(scope.context.resource.status)
        status.state = EndpointStateEnum.Value(state)
        set_addresses(status, scope, state)
        set_details(status, *_details(scope, result))
        resync = IDLE_RESYNC_SECONDS if state == EndpointState.STOPPED else RESYNC_SECONDS
        return result.with_status(status, state, resync)


def _state(scope: WorkloadScope, result: ReconcileResult) -> EndpointState:
    if scope.is_deleting:
        return EndpointState.DELETING
    if result.error is not None:
        return EndpointState.ERROR
    if not scope.should_run:
        return EndpointState.STOPPED if scope.pod is None else EndpointState.STOPPING
    if result.is_done:
        return EndpointState.RUNNING
    return EndpointState.STARTING if scope.interface is not None else EndpointState.PROVISIONING


def _details(scope: WorkloadScope, result: ReconcileResult) -> tuple[str, str]:
    if result.error is not None:
        return result.error.reason, str(result.error)
    pod = scope.current_pod
    if scope.should_run and pod is not None and pod.restart_count:
        times = "once" if pod.restart_count == 1 else f"{pod.restart_count} times"
        return Reason.RESTARTED, f"Its program ended {times} and was restarted. {pod.message}".strip()
    return "", result.waiting if scope.should_run else ""
