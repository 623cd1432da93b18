"""Rules of clusters: keys, names, presets, ports, mounts, and capacity of the machine. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neocloud.core import wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.ssh_keys import is_public_key
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.core.usage import CapacityUse, Rows
from neocloud.messages.neocloud.slurm.v1 import (
    Cluster,
    ClusterSpec,
    CreateClusterRequest,
    NodeSet,
    UpdateClusterRequest,
)
from neocloud.services.compute.public import (
    Demand,
    check_capacity,
    filesystem_attachment,
    find_filesystem,
    preset,
    preset_violations,
)
from neocloud.services.compute.types import FilesystemState, attachment_namespace
from neocloud.services.iam.types import GROUP, SERVICE_ACCOUNT, tenant_of
from neocloud.services.slurm.render import DEFAULT_PARTITION
from neocloud.services.slurm.submount_rules import (
    is_of_system,
    overlaps,
    submount_memory_violations,
    submount_violations,
)
from neocloud.services.slurm.topology_rules import topology_violations
from neocloud.services.slurm.types import CLUSTER, DEFAULT_IDLE_SECONDS, DEFAULT_SHARED_ROOT_GIB
from neocloud.services.vpc.types import SUBNET
from neocloud.settings.settings import Settings

RESERVED_NODE_SET_NAMES = frozenset({"controller", "accounting", "login", "balancer", "rest"})
RESERVED_USERS = frozenset(
    ("backup", "bin", "daemon", "dbus", "games", "haproxy", "irc", "list", "lp", "mail", "man", "messagebus")
    + ("munge", "mysql", "news", "nobody", "polkitd", "proxy", "root", "slurm", "slurmrestd", "sshd", "sync")
    + ("sys", "tss", "uucp", "uuidd", "www-data")
)
"""Accounts that Debian or the cluster has; some hide those of the same name in the shared root."""
RESERVED_PREFIXES = ("systemd-",)
MAX_KEYS = 100
"""SSH keys of root in one cluster, as the contract has it."""
MAX_USERS, MAX_KEYS_OF_USER = 200, 20
"""Users of one cluster and SSH keys of one user, as the contract has it."""
SYSTEM_PATHS = frozenset({"/home", "/home/shared", "/root"})
"""Folders of the shared root that a filesystem may not hide: jobs work in /home/shared by default."""
FIRST_LOGIN_PORT = 2222
LAST_LOGIN_PORT = 2999
"""The default range: no well-known service, and below the ports that the kernel gives to clients."""
PORT_PARTS = 16
"""The range is divided into so many parts among the clouds of a host."""


def cluster_demands(spec: ClusterSpec) -> list[Demand]:
    """Return what the workers of a cluster hold of the machine: those of elastic sets also while they are not
    there, so that a job never waits for capacity that another took."""
    return [
        (preset(node_set.platform, node_set.preset), node_set.count)
        for node_set in spec.node_sets
        if node_set.count
    ]


def _held(rows: Rows) -> Iterable[tuple[str, Demand]]:
    for row in rows[CLUSTER]:
        for demand in cluster_demands(ClusterSpec.FromString(row.spec)):
            yield row.id, demand


CAPACITY = (CapacityUse((CLUSTER,), _held),)


class ClusterRules(Rules[Cluster]):
    def defaults(self, resource: Cluster) -> None:
        if not resource.spec.shared_root.size_gibibytes:
            resource.spec.shared_root.size_gibibytes = DEFAULT_SHARED_ROOT_GIB
        for node_set in resource.spec.node_sets:
            if node_set.HasField("elastic") and not node_set.elastic.idle_seconds:
                node_set.elastic.idle_seconds = DEFAULT_IDLE_SECONDS

    def quota_demand(self, resource: Cluster) -> Mapping[str, int]:
        """GPUs share the quota of machines; the filesystem of the shared root counts by itself."""
        demand = Counter({"slurm.cluster.count": 1})
        for shape, nodes in cluster_demands(resource.spec):
            demand["slurm.node.count"] += nodes
            demand[f"compute.instance.gpu.{shape.gpu_type or 'any'}"] += nodes * shape.gpus
        return demand

    def request_violations(self, request: CreateClusterRequest | UpdateClusterRequest) -> Iterable[Violation]:
        spec = request.spec
        if len(spec.login.ssh_public_keys) > MAX_KEYS or len(spec.users) > MAX_USERS:
            return  # the contract refuses it
        yield from _key_violations("spec.login", spec.login.ssh_public_keys)
        for index, user in enumerate(spec.users):
            if len(user.ssh_public_keys) <= MAX_KEYS_OF_USER:
                yield from _key_violations(f"spec.users[{index}]", user.ssh_public_keys)

    def violations(self, new: Cluster, old: Cluster | None, reader: ResourceReader) -> Iterable[Violation]:
        found = [
            *_node_set_violations(new.spec),
            *topology_violations(new.spec),
            *_shared_root_violations(new.spec, old.spec if old else None),
            *_login_violations(new, old, reader),
            *_user_violations(new.spec, old),
            *_group_violations(new, old, reader),
            *_account_violations(new, old, reader),
            *_subnet_violations(new, reader),
            *_filesystem_violations(new, reader),
            *submount_violations(new.spec),
        ]
        found = found or list(submount_memory_violations(new.spec))
        if not found:
            held = cluster_demands(old.spec) if old else []
            demanded = cluster_demands(new.spec)
            check_capacity(reader, new.metadata, demanded, held, may_wait=True, may_preempt=True)
        return found

    def complete(self, new: Cluster, old: Cluster | None, reader: ResourceReader) -> None:
        """Reserve the filesystems, so that they are not deleted while they are mounted."""
        for mounted in old.spec.filesystems if old else ():
            reader.release(attachment_namespace(mounted.filesystem_id), _attachment(new))
        for mounted in new.spec.filesystems:
            reader.reserve(attachment_namespace(mounted.filesystem_id), _attachment(new), new.metadata.id)

    def dependents(self, resource: Cluster) -> Iterable[str]:
        """Return the filesystems: their status lists what mounts them."""
        return [mounted.filesystem_id for mounted in resource.spec.filesystems]


def clusters_with_filesystem(tx: Transaction, filesystem: Resource) -> Iterable[str]:
    """Return the ids of what mounts a filesystem: clusters wait for it, or cannot run without it."""
    return tx.reservations(attachment_namespace(filesystem.id)).values()


def clusters_of_account(tx: Transaction, account: Resource) -> Iterable[str]:
    """Return the ids of the clusters whose users have keys of a service account, which go with it."""
    for row in tx.list(CLUSTER, parent_id=account.parent_id)[0]:
        if ClusterSpec.FromString(row.spec).service_account_id == account.id:
            yield row.id


@dataclass(frozen=True)
class LoginPorts:
    """The ports of this host for login nodes: the operator's range without the cloud's own ports."""

    first: int = FIRST_LOGIN_PORT
    last: int = LAST_LOGIN_PORT
    own: frozenset[int] = frozenset()
    """Ports of the API, the gateway and the redirector: a login node must not answer for them."""
    cloud_number: int = 0
    """Each cloud on a host tries a different part of the range first: a stopped one needs its ports again."""

    @classmethod
    def of(cls, settings: Settings) -> "LoginPorts":
        """Return the ports that the operator chose in `settings`."""
        own = (
            *(settings.grpc_port, settings.http_port, settings.tls_port),
            *(settings.redirector_port, settings.gateway_port, settings.s3_port),
            *((settings.https_port, settings.gateway_tls_port) if settings.listen else ()),
            *((settings.s3_tls_port,) if settings.listen else ()),
        )
        first, last = settings.login_ports
        return cls(first, last, frozenset(port for port in own if port), settings.cloud_number)

    def allows(self, port: int) -> bool:
        return self.first <= port <= self.last and port not in self.own

    def all(self) -> list[int]:
        """Return the ports in the order in which to try them."""
        size = self.last - self.first + 1
        start = self.first + self.cloud_number % PORT_PARTS * (size // PORT_PARTS)
        ports = (*range(start, self.last + 1), *range(self.first, start))
        return [port for port in ports if port not in self.own]

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


def _node_set_violations(spec: ClusterSpec) -> Iterable[Violation]:
    seen: set[str] = set()
    for index, node_set in enumerate(spec.node_sets):
        field = f"spec.node_sets[{index}]"
        if node_set.name in seen:
            yield Violation(f"{field}.name", f'"{node_set.name}" is used twice; choose another name')
        if node_set.name in RESERVED_NODE_SET_NAMES:
            yield Violation(f"{field}.name", f'"{node_set.name}" is reserved for the cluster itself')
        if node_set.HasField("elastic"):
            yield from _elastic_violations(node_set, f"{field}.elastic")
        yield from _spare_violations(spec, node_set, f"{field}.spare_count")
        seen.add(node_set.name)
        yield from preset_violations(node_set.platform, node_set.preset, field)


def _spare_violations(spec: ClusterSpec, node_set: NodeSet, field: str) -> Iterable[Violation]:
    if not node_set.spare_count:
        return
    if node_set.HasField("elastic"):
        yield Violation(field, "is not for elastic sets, whose workers come and go")
    elif not spec.auto_repair:
        yield Violation(field, "needs auto_repair, which verifies spares and brings them into service")
    elif node_set.spare_count >= node_set.count:
        yield Violation(field, f"must be less than count, {node_set.count}: other workers run the jobs")


def _elastic_violations(node_set: NodeSet, field: str) -> Iterable[Violation]:
    if node_set.name == DEFAULT_PARTITION:
        yield Violation(field, f'the partition "{DEFAULT_PARTITION}" has all sets; choose another name')
    if node_set.elastic.min_count > node_set.count:
        yield Violation(f"{field}.min_count", f"must not be more than the count, which is {node_set.count}")


def _key_violations(field: str, keys: Iterable[str]) -> Iterable[Violation]:
    for index, key in enumerate(keys):
        if not is_public_key(key):
            yield Violation(
                f"{field}.ssh_public_keys[{index}]",
                'is not an SSH public key; give one line such as "ssh-ed25519 AAAA... you@host"'
                " (the .pub file, never the private key)",
            )


def is_reserved_user(name: str) -> bool:
    return name in RESERVED_USERS or name.startswith(RESERVED_PREFIXES)


def _user_violations(spec: ClusterSpec, old: Cluster | None) -> Iterable[Violation]:
    seen: set[str] = set()
    records = (*old.status.users, *old.status.former_users) if old else ()
    of_accounts = {record.name for record in records if record.account_id}
    for index, user in enumerate(spec.users):
        field = f"spec.users[{index}].name"
        if user.name == "root":
            yield Violation(field, "root is always there; its keys belong in spec.login.ssh_public_keys")
        elif is_reserved_user(user.name):
            yield Violation(field, f'"{user.name}" is an account of the system; choose another name')
        if user.name in seen:
            yield Violation(field, f'"{user.name}" is used twice; choose another name')
        if user.name in of_accounts:
            text = f'"{user.name}" is, or was, the user of a person in a group; choose another name'
            yield Violation(field, text)
        seen.add(user.name)


def _group_violations(new: Cluster, old: Cluster | None, reader: ResourceReader) -> Iterable[Violation]:
    for index, group_id in enumerate(new.spec.group_ids):
        if old and group_id in old.spec.group_ids:
            continue  # one that was deleted since holds up no other change
        group = reader.get(group_id)
        if (
            group is None
            or group.kind != GROUP
            or group.parent_id != tenant_of(new.metadata.parent_id, reader.get)
        ):
            yield Violation(
                f"spec.group_ids[{index}]",
                f'"{group_id}" is not a group of this tenant; `neo iam group list` shows them',
            )


def _account_violations(new: Cluster, old: Cluster | None, reader: ResourceReader) -> Iterable[Violation]:
    account_id = new.spec.service_account_id
    if not account_id or (old and old.spec.service_account_id == account_id):
        return  # one that was deleted since holds up no other change
    account = reader.get(account_id)
    tenant_id = tenant_of(new.metadata.parent_id, reader.get)
    if (
        account is None
        or account.kind != SERVICE_ACCOUNT
        or account.deleted_at is not None
        or tenant_of(account_id, reader.get) != tenant_id
    ):
        yield Violation(
            "spec.service_account_id",
            f'"{account_id}" is not a service account of this tenant;'
            " `neo iam service-account list` shows them",
        )


def _shared_root_violations(new: ClusterSpec, old: ClusterSpec | None) -> Iterable[Violation]:
    if old and new.shared_root.size_gibibytes < old.shared_root.size_gibibytes:
        yield Violation(
            "spec.shared_root.size_gibibytes",
            f"the shared root cannot shrink below its {old.shared_root.size_gibibytes} GiB",
        )


def _drain_violations(spec: ClusterSpec) -> Iterable[Violation]:
    nodes = [f"login-{index}" for index in range(spec.login.count or 1)]
    for index, name in enumerate(spec.login.drained_nodes):
        if name not in nodes:
            yield Violation(f"spec.login.drained_nodes[{index}]", f"the cluster has no login node {name}")
    if set(nodes) <= set(spec.login.drained_nodes):
        yield Violation(
            "spec.login.drained_nodes",
            "one login node must take new sessions; `neo slurm cluster scale --login-nodes` adds one",
        )


def _login_violations(new: Cluster, old: Cluster | None, reader: ResourceReader) -> Iterable[Violation]:
    yield from _drain_violations(new.spec)
    port = new.spec.login.port
    ports = reader.provided.find(LoginPorts) or LoginPorts()
    if not port or (old and port == old.spec.login.port):
        return  # a cluster keeps its port when the operator changes the range
    if not ports.allows(port):
        yield Violation(
            "spec.login.port", f"must be 0 (any) or one of {ports} that the cloud does not use itself"
        )
    elif _is_taken(port, new.metadata.id, reader):
        # The message does not name the other cluster: it may be another tenant's.
        yield Violation("spec.login.port", f"port {port} is taken; choose another, or 0 for any that is free")


def _subnet_violations(new: Cluster, reader: ResourceReader) -> Iterable[Violation]:
    if not new.spec.subnet_id:
        return
    subnet = reader.get(new.spec.subnet_id)
    if subnet is None or subnet.kind != SUBNET or subnet.parent_id != new.metadata.parent_id:
        yield Violation("spec.subnet_id", "is not a subnet of this project; `neo vpc subnet list` shows them")
    elif subnet.deleted_at is not None:
        yield Violation("spec.subnet_id", "is being deleted; choose another")


def _filesystem_violations(new: Cluster, reader: ResourceReader) -> Iterable[Violation]:
    others: list[str] = []
    seen: set[str] = set()
    for index, mounted in enumerate(new.spec.filesystems):
        field = f"spec.filesystems[{index}]"
        identifier, path = mounted.filesystem_id, mounted.mount_path
        row = find_filesystem(reader, identifier, new.metadata.parent_id)
        if row is None:
            yield Violation(
                f"{field}.filesystem_id",
                f'there is no filesystem "{identifier}" in this project;'
                " `neo compute filesystem list` shows them",
            )
        elif row.state == FilesystemState.ERROR:
            yield Violation(f"{field}.filesystem_id", f"{identifier} is ERROR and cannot be mounted")
        if identifier in seen:
            yield Violation(f"{field}.filesystem_id", f"{identifier} is mounted twice")
        if _is_reserved(path):
            yield Violation(
                f"{field}.mount_path",
                f"{path} belongs to the system; choose a folder such as /mnt/data or /home/data",
            )
        for other in overlaps(path, others):
            yield Violation(f"{field}.mount_path", f"{path} and {other} are one inside the other")
        others.append(path)
        seen.add(identifier)


def _is_reserved(path: str) -> bool:
    return is_of_system(path) or path in SYSTEM_PATHS


def _attachment(cluster: Cluster) -> str:
    return filesystem_attachment(cluster.metadata.id, is_read_only=False)


def _is_taken(port: int, cluster_id: str, reader: ResourceReader) -> bool:
    """Return whether another cluster has the port, by its spec or by the cloud's choice."""
    for row in reader.list(CLUSTER):
        if row.id == cluster_id:
            continue
        other = wire.message(row, Cluster)
        if port in (other.spec.login.port, other.status.login.port):
            return True
    return False
