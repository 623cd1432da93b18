"""The pods of a cluster: controller, accounting, login nodes, workers.

All run one image; the first argument is the role, and the image's entrypoint does the rest. Workers and
login nodes have SYS_ADMIN to mount a private /proc, /dev and /tmp over the shared root; the entrypoint drops
it before a user's first process starts.
"""

from collections.abc import Mapping
from dataclasses import replace

from neocloud.engines.manifest import (
    ConfigMapSource,
    Container,
    ContainerPort,
    EmptyDir,
    LinuxCapabilities,
    Mount,
    Pod,
    Probe,
    SecurityContext,
    TcpSocket,
    Variable,
    Volume,
    limits,
)
from neocloud.services.slurm.render import configuration
from neocloud.services.slurm.render.configuration import node_conf
from neocloud.services.slurm.render.view import (
    ACCOUNTING_POD,
    BALANCER_POD,
    BOOTS_LABEL,
    DATABASE_CONTAINER,
    MODELS_LABEL,
    NODE_SET_LABEL,
    REST_PORT,
    ROLE_LABEL,
    SHARED_ROOT_PATH,
    SSH_PORT,
    WORKER_ROLE,
    ClusterView,
    NodeSetView,
    SubmountView,
)
from neocloud.services.slurm.types import MODELS_FEATURE, MODELS_MOUNT_PATH

SLURMCTLD_PORT = 6817
SLURMD_PORT = 6818
SLURMDBD_PORT = 6819
DATABASE_PORT = 3306

SECRETS = "/etc/neocloud/secrets"
CONFIGURATION = "/etc/neocloud/slurm"
LOGIN_KEYS = "/etc/neocloud/login-keys"
LOGIN_NODES = "/etc/neocloud/login-nodes"
SSH_TO_WORKERS = "/etc/neocloud/ssh"
STORAGE = "/etc/neocloud/storage"
FILESYSTEMS = "/run/neocloud/filesystems"
"""The image's mount-jail finds filesystem 0, 1, ... here; NODE_FILESYSTEMS lists their mount points in order.
The engine does not mount them in the shared root: users own the folders there, and a link would lead out."""

MEMORY_FOR_DAEMONS_MIB = 256
"""Added to a worker's limit, so that jobs may use all the memory the preset promises."""

# Three volumes of a worker and a login node live in memory, as on any Linux machine.
TMP_SHARE, SHM_SHARE = 0.25, 0.5
LOGIN_TMP_MIB, LOGIN_SHM_MIB = 1024, 256


def pods(view: ClusterView) -> list[Pod]:
    return [
        accounting_pod(view),
        *(controller_pod(view, name) for name in view.controller_names()),
        *(login_pod(view, index) for index in range(view.login_count)),
        *([balancer_pod(view)] if view.has_balancer else ()),
        *(
            worker_pod(view, node_set, name)
            for node_set in view.node_sets
            for name in node_set.pod_names()
            if name not in view.absent
        ),
    ]


def accounting_pod(view: ClusterView) -> Pod:
    secret = Mount("accounting-secret", f"{SECRETS}/accounting", read_only=True)
    # It listens inside the pod only, where no probe reaches it. slurmdbd is ready once it has its database.
    database = replace(
        _container(view, DATABASE_CONTAINER, DATABASE_PORT, (secret, Mount("data", "/var/lib/mysql"))),
        readiness_probe=None,
    )
    mounts = (secret, *_key_mounts("slurm-key", "jwt-key"))
    slurmdbd = _container(view, "accounting", SLURMDBD_PORT, mounts)
    volumes = (
        *_secret_volumes("slurm-key", "jwt-key"),
        Volume.of_secret("accounting-secret", configuration.ACCOUNTING_SECRET),
        Volume.of_claim("data", configuration.ACCOUNTING_DATA),
    )
    return _pod(view, ACCOUNTING_POD, "accounting", (database, slurmdbd), volumes)


def controller_pod(view: ClusterView, name: str) -> Pod:
    """Return the pod of a controller. Two share the volume with Slurm's state, and the image's
    `guard-controller` keeps both from being in control at once."""
    shared = (
        Mount("configuration", CONFIGURATION, read_only=True),
        Mount("shared-root", SHARED_ROOT_PATH, read_only=True),
    )
    mounts = (*shared, *_key_mounts("slurm-key", "jwt-key"), Mount("state", "/var/lib/slurm"))
    is_one_of_two = view.controller_count > 1
    slurmctld = replace(
        _container(view, "controller", SLURMCTLD_PORT, mounts),
        env=(Variable("GUARDED", "1"),) if is_one_of_two else None,
    )
    slurmrestd = _container(view, "rest", REST_PORT, shared)
    volumes = (
        Volume("configuration", config_map=ConfigMapSource(name=configuration.CONFIGURATION)),
        Volume.of_claim("shared-root", view.shared_root_claim),
        Volume.of_claim("state", configuration.CONTROLLER_STATE),
        *_secret_volumes("slurm-key", "jwt-key"),
    )
    return _pod(view, name, "controller", (slurmctld, slurmrestd), volumes)


def balancer_pod(view: ClusterView) -> Pod:
    """Return the pod that passes connections on to login nodes. It knows no keys and sees no shared root."""
    mount = Mount("login-nodes", LOGIN_NODES, read_only=True)
    volume = Volume("login-nodes", config_map=ConfigMapSource(name=configuration.LOGIN_NODES))
    container = replace(_container(view, "balancer", SSH_PORT, (mount,)), ports=_ssh_ports(view))
    return _pod(view, BALANCER_POD, "balancer", (container,), (volume,))


def _ssh_ports(view: ClusterView) -> tuple[ContainerPort, ...]:
    if view.ssh_host_port is None:
        return (ContainerPort(SSH_PORT),)
    return tuple(
        ContainerPort(SSH_PORT, host_ip=address, host_port=view.ssh_host_port)
        for address in view.ssh_host_addresses
    )


def login_pod(view: ClusterView, index: int) -> Pod:
    is_alone = not view.has_balancer
    variables = (
        *(_filesystem_variables(view) if view.mounts else ()),
        *(() if is_alone else (Variable("BEHIND_BALANCER", "1"),)),
    )
    mounts = (
        *_node_mounts(view),
        Mount("ssh-host-key", f"{SECRETS}/ssh-host-key", read_only=True),
    )
    container = replace(
        _container(view, "login", SSH_PORT, mounts),
        ports=_ssh_ports(view) if is_alone else (ContainerPort(SSH_PORT),),
        env=variables or None,
        security_context=_capabilities("SYS_ADMIN", "AUDIT_WRITE", "NET_RAW"),
    )
    volumes = (
        *_node_volumes(view, LOGIN_TMP_MIB, LOGIN_SHM_MIB),
        Volume.of_secret("ssh-host-key", configuration.SSH_HOST_KEY),
    )
    return _pod(view, view.login_names()[index], "login", (container,), volumes)


def worker_pod(view: ClusterView, node_set: NodeSetView, name: str) -> Pod:
    memory = node_set.memory_mib
    host_key = f"{SECRETS}/worker-host-key"
    first = len(view.mounts)  # mount-jail mounts submounts after the filesystems
    own = range(first, first + len(view.submounts))
    mounts = (
        *(*_node_mounts(view), Mount("worker-host-key", host_key, read_only=True)),
        *(Mount(f"submount-{index - first}", f"{FILESYSTEMS}/{index}") for index in own),
    )
    volumes = (
        *_node_volumes(view, int(memory * TMP_SHARE), int(memory * SHM_SHARE)),
        *(_submount_volume(f"submount-{index}", each) for index, each in enumerate(view.submounts)),
        Volume.of_secret("worker-host-key", configuration.WORKER_HOST_KEY),
    )
    labels = {NODE_SET_LABEL: node_set.name}
    features, paths = (), tuple(submount.path for submount in view.submounts)
    if name in view.models_on:  # the last filesystem that mount-jail mounts in the shared root
        labels[MODELS_LABEL] = "true"
        features, paths = (MODELS_FEATURE,), (*paths, MODELS_MOUNT_PATH)
        mounts = (*mounts, Mount("shown", f"{FILESYSTEMS}/{own.stop}", read_only=True))
        volumes = (*volumes, Volume.of_host("shown", view.models_folder, "Directory"))
    reports_boots = name in view.reports_boots
    if reports_boots:
        labels[BOOTS_LABEL] = "true"
    container = replace(
        _container(view, WORKER_ROLE, SLURMD_PORT, mounts),
        env=(
            Variable("NODE_CONF", node_conf(node_set, *features)),
            Variable("NODE_GPUS", str(node_set.gpus)),
            *((Variable("NODE_REPORTS_BOOTS", "1"),) if reports_boots else ()),
            *_filesystem_variables(view, *paths),
            *([Variable("NODE_SUBMOUNTS", " ".join(map(str, own)))] if own else ()),
        ),
        resources=limits(
            cpus=node_set.cpus,
            memory_mib=memory + node_set.submount_mib + MEMORY_FOR_DAEMONS_MIB,
            gpus=node_set.gpus,
        ),
        security_context=_capabilities("SYS_ADMIN", "AUDIT_WRITE", "NET_RAW"),
    )
    pod = _pod(view, name, WORKER_ROLE, (container,), volumes, labels)
    return replace(pod, gpu_type=node_set.gpu_type, own_cpus=True)


def _pod(
    view: ClusterView,
    name: str,
    role: str,
    containers: tuple[Container, ...],
    volumes: tuple[Volume, ...],
    labels: Mapping[str, str] | None = None,
) -> Pod:
    return Pod(
        name=name,
        namespace=view.namespace,
        labels={**view.labels, ROLE_LABEL: role, **(labels or {})},
        interface=view.interfaces.get(name),
        host_users=False,  # a user namespace, where the engine can make one
        hostname=name,
        subdomain=configuration.NODES_SERVICE,
        restart_policy="Always",
        termination_grace_period_seconds=5,
        automount_service_account_token=False,
        enable_service_links=False,
        containers=containers,
        volumes=volumes,
    )


def _container(view: ClusterView, role: str, port: int, mounts: tuple[Mount, ...]) -> Container:
    """Return the container of a role, with the name of the role. It is ready when its port answers."""
    return Container(
        name=role,
        image=view.image,
        image_pull_policy="Never",
        args=(role,),
        ports=(ContainerPort(port),),
        readiness_probe=Probe(tcp_socket=TcpSocket(port), period_seconds=1),
        volume_mounts=mounts,
    )


def _capabilities(*capabilities: str) -> SecurityContext:
    return SecurityContext(capabilities=LinuxCapabilities(add=capabilities))


def _filesystem_variables(view: ClusterView, *more: str) -> tuple[Variable, ...]:
    paths = " ".join((*(mount.path for mount in view.mounts), *more))
    return (Variable("NODE_FILESYSTEMS", paths),) if paths else ()


def _submount_volume(name: str, submount: SubmountView) -> Volume:
    size = f"{submount.size_gib}Gi"
    return (
        Volume.in_memory(name, size) if submount.in_memory else Volume(name, empty_dir=EmptyDir(None, size))
    )


def _node_mounts(view: ClusterView) -> tuple[Mount, ...]:
    return (
        Mount("shared-root", SHARED_ROOT_PATH),
        Mount("tmp", "/tmp"),
        Mount("shm", "/dev/shm"),
        *(Mount(f"filesystem-{index}", f"{FILESYSTEMS}/{index}") for index in range(len(view.mounts))),
        Mount("login-keys", LOGIN_KEYS, read_only=True),
        Mount("ssh-to-workers", SSH_TO_WORKERS, read_only=True),
        *([Mount("storage", STORAGE, read_only=True)] if view.storage_authority else ()),
        *_key_mounts("slurm-key"),
    )


def _node_volumes(view: ClusterView, tmp_mib: int, shm_mib: int) -> tuple[Volume, ...]:
    return (
        Volume.of_claim("shared-root", view.shared_root_claim),
        Volume.in_memory("tmp", f"{tmp_mib}Mi"),
        Volume.in_memory("shm", f"{shm_mib}Mi"),
        *(
            Volume.of_claim(f"filesystem-{index}", mount.claim.name, mount.claim.namespace)
            for index, mount in enumerate(view.mounts)
        ),
        Volume("login-keys", config_map=ConfigMapSource(name=configuration.LOGIN_KEYS)),
        Volume("ssh-to-workers", config_map=ConfigMapSource(name=configuration.SSH_TO_WORKERS)),
        *(_storage_volumes() if view.storage_authority else ()),
        *_secret_volumes("slurm-key"),
    )


def _storage_volumes() -> tuple[Volume, ...]:
    return (Volume("storage", config_map=ConfigMapSource(name=configuration.STORAGE)),)


def _key_mounts(*names: str) -> tuple[Mount, ...]:
    return tuple(Mount(name, f"{SECRETS}/{name}", read_only=True) for name in names)


def _secret_volumes(*names: str) -> tuple[Volume, ...]:
    return tuple(Volume.of_secret(name, name) for name in names)
