"""The input of rendering: plain data of a Slurm cluster.

The reconciler fills it in from the Cluster resource, its platforms and presets, and its secrets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Interface
from neocloud.settings.settings import LOOPBACK

DEFAULT_PARTITION = "main"
MAX_NODES = 1024
REST_PORT = 6820
SSH_PORT = 22

CLUSTER_LABEL = "neocloud.dev/cluster"
ROLE_LABEL = "neocloud.dev/role"
NODE_SET_LABEL = "neocloud.dev/node-set"
BOOTS_LABEL = "neocloud.dev/reports-boots"
"""Label of worker pods that tell Slurm when they were started."""
MODELS_LABEL = "neocloud.dev/shows-models"
"""On worker pods that mount the folder for models."""

WORKER_ROLE = "worker"

SHARED_ROOT_PATH = "/jail"
"""The mount point of the shared root in the daemons' containers."""
ENTER_ROOT = "/usr/local/lib/neocloud/enter-root"
"""The image's program that runs a command inside the shared root, with a tenant's rights."""

LOGIN_POD = "login-0"
BALANCER_POD = "balancer-0"
"""Has the port for ssh where there are several login nodes."""
CONTROLLER_POD = "controller-0"
CONTROLLER_PODS = (CONTROLLER_POD, "controller-1")
"""All that there may be, in the order of Slurm's SlurmctldHost lines."""
ACCOUNTING_POD = "accounting-0"
DATABASE_CONTAINER = "database"


@dataclass(frozen=True)
class NodeSetView:
    """Workers of one shape, named `<name>-0` to `<name>-<count - 1>`."""

    name: str
    count: int
    cpus: int
    memory_mib: int
    """Memory for jobs."""
    gpus: int = 0
    gpu_type: str = ""
    """The type in `--gres=gpu:<type>:<n>`: lower case, e.g. "l40s"; "" for GPUs of any type."""
    idle_seconds: int | None = None
    """How long a worker of an elastic set is idle before Slurm powers it down."""
    min_count: int = 0
    """How many workers of an elastic set stay; they have the lowest numbers."""
    submount_mib: int = 0
    """Memory for the submounts of a worker; jobs do not have it."""

    def pod_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{index}" for index in range(self.count))


@dataclass(frozen=True)
class MountView:
    """A filesystem of a user, and its mount point in the shared root."""

    claim: Reference
    path: str


@dataclass(frozen=True)
class SubmountView:
    """A folder of the shared root that each worker has for itself."""

    path: str
    size_gib: int
    in_memory: bool = False


@dataclass(frozen=True)
class PlaceView:
    """The place of the nodes `<node_set>-<first>` to `<node_set>-<last>`."""

    node_set: str
    first: int
    last: int
    path: tuple[str, ...]
    """Names of switches from the top to the leaf; of blocks the name of the block."""


@dataclass(frozen=True)
class ClusterSecrets:
    """The secrets of a cluster, which it keeps as long as it lives."""

    slurm_key: bytes
    jwt_key: bytes
    database_password: str
    ssh_host_key: str
    """OpenSSH private key (ed25519); it stays the same when a login pod is replaced."""
    worker_host_key: str
    """The same for all workers. Another one than that of login nodes: root in a job can reach a worker's."""

    def __repr__(self) -> str:
        return "ClusterSecrets(...)"


@dataclass(frozen=True)
class ClusterView:
    name: str
    """Slurm's ClusterName: lower-case letters, digits and dashes."""
    namespace: str
    image: str
    node_sets: tuple[NodeSetView, ...]
    secrets: ClusterSecrets
    authorized_keys: tuple[str, ...]
    """Public keys that may log in as root."""
    worker_host_public_key: str
    """The "ssh-ed25519 AAAA..." line of the workers' host key."""
    shared_root_claim: str
    """The PersistentVolumeClaim of the shared root, which jobs see as "/"."""
    controller_count: int = 1
    login_count: int = 1
    keeps_balancer: bool = False
    """The balancer of a cluster that had several login nodes stays, because sessions pass through it."""
    drained_login_nodes: tuple[str, ...] = ()
    ssh_host_port: int | None = None
    """Port of the host for the login node, or for the balancer before several."""
    ssh_host_addresses: tuple[str, ...] = (LOOPBACK,)
    """Addresses of the host that have this port."""

    user_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Public keys that may log in as another user, by the user's name."""

    interfaces: Mapping[str, Interface] = field(default_factory=dict[str, Interface])
    """Interfaces by pod name; empty for a cluster on a network of its own."""

    mounts: tuple[MountView, ...] = ()
    submounts: tuple[SubmountView, ...] = ()

    models_folder: str = ""
    """A folder of the host that jobs see read-only; "" for none."""
    models_on: frozenset[str] = frozenset()
    """Workers that mount it: a running worker is not restarted for it."""

    topology: tuple[PlaceView, ...] = ()
    """Empty where nothing is known of the network between the nodes."""
    has_blocks: bool = False
    """The topology is one of blocks, not a tree."""
    block_sizes: tuple[int, ...] = ()
    """Nodes of one block and of several adjacent blocks; empty: derived from the nodes that exist."""
    absent: frozenset[str] = frozenset()
    """Workers of elastic sets without a pod: powered down."""
    reports_boots: frozenset[str] = frozenset()
    """Workers that tell Slurm when they were started, which it waits for after it powered a node up."""

    platform_services: tuple[str, ...] = ()
    """Services of the cloud that nodes on a network of the cluster's own may reach."""
    storage_authority: str = ""
    """The certificate, in PEM form, that object storage is trusted by inside nodes; "": it is not reached."""

    first_job: int = 0
    """The lowest number of a job; 0 where Slurm chooses it."""

    @property
    def ssh_host(self) -> str:
        """Return the address for clients on other machines, or loopback where they have none."""
        return next((each for each in self.ssh_host_addresses if each != LOOPBACK), LOOPBACK)

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of every object of the cluster."""
        return {CLUSTER_LABEL: self.name}

    @property
    def has_balancer(self) -> bool:
        return self.login_count > 1 or self.keeps_balancer

    def controller_names(self) -> tuple[str, ...]:
        return CONTROLLER_PODS[: self.controller_count]

    @property
    def is_elastic(self) -> bool:
        return any(node_set.idle_seconds is not None for node_set in self.node_sets)

    def login_names(self) -> tuple[str, ...]:
        return tuple(f"login-{index}" for index in range(self.login_count))

    def worker_names(self) -> tuple[str, ...]:
        return tuple(name for node_set in self.node_sets for name in node_set.pod_names())
