"""The steps that endpoints and jobs share, and endpoints, which need no others: start the pod, wait for
it, remove it, store the runtime state.

The program of an endpoint runs until it is stopped, and is restarted when it ends.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from neocloud.core.reconcile.reconciler import (
    CHILD_POLL_SECONDS,
    IDLE_RESYNC_SECONDS,
    RESYNC_SECONDS,
    Context,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.engines.base import PathRefused, Reference
from neocloud.engines.calls import engine_call
from neocloud.engines.manifest import Interface
from neocloud.messages.nebius.ai.v1 import EndpointStatus
from neocloud.services.ai.logs import KeptLogs, keep_log
from neocloud.services.ai.reconcile.images import WorkloadImages
from neocloud.services.ai.reconcile.scope import (
    WorkloadScope,
    find_filesystems,
    find_interface,
    image_note,
    read_scope,
    set_addresses,
    set_details,
)
from neocloud.services.ai.render import WorkloadView, workload_objects
from neocloud.services.ai.rules import command_words, disk_bytes, is_udp
from neocloud.services.ai.types import (
    ENDPOINT,
    POD,
    EndpointState,
    EndpointStateEnum,
    Reason,
    RuntimeState,
    namespace,
    read_runtime_state,
    write_runtime_state,
)
from neocloud.services.compute.public import preset, wait_for_capacity, wait_for_host


class WorkloadReconciler(ABC):
    """Base of the reconcilers of endpoints and jobs. A subclass defines the status."""

    kind = ""
    is_restarted = False
    """Whether the program runs again whenever it ends."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._engine = dependencies.engine
        self._store = dependencies.store
        self._home = dependencies.settings.home
        self._images = WorkloadImages(dependencies)

    async def scope(self, context: Context) -> WorkloadScope:
        return await read_scope(context, self._engine, self._store, 0)

    def steps(self, scope: WorkloadScope) -> Sequence[Step[WorkloadScope]]:
        if not scope.should_run:
            return (Step("Stop it", self._stop), Step("Remove its image", self._images.release))
        return (
            Step("Pull its image", self._pull),
            Step("Find addresses", find_interface),
            Step("Find filesystems", find_filesystems),
            Step("Wait for capacity", self._wait_for_capacity),
            Step("Start it", self._start),
            Step("Wait until it runs", self._wait),
        )

    def delete_steps(self, scope: WorkloadScope) -> Sequence[Step[WorkloadScope]]:
        return (
            Step("Stop it", self._stop),
            Step("Remove its namespace", self._remove_namespace),
            Step("Remove its image", self._images.release),
        )

    @abstractmethod
    def status(self, scope: WorkloadScope, result: ReconcileResult) -> ReconcileResult: ...

    async def _pull(self, scope: WorkloadScope) -> None:
        """Have the image of a registry; a pod that runs has it already."""
        if scope.current_pod is not None or not await self._images.is_of_registry(scope):
            return
        if scope.pod is not None:
            await self._stop(scope)  # the pod of an earlier attempt
        digest = await self._images.digest(scope)
        if digest != scope.runtime.image_digest:
            await self.store_runtime(scope, lambda runtime: replace(runtime, image_digest=digest))
        await self._images.require(scope)

    async def _wait_for_capacity(self, scope: WorkloadScope) -> None:
        await wait_for_capacity(scope.context)
        if scope.pod is None and not scope.runtime.started_at:  # one that ran continues
            await wait_for_host(scope.context)

    async def _start(self, scope: WorkloadScope) -> None:
        if scope.pod is not None and scope.current_pod is None:
            await self._stop(scope)  # the pod of an earlier attempt
        objects = workload_objects(self._view(scope, scope.interface or await find_interface(scope)))
        await engine_call(self._engine.apply(objects), failures={PathRefused: Reason.PATH_REFUSED})
        scope.observation = await self._engine.observe(namespace(scope.id))

    async def _wait(self, scope: WorkloadScope) -> None:
        if not scope.is_up:
            why = scope.pod.message if scope.pod else ""
            raise RetryLater(f"it is starting{f': {why}' if why else ''}", delay_seconds=CHILD_POLL_SECONDS)
        if not scope.runtime.started_at:
            now = scope.context.now.timestamp()
            await self.store_runtime(scope, lambda runtime: replace(runtime, started_at=now))

    async def _stop(self, scope: WorkloadScope) -> None:
        self._images.cancel(scope.id)
        if scope.pod is not None:
            if not scope.is_deleting:
                await engine_call(keep_log(self._engine, self._home, scope.id, scope.pod))
            await engine_call(self._engine.remove([Reference("Pod", namespace(scope.id), POD)]))
            scope.observation = await self._engine.observe(namespace(scope.id))

    async def _remove_namespace(self, scope: WorkloadScope) -> None:
        await engine_call(
            self._engine.remove([Reference("Namespace", namespace(scope.id), namespace(scope.id))])
        )
        await asyncio.to_thread(KeptLogs(self._home).remove, scope.id)

    async def store_runtime(
        self, scope: WorkloadScope, change: Callable[[RuntimeState], RuntimeState]
    ) -> None:
        """Change the stored state, unless a request has changed it since this run began: then run again."""
        before = scope.runtime

        def work(tx: Transaction) -> RuntimeState:
            stored = read_runtime_state(tx, scope.id)
            if tx.get(scope.id) is None or (stored is not None and stored != before):
                raise RetryLater("a request has changed it in the meantime", delay_seconds=0)
            changed = change(before)
            write_runtime_state(tx, scope.id, changed)
            return changed

        scope.runtime = await self._store.write(work)

    def _view(self, scope: WorkloadScope, interface: Interface) -> WorkloadView:
        spec = scope.spec
        shape = preset(spec.platform, spec.preset)
        return WorkloadView(
            id=scope.id,
            run=scope.run,
            image=scope.image,
            command=command_words(spec.container_command),
            args=command_words(spec.args),
            working_dir=spec.working_dir,
            variables={variable.name: variable.value for variable in spec.environment_variables},
            ports=[(port.container_port, "UDP" if is_udp(port) else "TCP") for port in spec.ports],
            files=[(file.container_path, file.content) for file in spec.injected_files],
            mounts=scope.mounts,
            interface=interface,
            vcpus=shape.vcpu,
            memory_mib=shape.memory_mib,
            disk_bytes=disk_bytes(spec) if scope.has_disk_limit else 0,
            gpus=shape.gpus,
            gpu_type=shape.gpu_type,
            shm_bytes=spec.shm_size_bytes,
            is_restarted=self.is_restarted,
        )


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
    return "", (result.waiting or image_note(scope)) if scope.should_run else ""
