"""Containers of a pod: their programs, environment, limits, probes and mounts. Pure.

A field that is None was not given and is left out of the dictionary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from neocloud.engines.manifest.base import ManifestError, check_name, check_port, quantity

GPU = "nvidia.com/gpu"
EPHEMERAL_STORAGE = "ephemeral-storage"
"""Bytes that a container writes on its root file system."""
_LIMITS = ("cpu", "memory", GPU, EPHEMERAL_STORAGE)
_PROPAGATION = (None, "None", "HostToContainer", "Bidirectional")
Number = int | float


@dataclass(frozen=True)
class SeccompProfile:
    """The filter of system calls. The engines' default is the only one."""

    type: str = ""

    def __post_init__(self) -> None:
        if self.type != "RuntimeDefault":
            raise ManifestError(
                f"{self.type!r} is not supported; leave it out or use RuntimeDefault, which every "
                "container has."
            )


@dataclass(frozen=True, kw_only=True)
class LinuxCapabilities:
    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SecurityContext:
    """Rights of a container."""

    privileged: bool | None = None
    allow_privilege_escalation: bool | None = None
    capabilities: LinuxCapabilities | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    read_only_root_filesystem: bool | None = None
    seccomp_profile: SeccompProfile | None = None

    def __post_init__(self) -> None:
        if self.privileged:
            raise ManifestError(
                "is true, and a privileged container is the host's root; add single capabilities.",
                field="privileged",
            )


@dataclass(frozen=True)
class KeyReference:
    """One key of a ConfigMap or Secret."""

    name: str
    key: str
    optional: bool = False


@dataclass(frozen=True)
class FieldReference:
    field_path: str


@dataclass(frozen=True, kw_only=True)
class VariableSource:
    secret_key_ref: KeyReference | None = None
    config_map_key_ref: KeyReference | None = None
    field_ref: FieldReference | None = None

    def __post_init__(self) -> None:
        if [self.secret_key_ref, self.config_map_key_ref, self.field_ref].count(None) != 2:
            raise ManifestError("needs exactly one of secretKeyRef, configMapKeyRef and fieldRef.")


@dataclass(frozen=True)
class Variable:
    """An environment variable with a value, or with a source of one."""

    name: str
    value: str | None = None
    value_from: VariableSource | None = None

    def __post_init__(self) -> None:
        if not self.name or "=" in self.name:
            raise ManifestError(f"{self.name!r} cannot name an environment variable.", field="name")


@dataclass(frozen=True)
class ObjectReference:
    name: str
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class VariablesSource:
    """All keys of a ConfigMap or Secret as variables."""

    prefix: str = ""
    config_map_ref: ObjectReference | None = None
    secret_ref: ObjectReference | None = None

    def __post_init__(self) -> None:
        if (self.config_map_ref is None) == (self.secret_ref is None):
            raise ManifestError("needs exactly one of configMapRef and secretRef.")


@dataclass(frozen=True)
class ContainerPort:
    container_port: int
    protocol: str | None = None
    name: str | None = None
    host_ip: str | None = field(default=None, metadata={"key": "hostIP"})
    host_port: int | None = None

    def __post_init__(self) -> None:
        check_port(self.container_port, "containerPort")
        if self.host_port is not None:
            check_port(self.host_port, "hostPort")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Quantities by resource, such as {"cpu": "500m", "memory": "2Gi"}."""

    limits: Mapping[str, str | Number] = field(default_factory=dict[str, str | Number])
    requests: Mapping[str, str | Number] = field(default_factory=dict[str, str | Number])

    def __post_init__(self) -> None:
        for resource, value in self.limits.items():
            if resource not in _LIMITS:
                raise ManifestError("is not supported by this engine.", field=f"limits.{resource}")
            amount = quantity(value, f"limits.{resource}")
            if amount == 0 and resource != GPU:
                raise ManifestError("is 0; leave it out for no limit.", field=f"limits.{resource}")


@dataclass(frozen=True)
class TcpSocket:
    port: int

    def __post_init__(self) -> None:
        check_port(self.port, "port")


@dataclass(frozen=True)
class HttpGet:
    port: int
    path: str | None = None

    def __post_init__(self) -> None:
        check_port(self.port, "port")
        path = "/" if self.path is None else self.path
        if not path.startswith("/") or not path.isprintable() or " " in path:
            raise ManifestError(f"{path!r} must begin with / and hold no spaces.", field="path")


@dataclass(frozen=True)
class Command:
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.command:
            raise ManifestError("is empty; name a program.", field="command")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A question to a container: one action, and how often it is repeated."""

    tcp_socket: TcpSocket | None = None
    http_get: HttpGet | None = None
    exec: Command | None = None
    initial_delay_seconds: Number | None = None
    period_seconds: Number | None = None
    timeout_seconds: Number | None = None
    success_threshold: int | None = None
    failure_threshold: int | None = None

    def __post_init__(self) -> None:
        if [self.tcp_socket, self.http_get, self.exec].count(None) != 2:
            raise ManifestError("needs exactly one of tcpSocket, httpGet and exec.")


@dataclass(frozen=True)
class Mount:
    """The path at which a container has one of its pod's volumes."""

    name: str
    mount_path: str
    sub_path: str | None = None
    read_only: bool = False
    mount_propagation: str | None = None

    def __post_init__(self) -> None:
        if not self.mount_path.startswith("/"):
            raise ManifestError("must be an absolute path.", field="mountPath")
        sub_path = PurePosixPath(self.sub_path or "")
        if sub_path.is_absolute() or ".." in sub_path.parts:
            raise ManifestError("must stay inside the volume.", field="subPath")
        if self.mount_propagation not in _PROPAGATION:
            raise ManifestError(
                f"is {self.mount_propagation!r}, which is not known.", field="mountPropagation"
            )


@dataclass(frozen=True, kw_only=True)
class Container:
    name: str
    image: str
    image_pull_policy: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str | None = None
    ports: tuple[ContainerPort, ...] | None = None
    """Empty is not the same as None: it is written, and so it is part of the pod's fingerprint."""
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None
    env: tuple[Variable, ...] | None = None
    """None has the meaning that it has for `ports`."""
    env_from: tuple[VariablesSource, ...] = ()
    resources: Resources | None = None
    security_context: SecurityContext | None = None
    volume_mounts: tuple[Mount, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "name", label=True)
        if not self.image or any(sign.isspace() for sign in self.image):
            raise ManifestError(f"is {self.image!r}; it must be the name of an image.", field="image")

    @property
    def limits(self) -> Mapping[str, str | Number]:
        return self.resources.limits if self.resources else {}

    @property
    def disk_bytes(self) -> int:
        """The most that it writes on its root file system; 0: no limit."""
        return int(quantity(self.limits.get(EPHEMERAL_STORAGE, 0), EPHEMERAL_STORAGE))


def variables(values: Mapping[str, str]) -> tuple[Variable, ...]:
    """Environment variables with these values."""
    return tuple(Variable(name, value) for name, value in values.items())


def limits(*, cpus: int, memory_mib: int, gpus: int = 0, disk_bytes: int = 0) -> Resources:
    """Limits of a container; without GPUs or a limit of its disk these are not mentioned."""
    found: dict[str, str | Number] = {"cpu": str(cpus), "memory": f"{memory_mib}Mi"}
    found |= {EPHEMERAL_STORAGE: str(disk_bytes)} if disk_bytes else {}
    return Resources(limits=found | ({GPU: str(gpus)} if gpus else {}))
