"""Reconcile clusters: shared root, pods, nodes in Slurm, and their removal.

The order matters in one place: lost workers are reported to Slurm before their pods are created again, so
that jobs are requeued in the first second and not after Slurm's own timeout (SLURM-19, SLURM-20).
"""

import asyncio
import shutil
from collections.abc import Sequence
from functools import cache, partial

from neocloud.core.osfiles import make_folder
from neocloud.core.reconcile.reconciler import DAEMON_POLL_SECONDS, RETRY_SECONDS, Context, RetryLater, Step
from neocloud.core.service import Dependencies
from neocloud.engines.base import EngineError, EngineUnavailable, PodPhase, Reference
from neocloud.messages.neocloud.fleet.v1 import NodePoolSpec
from neocloud.services.compute.public import (
    HOST_POOL,
    MAINTENANCE,
    claim_name,
    filesystem_spec,
    no_host,
    wait_for_capacity,
    wait_for_host,
)
from neocloud.services.compute.types import FILESYSTEM, NAMESPACE_LABEL, ROOT_FILESYSTEM_LABEL
from neocloud.services.iam.types import GroupMembers
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.controller_logs import ControllerLogs
from neocloud.services.slurm.public import NODE_POOL
from neocloud.services.slurm.reconcile import elastic, nodes
from neocloud.services.slurm.reconcile.controllers import find_control
from neocloud.services.slurm.reconcile.login_nodes import count_sessions
from neocloud.services.slurm.reconcile.login_port import ClosedAddresses, free_port, is_running
from neocloud.services.slurm.reconcile.members import find_users
from neocloud.services.slurm.reconcile.nodes import find_interfaces, release_addresses
from neocloud.services.slurm.reconcile.requeued_jobs import restart_requeued_jobs
from neocloud.services.slurm.reconcile.scope import (
    ClusterScope,
    cluster_view,
    find_filesystems,
    read_scope,
)
from neocloud.services.slurm.reconcile.status import cluster_status
from neocloud.services.slurm.reconcile.storage_keys import StorageKeys
from neocloud.services.slurm.reconcile.users import keep_users, wait_for_users
from neocloud.services.slurm.render import (
    ACCOUNTING_POD,
    BALANCER_POD,
    CONTROLLER_POD,
    LOGIN_POD,
    ClusterView,
    configuration_version,
    namespace,
    render,
)
from neocloud.services.slurm.rules import LoginPorts
from neocloud.services.slurm.slurmrestd import SlurmUnreachable
from neocloud.services.slurm.types import CLUSTER, SHARED_ROOT_IMAGE, models_folder
from neocloud.settings.settings import LOOPBACK


async def keep_pools(scope: ClusterScope) -> None:
    """Create, change and delete pools as the spec says."""
    metadata, spec = scope.cluster.metadata, scope.cluster.spec
    wanted = {
        f"{metadata.id}-{each.name}": NodePoolSpec(
            cluster_id=metadata.id, node_set=each.name, wanted=each.count - each.spare_count
        )
        for each in spec.node_sets
        if spec.auto_repair and not each.HasField("elastic")
    }
    for row in await scope.context.list(NODE_POOL, metadata.parent_id):
        if row.owner_id == metadata.id and row.deleted_at is None and row.name not in wanted:
            await scope.context.delete_child(row.id)
    for name, pool in wanted.items():
        row = await scope.context.ensure_child(
            NODE_POOL, name=name, parent_id=metadata.parent_id, spec=pool, labels={}
        )
        scope.pools.add(row.id)


LOGIN_PORT = "login.port"
"""Name of the secret with the port that was chosen for a cluster whose spec has none."""


class ClusterReconciler:
    kind = CLUSTER
    status = staticmethod(cluster_status)

    def __init__(self, dependencies: Dependencies) -> None:
        self._login_ports = dependencies.provided.get(LoginPorts)
        self._login_addresses = dependencies.settings.login_addresses
        self._home = dependencies.settings.home
        self._platform_services = dependencies.settings.platform_services
        self._authority = dependencies.settings.storage_authority_file
        self._engine = dependencies.engine
        self._access = SlurmAccess.of(dependencies)
        self._members = dependencies.provided.get(GroupMembers)
        # Read once: the engine gets images when the cloud starts, and one built since must not replace pods.
        self._image = cache(partial(dependencies.settings.image, "slurm"))
        self._closed = ClosedAddresses()
        self._storage_keys = StorageKeys(dependencies)
        self._controller_logs = dependencies.provided.get(ControllerLogs)

    async def scope(self, context: Context) -> ClusterScope:
        return await read_scope(context, self._engine)

    def steps(self, scope: ClusterScope) -> Sequence[Step[ClusterScope]]:
        return (
            Step("Find the controller in control", partial(find_control, self._engine)),
            Step("Read the states of nodes", partial(elastic.read_power, self._access)),
            Step("Keep the pools of nodes", keep_pools),
            Step("Report lost workers", self._report_lost_workers),
            Step("Create the shared root", self._create_shared_root),
            Step("Find filesystems", find_filesystems),
            Step("Find addresses", find_interfaces),
            Step("Find users", partial(find_users, self._members)),
            Step("Grant keys for object storage", self._storage_keys.set_grants),
            Step("Wait for capacity", self._wait_for_capacity),
            Step("Remove powered-down workers", partial(elastic.remove_powered_down, self._engine)),
            Step("Start the pods", self._start_pods),
            Step("Charge elastic workers", elastic.charge_workers),
            Step("Wait for accounting", partial(_require_ready, ACCOUNTING_POD)),
            Step("Wait for the controller", self._wait_for_controller),
            Step("Follow the controller", self._follow_controller),
            Step("Load the configuration", self._load_configuration),
            Step("Keep elastic nodes", self._keep_elastic_nodes),
            Step("Drain workers for maintenance", self._drain_for_maintenance),
            Step("Wait for the login node", _require_login),
            Step("Count sessions", partial(count_sessions, self._access)),
            Step("Add and remove users", partial(keep_users, self._access)),
            Step("Deliver keys for object storage", self._storage_keys.deliver),
            Step("Retire surplus workers", self._retire_workers),
            Step("Release addresses", release_addresses),
            Step("Wait for the workers", self._wait_for_workers),
            Step("Load the topology", self._load_topology),
            Step("Restart requeued jobs", self._restart_requeued_jobs),
            Step("Wait for users", wait_for_users),
        )

    def delete_steps(self, scope: ClusterScope) -> Sequence[Step[ClusterScope]]:
        return (
            Step("End keys for object storage", self._storage_keys.end_all),
            Step("Stop the pods", self._stop_pods),
            Step("Delete the shared root and addresses", self._delete_owned),
            Step("Remove the network", self._remove_namespace),
        )

    async def _report_lost_workers(self, scope: ClusterScope) -> None:
        lost = scope.lost_workers()
        if not lost:
            return
        scope.is_recovering = True
        try:
            async with self._access.api(scope.cluster_id, scope.observation) as slurm:
                await nodes.report_lost(slurm, scope, lost)
        except SlurmUnreachable:
            pass  # the controller is lost too; by itself it would notice the lost jobs only after minutes

    async def _create_shared_root(self, scope: ClusterScope) -> None:
        known = Reference("Namespace", scope.namespace, scope.namespace)
        if known not in scope.observation.others:  # later the pods are applied with it
            await self._engine.apply([namespace(scope.namespace, scope.cluster.metadata.name)])
        metadata = scope.cluster.metadata
        filesystem = await scope.context.ensure_child(
            FILESYSTEM,
            name=f"{metadata.name}-shared-root",
            parent_id=metadata.parent_id,
            spec=filesystem_spec(scope.cluster.spec.shared_root.size_gibibytes),
            labels={NAMESPACE_LABEL: scope.namespace, ROOT_FILESYSTEM_LABEL: SHARED_ROOT_IMAGE},
        )
        scope.shared_root_id = filesystem.id
        if filesystem.state not in ("READY", "UPDATING"):  # where it grows only unused, nodes need not wait
            raise RetryLater(
                f"filesystem {filesystem.id} is {filesystem.state}", delay_seconds=DAEMON_POLL_SECONDS
            )

    async def _wait_for_capacity(self, scope: ClusterScope) -> None:
        await wait_for_capacity(scope.context)
        scope.no_host = no_host(await scope.context.list(HOST_POOL))
        if not scope.observation.pods:  # a cluster that has pods continues
            await wait_for_host(scope.context)

    async def _start_pods(self, scope: ClusterScope) -> None:
        surplus = scope.surplus_service_pods()
        if surplus:  # before the others start: one of them may have the port for ssh, or be in control
            await self._engine.remove(surplus)
            scope.observation = await self._engine.observe(scope.namespace)
        scope.view = await self._view(scope)
        first, later = elastic.split(scope, render(scope.view))
        try:
            has_changed = await self._engine.apply(first)
        except EngineUnavailable:
            raise
        except EngineError:
            if not await self._has_fewer_addresses(scope, scope.view):
                raise
            scope.view = await self._view(scope)
            first, later = elastic.split(scope, render(scope.view))
            has_changed = await self._engine.apply(first)
        await elastic.start_powered_up(self._engine, scope, later)
        self._closed.note_start(scope.cluster_id)
        if has_changed or later:
            scope.observation = await self._engine.observe(scope.namespace)

    async def _has_fewer_addresses(self, scope: ClusterScope, view: ClusterView) -> bool:
        """Return whether the login node did not start because of addresses that it now goes without."""
        scope.observation = await self._engine.observe(scope.namespace)
        if is_running(scope.observation, scope.ssh_pod):
            return False
        return await self._closed.note_failure(
            scope.context, view.ssh_host_addresses, scope.login_port, scope.closed_addresses
        )

    async def _view(self, scope: ClusterScope) -> ClusterView:
        if not scope.login_port:
            # Stored before the pod exists: another port after a crash would replace the pod.
            free = str(free_port(self._login_ports, self._login_addresses)).encode()
            port = await scope.context.secret(LOGIN_PORT, lambda: free)
            scope.cluster.status.login.port = int(port)
        claim = claim_name(scope.shared_root_id)
        folder = models_folder(self._home, scope.cluster_id)
        make_folder(folder)  # jobs run as users of the cluster
        scope.closed_addresses = await self._closed.of(
            scope.context,
            scope.login_port,
            self._login_addresses,
            is_running=is_running(scope.observation, scope.ssh_pod),
        )
        addresses = tuple(each for each in self._login_addresses if each not in scope.closed_addresses)
        return await cluster_view(
            *(scope, self._image(), claim, addresses or (LOOPBACK,), str(folder)),
            platform_services=self._platform_services,
            storage_authority=self._authority.read_text() if self._authority else "",
        )

    async def _wait_for_controller(self, scope: ClusterScope) -> None:
        await _require_controller(scope)
        try:
            async with self._access.api(scope.cluster_id, scope.observation) as slurm:
                if not (scope.cluster.status.slurm_version and nodes.has_settled(scope)):
                    scope.slurm_version = await slurm.version()  # another one comes with new pods
                scope.nodes = {node.name: node for node in await slurm.nodes()}
        except SlurmUnreachable as error:
            raise RetryLater(str(error), delay_seconds=DAEMON_POLL_SECONDS) from error

    async def _follow_controller(self, scope: ClusterScope) -> None:
        running = (pod for pod in map(scope.observation.pod, scope.controllers) if pod is not None)
        pods = [pod.reference for pod in running if pod.phase is PodPhase.RUNNING]
        self._controller_logs.follow(scope.cluster_id, pods, scope.pools)

    async def _load_configuration(self, scope: ClusterScope) -> None:
        """Reload a changed configuration: daemons read files only when they start."""
        version = configuration_version(scope.view or await self._view(scope), scope.nodes)
        if scope.cluster.status.configuration_version not in ("", version):
            async with self._access.api(scope.cluster_id, scope.observation) as slurm:
                await slurm.reconfigure()
        scope.configuration_version = version

    async def _load_topology(self, scope: ClusterScope) -> None:
        """Reload the configuration after nodes registered or left: Slurm computes their places only then."""
        if scope.view is None or not scope.view.topology:
            return
        version = configuration_version(scope.view, scope.nodes)
        if version != scope.configuration_version:
            async with self._access.api(scope.cluster_id, scope.observation) as slurm:
                await slurm.reconfigure()
            scope.configuration_version = version

    async def _keep_elastic_nodes(self, scope: ClusterScope) -> None:
        await elastic.keep_nodes(self._access, self._engine, scope, scope.view or await self._view(scope))

    async def _drain_for_maintenance(self, scope: ClusterScope) -> None:
        start = nodes.maintenance_start(await scope.context.list(MAINTENANCE), scope.context.now)
        if changes := nodes.maintenance_changes(scope, start):
            async with self._access.api(scope.cluster_id, scope.observation) as slurm:
                for name, state, reason in changes:
                    await slurm.set_node_state(name, state, reason)
                scope.nodes = {node.name: node for node in await slurm.nodes()}

    async def _retire_workers(self, scope: ClusterScope) -> None:
        if not nodes.has_surplus(scope):
            return
        async with self._access.api(scope.cluster_id, scope.observation) as slurm:
            await nodes.retire(slurm, self._engine, scope)
        scope.observation = await self._engine.observe(scope.namespace)

    async def _wait_for_workers(self, scope: ClusterScope) -> None:
        if nodes.missing(scope) or nodes.to_resume(scope):  # as it was when the controller answered
            async with self._access.api(scope.cluster_id, scope.observation) as slurm:
                await nodes.resume_returned(slurm, scope)
        waiting = nodes.missing(scope)
        if waiting:
            why = f". {scope.no_host}" if scope.waiting else ""
            delay = RETRY_SECONDS if scope.waiting else DAEMON_POLL_SECONDS
            raise RetryLater(f"not in Slurm yet: {', '.join(waiting)}{why}", delay_seconds=delay)

    async def _restart_requeued_jobs(self, scope: ClusterScope) -> None:
        if nodes.has_settled(scope):
            return  # a cluster may have thousands of jobs, too many to read at each run
        async with self._access.api(scope.cluster_id, scope.observation) as slurm:
            jobs = await slurm.jobs()
            lost = nodes.lost_under_jobs(scope, jobs)
            if lost:
                await nodes.report_lost(slurm, scope, lost)
            if await restart_requeued_jobs(slurm, jobs, scope.context.now) or lost:
                scope.is_recovering = True

    async def _stop_pods(self, scope: ClusterScope) -> None:
        self._controller_logs.forget(scope.cluster_id)
        await self._engine.remove([pod.reference for pod in scope.observation.pods])

    async def _delete_owned(self, scope: ClusterScope) -> None:
        if not await scope.context.delete_owned():
            raise RetryLater("resources of the cluster are being deleted", delay_seconds=DAEMON_POLL_SECONDS)

    async def _remove_namespace(self, scope: ClusterScope) -> None:
        await self._engine.remove([Reference("Namespace", scope.namespace, scope.namespace)])
        await asyncio.to_thread(
            shutil.rmtree, models_folder(self._home, scope.cluster_id), ignore_errors=True
        )


async def _require_controller(scope: ClusterScope) -> None:
    """Raise RetryLater until a controller is ready. One of two is enough; the status shows both."""
    pods = [scope.observation.pod(name) for name in scope.controllers]
    if not any(pod is not None and pod.ready for pod in pods):
        await _require_ready(CONTROLLER_POD, scope)


async def _require_login(scope: ClusterScope) -> None:
    """Raise RetryLater until a login node is ready. One of several is enough; the status shows the others."""
    if scope.has_balancer:
        await _require_ready(scope.ssh_pod, scope)
    pods = [scope.observation.pod(name) for name in scope.login_pods if name != BALANCER_POD]
    if not any(pod is not None and pod.ready for pod in pods):
        await _require_ready(LOGIN_POD, scope)


async def _require_ready(pod_name: str, scope: ClusterScope) -> None:
    pod = scope.observation.pod(pod_name)
    if pod is None or not pod.ready:
        reason = pod.message if pod and pod.message else "starting"
        raise RetryLater(f"{pod_name}: {reason}", delay_seconds=DAEMON_POLL_SECONDS)
