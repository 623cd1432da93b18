"""The scope of one run over a cluster: its spec, its pods, its nodes in Slurm, its filesystems and secrets.

It is read again in every run, so that no step acts on an old state. `cluster_status` computes the status from
it, once at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from neocloud.core import contract, wire
from neocloud.core.reconcile.reconciler import (
    CHILD_POLL_SECONDS,
    Context,
    Failed,
    RetryLater,
)
from neocloud.engines.base import Engine, Observation, ObservedPod, PodPhase, Reference
from neocloud.engines.manifest import Interface
from neocloud.messages.neocloud.slurm.v1 import (
    Cluster,
    ClusterSpec,
    ClusterStatus,
    NodeSet,
    StorageKeyStatus,
    Topology,
    UserStatus,
)
from neocloud.services.compute.public import claim_reference, preset
from neocloud.services.compute.types import FilesystemState
from neocloud.services.slurm.reconcile.keys import cluster_secrets, public_host_key
from neocloud.services.slurm.render import (
    ACCOUNTING_POD,
    BALANCER_POD,
    BOOTS_LABEL,
    CONTROLLER_PODS,
    MODELS_LABEL,
    ROLE_LABEL,
    ClusterView,
    MountView,
    NodeSetView,
    PlaceView,
    SubmountView,
)
from neocloud.services.slurm.slurm_records import PowerState, SlurmNode
from neocloud.services.slurm.types import (
    LinuxUser,
    Reason,
    Secret,
    memory_of_submounts,
    namespace,
    worker_names,
)

_USABLE_FILESYSTEM = frozenset({FilesystemState.READY, FilesystemState.UPDATING})


@dataclass
class ClusterScope:
    context: Context
    cluster: Cluster
    """The message as stored."""
    observation: Observation
    view: ClusterView | None = None
    """Set by the step that starts the pods."""
    nodes: dict[str, SlurmNode] = field(default_factory=dict[str, SlurmNode])
    """Nodes by name, as Slurm last reported them in this run."""
    power: dict[str, PowerState] = field(default_factory=dict[str, PowerState])
    """Power states of nodes of elastic sets, by name, as the run began; from the status until `set_power`."""
    start_failure: str = ""
    """Why a worker of an elastic set did not start in this run."""
    no_host: str = ""
    """Why nothing new is started on any host; "" where one takes new work."""
    slurm_version: str = ""
    configuration_version: str = ""
    is_recovering: bool = False
    """A lost node or a requeued job was found: run again soon."""
    shared_root_id: str = ""
    interfaces: dict[str, Interface] = field(default_factory=dict[str, Interface])
    """Interfaces by pod name; set by the step that finds addresses."""
    mounts: tuple[MountView, ...] = ()
    """Filesystems of users; set by the step that finds them."""
    closed_addresses: Sequence[str] = ()
    """Addresses of the host that the login node goes without; set with the view."""
    wanted: list[LinuxUser] = field(default_factory=list[LinuxUser])
    """Users that the cluster should have; set by the step that finds them."""
    left_out: int = 0
    """People in groups beyond those that a cluster may have."""
    users: dict[str, UserStatus] | None = None
    """Users by name, set by the step that changes them. None: those of the status."""
    former_users: dict[str, UserStatus] = field(default_factory=dict[str, UserStatus])
    """Set with the users."""
    users_left: int = 0
    """How many users another run adds or removes."""
    last_uid: int = 0
    granted: Mapping[str, str] = field(default_factory=dict[str, str])
    """Accounts that the cluster may have keys of, and the grants; set after the users that it should have."""
    storage_keys: list[StorageKeyStatus] | None = None
    """The keys on the nodes; None: those of the status."""
    storage_problem: str = ""
    """Why keys for object storage were not delivered in this run."""
    in_control: str = ""
    """The controller in control, where there are two; "" while none is known."""
    sessions: dict[str, int] = field(default_factory=dict[str, int])
    """Sessions on drained login nodes, set by the step that counts them."""
    pools: set[str] = field(default_factory=set[str])
    """The ids of the pools of its workers; set by the step that keeps them."""
    reported: set[str] = field(default_factory=set[str])
    """Lost workers that Slurm knows of by now. The status remembers the start of the others, so that a worker
    that was restarted during this run, or while Slurm did not answer, is reported by a later run."""

    @property
    def cluster_id(self) -> str:
        return self.cluster.metadata.id

    @property
    def namespace(self) -> str:
        return namespace(self.cluster_id)

    @property
    def state(self) -> str:
        """The state that the last run found."""
        return ClusterStatus.State.Name(self.cluster.status.state)

    @property
    def all_workers(self) -> dict[str, str]:
        """The node sets of all workers of the spec, by the name of the worker."""
        return worker_names(self.cluster.spec)

    @property
    def workers(self) -> dict[str, str]:
        """The same of the desired workers: all but those that are powered down."""
        absent = self.absent
        return {name: node_set for name, node_set in self.all_workers.items() if name not in absent}

    @cached_property
    def elastic(self) -> dict[str, str]:
        """The same of the workers of elastic sets, desired or not."""
        sets = {each.name for each in self.cluster.spec.node_sets if each.HasField("elastic")}
        return {name: node_set for name, node_set in self.all_workers.items() if node_set in sets}

    @property
    def absent(self) -> frozenset[str]:
        """Workers of elastic sets that are powered down. One that Slurm does not know is, unless it stays."""
        return frozenset(
            name
            for name in self.elastic
            if (self.power[name].is_off if name in self.power else not self.always_stays(name))
        )

    @property
    def powering_up(self) -> frozenset[str]:
        return frozenset(name for name in self.elastic if name in self.power and self.power[name].is_starting)

    @property
    def waiting(self) -> frozenset[str]:
        """Desired workers that wait for a host that takes new work: they do not run, and are no restarts."""
        if not self.no_host:
            return frozenset()
        ran = {each.name for each in self.cluster.status.nodes if each.HasField("started_at")}
        may_start = ran - self.powering_up
        return frozenset(
            name for name in self.workers if name not in may_start and self.observation.pod(name) is None
        )

    @cached_property
    def seen_powering_up(self) -> frozenset[str]:
        """Nodes that were being powered up when the last run ended."""
        known = status_power(self.cluster.status)
        return frozenset(name for name, power in known.items() if power.is_starting)

    def always_stays(self, worker: str) -> bool:
        """Return whether the worker is one of those of its elastic set that are never powered down."""
        (node_set,) = (each for each in self.cluster.spec.node_sets if each.name == self.all_workers[worker])
        return int(worker.removeprefix(f"{node_set.name}-")) < node_set.elastic.min_count

    def set_power(self, nodes: dict[str, SlurmNode]) -> None:
        """Take the states from Slurm."""
        self.nodes = nodes
        self.power = {name: PowerState.of(node.states) for name, node in nodes.items()}

    def reports_boots(self, worker: str) -> bool:
        """Return whether the worker tells Slurm of its start. A running pod is not replaced for it."""
        pod = self.observation.pod(worker)
        return worker in self.elastic if pod is None else BOOTS_LABEL in pod.labels

    @property
    def pod_names(self) -> tuple[str, ...]:
        """All pods of the spec, also those that are powered down."""
        return (*self.controllers, ACCOUNTING_POD, *self.login_pods, *self.all_workers)

    @property
    def controllers(self) -> tuple[str, ...]:
        return CONTROLLER_PODS[: self.cluster.spec.controller.count or 1]

    @property
    def login_count(self) -> int:
        return self.cluster.spec.login.count or 1

    @property
    def has_balancer(self) -> bool:
        """Return whether sessions pass through a balancer: before several login nodes, and one that was
        before several stays until it stops for another reason.
        """
        return self.login_count > 1 or self.observation.pod(BALANCER_POD) is not None

    @property
    def login_pods(self) -> tuple[str, ...]:
        """The login nodes, and the balancer if there is one."""
        nodes = tuple(f"login-{index}" for index in range(self.login_count))
        return (*nodes, BALANCER_POD) if self.has_balancer else nodes

    @property
    def drained_login_nodes(self) -> tuple[str, ...]:
        drained = self.cluster.spec.login.drained_nodes
        return tuple(name for name in self.login_pods if name in drained)

    @property
    def ssh_pod(self) -> str:
        """The pod that has the host's port for ssh."""
        return self.login_pods[-1]

    @property
    def login_port(self) -> int:
        return self.cluster.spec.login.port or self.cluster.status.login.port

    def may_show_models(self, worker: str) -> bool:
        """Return whether the worker's pod mounts the folder for models or does not exist yet. A running pod
        without the folder is kept.
        """
        pod = self.observation.pod(worker)
        return pod is None or MODELS_LABEL in pod.labels

    def lost_workers(self) -> dict[str, str]:
        """Return desired workers that ran in the last run and are gone or were restarted since, with the
        reason."""
        lost: dict[str, str] = {}
        for known in self.cluster.status.nodes:
            if known.name not in self.workers or not known.HasField("started_at"):
                continue
            pod = self.observation.pod(known.name)
            if pod is None or pod.phase is not PodPhase.RUNNING:
                lost[known.name] = "its pod is gone"
            elif pod.started_at and pod.started_at > contract.to_datetime(known.started_at):
                lost[known.name] = "its pod was restarted"
        return lost

    def surplus_service_pods(self) -> list[Reference]:
        """Return login nodes, a balancer and a controller that are no longer in the spec."""
        wanted = (*self.login_pods, *self.controllers)
        return [
            pod.reference
            for pod in self.observation.pods
            if pod.labels.get(ROLE_LABEL) in ("login", "balancer", "controller")
            and pod.reference.name not in wanted
        ]

    def surplus_pods(self, role_label: str, worker_role: str) -> list[ObservedPod]:
        """Return worker pods that are no longer in the spec, highest index first."""
        surplus = [
            pod
            for pod in self.observation.pods
            if pod.labels.get(role_label) == worker_role and pod.reference.name not in self.all_workers
        ]
        return sorted(surplus, key=lambda pod: pod.reference.name, reverse=True)


async def read_scope(context: Context, engine: Engine) -> ClusterScope:
    cluster = wire.message(context.resource, Cluster)
    observation = await engine.observe(namespace(cluster.metadata.id))
    return ClusterScope(context, cluster, observation, power=status_power(cluster.status))


def status_power(status: ClusterStatus) -> dict[str, PowerState]:
    """Return what the last run saw."""
    return {
        node.name: PowerState.of(node.slurm_state.split("+")) for node in status.nodes if node.slurm_state
    }


async def cluster_view(
    scope: ClusterScope,
    image: str,
    shared_root_claim: str,
    login_addresses: tuple[str, ...],
    models_folder: str = "",
    platform_services: tuple[str, ...] = (),
    storage_authority: str = "",
) -> ClusterView:
    """Return the view that the pods are rendered from."""
    secrets_kept = await cluster_secrets(scope.context)
    first_job = await scope.context.secret(Secret.FIRST_JOB, lambda: b"0")
    return ClusterView(
        name=scope.cluster.metadata.name,
        namespace=scope.namespace,
        image=image,
        node_sets=tuple(
            _node_set_view(scope.cluster.spec, node_set) for node_set in scope.cluster.spec.node_sets
        ),
        secrets=secrets_kept,
        worker_host_public_key=public_host_key(secrets_kept.worker_host_key),
        authorized_keys=tuple(key.strip() for key in scope.cluster.spec.login.ssh_public_keys),
        user_keys={user.name: user.keys for user in scope.wanted},
        shared_root_claim=shared_root_claim,
        first_job=int(first_job),
        topology=tuple(
            PlaceView(place.node_set, place.first, place.last, tuple(place.path))
            for place in scope.cluster.spec.topology.nodes
        ),
        has_blocks=scope.cluster.spec.topology.type == Topology.BLOCK,
        block_sizes=tuple(scope.cluster.spec.topology.block_sizes),
        interfaces=scope.interfaces,
        mounts=scope.mounts,
        submounts=tuple(
            SubmountView(each.mount_path, each.size_gibibytes, each.in_memory)
            for each in scope.cluster.spec.submounts
        ),
        controller_count=len(scope.controllers),
        login_count=scope.login_count,
        keeps_balancer=scope.has_balancer,
        drained_login_nodes=scope.drained_login_nodes,
        ssh_host_port=scope.login_port,
        ssh_host_addresses=login_addresses,
        absent=scope.absent,
        reports_boots=frozenset(filter(scope.reports_boots, scope.workers)),
        platform_services=platform_services,
        storage_authority=storage_authority,
        models_folder=models_folder,
        models_on=frozenset(filter(scope.may_show_models, scope.workers)) if models_folder else frozenset(),
    )


def _node_set_view(spec: ClusterSpec, node_set: NodeSet) -> NodeSetView:
    shape = preset(node_set.platform, node_set.preset)
    in_memory = memory_of_submounts(spec)
    return NodeSetView(
        name=node_set.name,
        count=node_set.count,
        cpus=shape.vcpu,
        memory_mib=shape.memory_mib - in_memory,
        submount_mib=in_memory,
        gpus=shape.gpus,
        gpu_type=shape.gpu_type,
        idle_seconds=node_set.elastic.idle_seconds if node_set.HasField("elastic") else None,
        min_count=node_set.elastic.min_count,
    )


async def find_filesystems(scope: ClusterScope) -> None:
    """Set the scope's mounts. The filesystems of users must be ready before a pod starts."""
    found: list[MountView] = []
    for mounted in scope.cluster.spec.filesystems:
        row = await scope.context.get(mounted.filesystem_id)
        if row is None or row.state == FilesystemState.ERROR:
            raise Failed(
                Reason.FILESYSTEM_FAILED,
                f"Filesystem {mounted.filesystem_id} is gone or has failed; take it out of spec.filesystems.",
            )
        if row.state not in _USABLE_FILESYSTEM:
            raise RetryLater(
                f"filesystem {row.name or row.id} is {row.state}", delay_seconds=CHILD_POLL_SECONDS
            )
        found.append(MountView(claim_reference(row), mounted.mount_path))
    scope.mounts = tuple(found)
