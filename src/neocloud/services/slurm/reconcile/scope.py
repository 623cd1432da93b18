"""The scope of one run over a cluster: its spec, its pods, its nodes in Slurm, its filesystems and secrets.

It is read again in every run, so that no step acts on an old state. `cluster_status` computes the status from
it, once at the end.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from neocloud.core import contract, wire
from neocloud.core.reconcile.reconciler import (
    CHILD_POLL_SECONDS,
    RESYNC_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
)
from neocloud.engines.base import Engine, Observation, ObservedPod, PodPhase, Reference
from neocloud.engines.manifest import Interface
from neocloud.messages.neocloud.slurm.v1 import Cluster, ClusterStatus, Condition, NodeSet, UserStatus
from neocloud.services.compute.public import claim_reference, preset
from neocloud.services.compute.types import FilesystemState
from neocloud.services.slurm.reconcile.login_port import closed_message
from neocloud.services.slurm.render import (
    ACCOUNTING_POD,
    BALANCER_POD,
    CONTROLLER_POD,
    MODELS_LABEL,
    ROLE_LABEL,
    ClusterSecrets,
    ClusterView,
    MountView,
    NodeSetView,
)
from neocloud.services.slurm.slurmrestd import SlurmNode
from neocloud.services.slurm.types import ConditionType, Reason, Secret, State, namespace, worker_names

_USABLE_FILESYSTEM = frozenset({FilesystemState.READY, FilesystemState.UPDATING})
SLURM_KEY_BYTES = 1024
JWT_KEY_BYTES = 32


@dataclass
class Scope:
    context: Context
    cluster: Cluster
    """The message as stored."""
    observation: Observation
    view: ClusterView | None = None
    """Set by the step that starts the pods."""
    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    """By name, as Slurm last reported them in this run."""
    slurm_version: str = ""
    configuration_version: str = ""
    is_recovering: bool = False
    """A lost node or a requeued job was found: run again soon."""
    shared_root_id: str = ""
    interfaces: dict[str, Interface] = field(default_factory=dict)
    """By pod name; set by the step that finds addresses."""
    mounts: tuple[MountView, ...] = ()
    """Filesystems of users; set by the step that finds them."""
    closed_addresses: Sequence[str] = ()
    """Addresses of the host that the login node goes without; set with the view."""
    users: dict[str, UserStatus] | None = None
    """By name; set by the step that changes them. None: they are those of the status."""
    last_uid: int = 0
    reported: set[str] = field(default_factory=set)
    """Lost workers that Slurm knows of by now. The status remembers the start of the others, so that a worker
    that was restarted during this run, or while Slurm did not answer, is reported by a later run."""

    @property
    def cluster_id(self) -> str:
        return self.cluster.metadata.id

    @property
    def namespace(self) -> str:
        return namespace(self.cluster_id)

    @property
    def workers(self) -> dict[str, str]:
        """The node sets of the desired workers, by the name of the worker."""
        return worker_names(self.cluster.spec)

    @property
    def pod_names(self) -> tuple[str, ...]:
        """All pods of the spec."""
        return (CONTROLLER_POD, ACCOUNTING_POD, *self.login_pods, *self.workers)

    @property
    def login_count(self) -> int:
        return self.cluster.spec.login.count or 1

    @property
    def login_pods(self) -> tuple[str, ...]:
        """The login nodes, and the balancer if there are several."""
        nodes = tuple(f"login-{index}" for index in range(self.login_count))
        return nodes if self.login_count == 1 else (*nodes, BALANCER_POD)

    @property
    def ssh_pod(self) -> str:
        """The pod that has the host's port for ssh."""
        return self.login_pods[-1]

    @property
    def login_port(self) -> int:
        return self.cluster.spec.login.port or self.cluster.status.login.port

    def may_show_models(self, worker: str) -> bool:
        """Whether the worker's pod mounts the folder for models or does not exist yet. A running pod without
        the folder is kept."""
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

    def surplus_login_pods(self) -> list[Reference]:
        """Return login nodes and a balancer that are no longer in the spec."""
        return [
            pod.reference
            for pod in self.observation.pods
            if pod.labels.get(ROLE_LABEL) in ("login", "balancer")
            and pod.reference.name not in self.login_pods
        ]

    def surplus_pods(self, role_label: str, worker_role: str) -> list[ObservedPod]:
        """Return worker pods that are no longer in the spec, highest index first."""
        surplus = [
            pod
            for pod in self.observation.pods
            if pod.labels.get(role_label) == worker_role and pod.reference.name not in self.workers
        ]
        return sorted(surplus, key=lambda pod: pod.reference.name, reverse=True)


async def read_scope(context: Context, engine: Engine) -> Scope:
    cluster = wire.message(context.resource, Cluster)
    observation = await engine.observe(namespace(cluster.metadata.id))
    return Scope(context, cluster, observation)


async def cluster_view(
    scope: Scope,
    image: str,
    shared_root_claim: str,
    login_addresses: tuple[str, ...],
    models_folder: str = "",
) -> ClusterView:
    """Return the view that the pods are rendered from."""
    secrets_kept = await cluster_secrets(scope.context)
    return ClusterView(
        name=scope.cluster.metadata.name,
        namespace=scope.namespace,
        image=image,
        node_sets=tuple(_node_set_view(node_set) for node_set in scope.cluster.spec.node_sets),
        secrets=secrets_kept,
        worker_host_public_key=public_host_key(secrets_kept.worker_host_key),
        authorized_keys=tuple(key.strip() for key in scope.cluster.spec.login.ssh_public_keys),
        user_keys={
            user.name: tuple(key.strip() for key in user.ssh_public_keys) for user in scope.cluster.spec.users
        },
        shared_root_claim=shared_root_claim,
        interfaces=scope.interfaces,
        mounts=scope.mounts,
        login_count=scope.login_count,
        ssh_host_port=scope.login_port,
        ssh_host_addresses=login_addresses,
        models_folder=models_folder,
        models_on=frozenset(filter(scope.may_show_models, scope.workers)) if models_folder else frozenset(),
    )


def _node_set_view(node_set: NodeSet) -> NodeSetView:
    shape = preset(node_set.platform, node_set.preset)
    return NodeSetView(
        name=node_set.name,
        count=node_set.count,
        cpus=shape.vcpu,
        memory_mib=shape.memory_mib,
        gpus=shape.gpus,
        gpu_type=shape.gpu_type,
    )


async def find_filesystems(scope: Scope) -> None:
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


async def cluster_secrets(context: Context) -> ClusterSecrets:
    """Return the secrets of a cluster; each is made once and kept, encrypted, until the cluster is gone."""
    return ClusterSecrets(
        slurm_key=await context.secret(Secret.SLURM_KEY, lambda: secrets.token_bytes(SLURM_KEY_BYTES)),
        jwt_key=await context.secret(Secret.JWT_KEY, lambda: secrets.token_bytes(JWT_KEY_BYTES)),
        database_password=(
            await context.secret(Secret.DATABASE_PASSWORD, lambda: secrets.token_hex(32).encode())
        ).decode(),
        ssh_host_key=(await context.secret(Secret.SSH_HOST_KEY, _new_ssh_host_key)).decode(),
        worker_host_key=(await context.secret(Secret.WORKER_HOST_KEY, _new_ssh_host_key)).decode(),
    )


def public_host_key(private_key: str) -> str:
    """Return the "ssh-ed25519 AAAA..." line of a host key."""
    key = load_ssh_private_key(private_key.encode(), password=None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _new_ssh_host_key() -> bytes:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


StateEnum = ClusterStatus.State

RECOVERY_SECONDS = 0.3


def cluster_status(scope: Scope, result: ReconcileResult) -> ReconcileResult:
    old = scope.cluster.status
    state = _state(scope, result)
    if scope.lost_workers().keys() - scope.reported:
        scope.is_recovering = True
    status = ClusterStatus(
        state=StateEnum.Value(state),
        reconciling=not result.is_done,
        slurm_version=scope.slurm_version or old.slurm_version,
        configuration_version=scope.configuration_version or old.configuration_version,
        shared_root_filesystem_id=scope.shared_root_id or old.shared_root_filesystem_id,
    )
    for step in result.progress:
        status.steps.add(name=step.name, outcome=step.outcome, message=step.message)
    status.conditions.extend(_conditions(scope, result, state))
    status.users.extend(old.users if scope.users is None else scope.users.values())
    status.last_uid = max(scope.last_uid, old.last_uid)
    status.login.CopyFrom(old.login)
    _set_login_nodes(status, scope)
    if scope.view is not None:
        status.login.host = scope.view.ssh_host
        status.login.port = scope.login_port
        del status.login.host_keys[:]
        status.login.host_keys.append(public_host_key(scope.view.secrets.ssh_host_key))
    _add_nodes(status, scope)
    return result.with_status(status, state, RECOVERY_SECONDS if scope.is_recovering else RESYNC_SECONDS)


def _state(scope: Scope, result: ReconcileResult) -> State:
    if scope.context.resource.deleted_at:
        return State.DELETING
    if result.error:
        return State.ERROR
    if result.is_done:
        return State.READY
    was = StateEnum.Name(scope.cluster.status.state)
    if was == State.STOPPED:
        return State.STOPPED
    return State.READY if was in {State.READY, State.UPDATING} else State.CREATING


def _conditions(scope: Scope, result: ReconcileResult, state: State) -> list[Condition]:
    message = result.message
    reason = result.error.reason if result.error else ""
    closed: list[Condition] = []
    if scope.closed_addresses:
        text = closed_message(scope.closed_addresses, scope.login_port)
        closed = [Condition(type=ConditionType.LOGIN_ADDRESSES, status="False", message=text)]
    available = [name for name in scope.workers if name in scope.nodes and scope.nodes[name].is_available]
    return [
        Condition(
            type=ConditionType.READY,
            status=str(state in {State.READY, State.UPDATING}),
            reason=reason,
            message=message,
        ),
        Condition(
            type=ConditionType.NODES_AVAILABLE,
            status=str(len(available) == len(scope.workers)),
            message=f"{len(available)} of {len(scope.workers)} workers can run jobs",
        ),
        *closed,
    ]


def _set_login_nodes(status: ClusterStatus, scope: Scope) -> None:
    del status.login.nodes[:]
    for name in scope.login_pods:
        pod = scope.observation.pod(name)
        row = status.login.nodes.add(name=name, message="it does not run" if pod is None else pod.message)
        if pod is not None:
            row.ready, row.restarts = pod.ready, pod.restart_count


def _add_nodes(status: ClusterStatus, scope: Scope) -> None:
    """Add the nodes. They keep their last known state when this run could not reach Slurm."""
    old = {node.name: node for node in scope.cluster.status.nodes}
    for name, node_set in scope.workers.items():
        row = status.nodes.add(name=name, node_set=node_set)
        if name in old:
            row.CopyFrom(old[name])
        pod = scope.observation.pod(name)
        if pod is not None:
            row.address = pod.ip or ""
            row.restarts = pod.restart_count
            if pod.started_at and (name in scope.reported or not row.HasField("started_at")):
                row.started_at.FromDatetime(pod.started_at)
        node = scope.nodes.get(name)
        if node is not None:
            row.slurm_state, row.reason = node.state_text, node.reason
