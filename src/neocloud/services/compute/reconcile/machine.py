"""Reconciles instances: addresses, disks, and a pod that runs QEMU.

An instance that should not run keeps its addresses and disks and has no pod. One that has ended by itself
stays off until it is started, unless its recovery policy says otherwise.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from neocloud.core.reconcile.reconciler import POLL_SECONDS, Context, RetryLater, Step
from neocloud.core.service import Dependencies
from neocloud.engines.base import Capabilities, PodPhase, Reference
from neocloud.engines.calls import engine_call
from neocloud.engines.manifest import Pod
from neocloud.services.compute.catalogue import preset
from neocloud.services.compute.hosts import wait_for_host
from neocloud.services.compute.preemption import give_up_waiting, wait_for_capacity
from neocloud.services.compute.reconcile.attachments import (
    IdentityTokens,
    acquire_gpus,
    disk_views,
    ensure_disks,
    find_addresses,
    find_keys,
    lacks_gpus,
    release_gpus,
    release_public_address,
    runs_without_gpus,
    shared_views,
)
from neocloud.services.compute.reconcile.machine_disks import (
    adjust_disks,
    attach_disks,
    close_disks,
    detaching_views,
    release_disks,
    report_kept,
)
from neocloud.services.compute.reconcile.machine_scope import (
    Addresses,
    MachineControl,
    MachineScope,
    change_runtime_state,
    exit_code,
    machine_status,
    read_scope,
)
from neocloud.services.compute.render import MachineView, machine_objects, machine_pod
from neocloud.services.compute.rules.user_data import complete_user_data
from neocloud.services.compute.started_pod import running_pod
from neocloud.services.compute.types import (
    INSTANCE,
    InstanceState,
    StopReason,
    ending,
    hostname,
    namespace,
    pod_name,
)

RESTART_POLICIES = ("OnFailure", "Never", "Always")
"""Policies by number of the recovery policy: RECOVER, FAIL, ALWAYS."""


class InstanceReconciler:
    kind = INSTANCE
    status = staticmethod(machine_status)

    def __init__(self, dependencies: Dependencies) -> None:
        self._engine = dependencies.engine
        self._store = dependencies.store
        self._settings = dependencies.settings
        self._tokens = IdentityTokens(dependencies)

    async def scope(self, context: Context) -> MachineScope:
        scope = await read_scope(context, self._engine, self._store)
        ended = scope.ended()
        if scope.instance.spec.stopped and scope.runtime.stop_reason:
            await self._set_stop_reason(scope, StopReason.NONE)  # a requested stop replaces it
        elif ended:
            await self._set_stop_reason(scope, ended, ending(exit_code(scope.pod)))
        return scope

    def steps(self, scope: MachineScope) -> Sequence[Step[MachineScope]]:
        resources = (Step("Find addresses", find_addresses), Step("Create its disks", ensure_disks))
        release = Step("Release what it no longer needs", release_public_address)
        if not scope.should_run:
            detach = Step("Detach other disks", self._release_disks)
            return (Step("Stop the machine", self._stop), *resources, release, detach)
        return (
            *resources,
            Step("Find the keys of its disks", self._find_keys),
            Step("Wait for capacity", self._wait_for_capacity),
            Step("Start the machine", self._start),
            Step("Wait for the guest", self._wait_for_guest),
            Step("Attach its disks", self._attach_disks),
            Step("Adjust its disks", self._adjust_disks),
            release,
            Step("Detach other disks", self._detach_disks),
        )

    def delete_steps(self, scope: MachineScope) -> Sequence[Step[MachineScope]]:
        return (
            Step("Stop the machine", self._stop),
            Step("Remove its namespace", self._remove_namespace),
        )

    async def _find_keys(self, scope: MachineScope) -> None:
        await find_keys(scope, self._store)

    async def _wait_for_capacity(self, scope: MachineScope) -> None:
        await wait_for_capacity(scope.context)
        if scope.pod is None and not scope.has_run:  # one that ran continues
            await wait_for_host(scope.context)

    async def _start(self, scope: MachineScope) -> None:
        pod = scope.pod
        if pod is not None and pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED):
            await self._remove_pod(scope)  # it ended when the cloud was stopped
            scope.observation = await self._engine.observe(namespace(scope.id))
            pod = scope.pod
        capabilities = await self._engine.capabilities()
        started = scope.runtime.pod_spec if pod is not None else {}
        view = await self._view(scope, scope.addresses or await find_addresses(scope), capabilities)
        if started:
            view = replace(view, started=started, detaching=detaching_views(scope))
        rendered = machine_pod(view)
        # Where the engine is boundless, nothing really runs.
        if started and lacks_gpus(started, rendered) and not capabilities.is_boundless:
            if scope.is_up:
                raise runs_without_gpus()
            await self._remove_pod(
                scope
            )  # after a restart of the host its IOMMU groups may have other numbers
            started = {}
            view = replace(view, started={}, detaching=())
        if not started:
            await self._store_pod_spec(scope, machine_pod(view))
        await self._apply(scope, replace(view, started=scope.runtime.pod_spec))
        scope.observation = await self._engine.observe(namespace(scope.id))

    async def _apply(self, scope: MachineScope, view: MachineView) -> None:
        """Make the machine as in the view, in the pod that it was started in."""
        scope.view = view
        pod = running_pod(machine_pod(view), view.started)
        await engine_call(
            self._engine.apply([*machine_objects(view), *await self._tokens.objects(scope), pod])
        )

    async def _attach_disks(self, scope: MachineScope) -> None:
        await attach_disks(scope, self._control(scope))

    async def _adjust_disks(self, scope: MachineScope) -> None:
        await adjust_disks(scope, self._control(scope), self._store)

    async def _detach_disks(self, scope: MachineScope) -> None:
        """Close the disks that the spec no longer has, and release them for other machines."""
        kept = await close_disks(scope, self._control(scope))
        if kept != set(scope.detaching) and scope.view is not None:
            staying = tuple(disk for disk in scope.view.detaching if disk.id in kept)
            await self._apply(scope, replace(scope.view, detaching=staying))  # refused while one is in use
            await release_disks(scope, self._store, set(scope.detaching) - kept)
        await report_kept(scope, self._store, kept)

    async def _release_disks(self, scope: MachineScope) -> None:
        """Release the disks that the spec no longer has: the machine is off."""
        if scope.pod is None:
            await release_disks(scope, self._store, set(scope.detaching))
            await report_kept(scope, self._store, set())

    def _control(self, scope: MachineScope) -> MachineControl:
        return MachineControl(self._engine, scope.id)

    async def _wait_for_guest(self, scope: MachineScope) -> None:
        if not scope.is_up:
            why = scope.pod.message if scope.pod else ""
            raise RetryLater(f"its pod is starting{f': {why}' if why else ''}", delay_seconds=POLL_SECONDS)
        scope.guest = await self._control(scope).status()
        if not scope.guest.is_running and scope.state != InstanceState.RUNNING:
            raise RetryLater(
                f"the guest is {scope.guest.state}: {scope.guest.reason}", delay_seconds=POLL_SECONDS
            )
        self._show_starting(scope)

    def _show_starting(self, scope: MachineScope) -> None:
        """Stay STARTING long enough for clients that poll for that state every few seconds."""
        if scope.state == InstanceState.RUNNING:
            return
        shown_until: datetime = scope.starting_since + timedelta(
            seconds=self._settings.shortest_start_seconds
        )
        rest = (shown_until - scope.context.now).total_seconds()
        if rest > 0:
            raise RetryLater("the guest runs; it is shown as starting for a moment", delay_seconds=rest)

    async def _view(
        self, scope: MachineScope, addresses: Addresses, capabilities: Capabilities
    ) -> MachineView:
        spec = scope.instance.spec
        shape = preset(spec.resources.platform, spec.resources.preset)
        return MachineView(
            id=scope.id,
            name=scope.instance.metadata.name,
            parent_id=scope.instance.metadata.parent_id,
            region=self._settings.region,
            image=self._settings.image("launcher"),
            vcpus=shape.vcpu,
            memory_mib=shape.memory_mib,
            acceleration=capabilities.details.get("acceleration", "tcg").split()[0],
            restart_policy=RESTART_POLICIES[spec.recovery_policy],
            hostname=hostname(scope.id, spec),
            interface=addresses.interface,
            disks=disk_views(scope),
            filesystems=await shared_views(scope),
            user_data=complete_user_data(spec.cloud_init_user_data),
            gpus=await acquire_gpus(self._store, self._engine, scope, shape, capabilities),
            has_identity=bool(spec.service_account_id),
        )

    async def _stop(self, scope: MachineScope) -> None:
        if scope.pod is not None:
            await self._remove_pod(scope)
            scope.observation = await self._engine.observe(namespace(scope.id))

        if not scope.should_run:
            await release_gpus(self._store, scope.id)
            await give_up_waiting(scope.context)

    async def _remove_pod(self, scope: MachineScope) -> None:
        pod = Reference("Pod", namespace(scope.id), pod_name(scope.id))
        await engine_call(self._engine.remove([pod]))

    async def _remove_namespace(self, scope: MachineScope) -> None:
        name = namespace(scope.id)
        await engine_call(self._engine.remove([Reference("Namespace", name, name)]))

    async def _store_pod_spec(self, scope: MachineScope, pod: Pod) -> None:
        """Store the spec before the pod exists: after a crash the same pod must be created."""
        await change_runtime_state(self._store, scope, lambda runtime: replace(runtime, pod_spec=pod.spec()))

    async def _set_stop_reason(self, scope: MachineScope, reason: StopReason, ended: str = "") -> None:
        await change_runtime_state(
            self._store, scope, lambda runtime: replace(runtime, stop_reason=reason, ended=ended)
        )
