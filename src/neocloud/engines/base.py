"""The interface between the control plane and the engine that runs workloads.

An engine applies Kubernetes objects: it creates and changes workloads until they match. Every engine supports
the same few kinds: Namespace, VirtualNetwork, NetworkPolicy, ConfigMap, Secret, PersistentVolumeClaim,
Service, Pod. An engine has no desired state of its own: after a restart it adopts the workloads that it finds
running.

What an engine promises:
- `apply` may be repeated. Nothing happens to a pod whose spec did not change; a changed pod is replaced.
  A changed ConfigMap or Secret is updated in place inside running pods.
- Namespaces are isolated: pods of one resolve and reach each other by `hostname`, and cannot reach pods of
  another, unless their interface is on a VirtualNetwork, which has members of many namespaces and its own
  rules. Such a pod may change its security groups and its public address while it runs.
- `remove` may be repeated and returns only when the objects have been removed.
- Where `Capabilities.enforces_volume_size` is set, a filesystem (access mode ReadWriteMany) holds no more
  than its size: programs that write more get ENOSPC, and only they. It can grow, and not shrink. Volumes that
  were created while it was not set stay as they are.
- Where `Capabilities.enforces_container_disk` is set, a container whose image is a root file system holds no
  more than its limit `ephemeral-storage`, beside its volumes: programs that write more get ENOSPC, and only
  they. Written data stay when the container is started again, and are removed with it.
- A pulled image takes no more of the disk than its pull allows, has the name that its pull gives it, and
  replaces no other. Pods run it as its settings say, and under their own limits. Remains of a failed or
  cancelled pull are removed.
- Pods reach a platform service by its name and port where a NetworkPolicy of their namespace, or their
  VirtualNetwork, names it; on a virtual network their security groups must allow it, too. Nothing else
  answers at its address, and other pods do not reach it.
- Where `Capabilities.shares_filesystems` is set, a filesystem has a path for processes of this machine
  (`shared_folder`), at which they see what pods write, and pods what they write.
- An engine never decides that a pod should exist; its caller does, by applying it.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from neocloud.engines.images import ImagePull
    from neocloud.engines.manifest import Manifest

KubernetesObject = dict[str, Any]
"""A manifest: apiVersion, kind, metadata (name, namespace, labels, annotations), spec or data."""


MAX_OUTPUT_BYTES = 2**20
"""Most bytes of stdout and stderr together that `exec` reads from a command unless its caller allows more."""
MAX_LINE_BYTES = 16 * 2**10
"""Longest line of a log, in bytes; a longer one is split, so that programs cannot fill the memory."""
MAX_LOG_PAGE_LINES = 10_000
MAX_LOG_PAGE_BYTES = 2 * 2**20
"""Limits of one `log_page`. A gRPC client accepts 4 MiB in one message."""


class EngineError(Exception):
    """The engine failed. The message says what happened and what to do next."""


class CommandInterrupted(EngineError):
    """A command was started, and its result is not known: it may have done all of its work, or none."""


class OutputTooLarge(CommandInterrupted):
    """A command printed more than its caller accepts; it was killed."""

    def __init__(self, program: str, limit: int) -> None:
        super().__init__(
            f"{program} printed more than {limit} bytes and was killed; make it print less, "
            "or write to a file and read that in pieces."
        )


class EngineUnavailable(EngineError):
    """The engine itself does not answer; a later attempt may succeed."""


class PathRefused(EngineError):
    """A path in a volume leads over a link or to a device; a retry succeeds only after that was changed."""


@dataclass(frozen=True)
class Reference:
    """Names one object."""

    kind: str
    namespace: str
    name: str


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True)
class ObservedPod:
    """The observed state of one pod."""

    reference: Reference
    phase: PodPhase
    ready: bool
    ip: str | None
    labels: dict[str, str]
    restart_count: int
    started_at: datetime | None
    message: str = ""
    node: str = ""
    """The host that it is on; "" of an engine that has one host."""
    last_exit: int | None = None
    """The code with which a program of it ended last, 128 and its number for a signal; None where that is not
    known, as after a start of the control plane."""


@dataclass(frozen=True)
class Observation:
    """Everything that exists in one namespace."""

    pods: tuple[ObservedPod, ...] = ()
    others: frozenset[Reference] = frozenset()
    unsized: frozenset[Reference] = frozenset()
    """Filesystems among the others whose size is not enforced."""

    def pod(self, name: str) -> ObservedPod | None:
        return next((pod for pod in self.pods if pod.reference.name == name), None)


class EventKind(StrEnum):
    POD_STARTED = "PodStarted"
    POD_DIED = "PodDied"
    POD_REMOVED = "PodRemoved"
    POD_READINESS = "PodReadiness"
    """Its readiness probes answer for the first time, or again, or do not any more."""


@dataclass(frozen=True)
class EngineEvent:
    kind: EventKind
    pod: Reference
    at: datetime
    exit_code: int | None = None


@dataclass(frozen=True)
class ExecResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class LogPage:
    """Part of a container's log. Lines are counted from 0 since the container's last start."""

    lines: tuple[str, ...]
    next_line: int
    """The number of the line after the last one in `lines`."""


@dataclass(frozen=True)
class PlatformService:
    """A program of the cloud itself, outside of all pods, that they may be allowed to reach by TCP.

    Engines get them when they are made. Manifests name them.
    """

    name: str
    host_name: str
    """The name by which pods that may reach it call it."""
    address: IPv4Address
    """Pods find it there; it belongs to nothing else."""
    port: int
    target_port: int
    """Where the program listens at this address."""


NO_IOMMU = (
    "this host has no IOMMU, or it is switched off; switch on VT-d or AMD-Vi in the firmware, add "
    "intel_iommu=on (Intel) and iommu=pt to the kernel's command line, and restart the host"
)


@dataclass(frozen=True)
class Accelerator:
    """One GPU found on the machine; `model` as the driver names it, memory in MiB."""

    vendor: str
    model: str
    memory_mib: int
    index: int
    """The driver's number. Numbers move up when a GPU is lost or passed to a guest: nothing is kept by it."""
    pci_address: str = ""
    """ "0000:01:00.0"; "" where it is not known."""
    iommu_group: str = ""
    """The group that is passed to a guest as a whole; "" without an IOMMU."""
    uuid: str = ""
    obstacle: str = ""
    """Why it cannot be passed to a virtual machine, and what to do. Containers can have it nevertheless."""

    @property
    def key(self) -> str:
        """Return the key by which it is recorded: it stays the same over a reboot."""
        return self.uuid or self.pci_address or str(self.index)

    @property
    def passthrough_problem(self) -> str:
        """Why it cannot be passed to a virtual machine, and what to do; "" where it can."""
        if self.obstacle:
            return self.obstacle
        if not self.pci_address:
            return "its PCI address is unknown; install a driver that reports it, and restart Neocloud"
        return "" if self.iommu_group else NO_IOMMU


@dataclass(frozen=True)
class Capabilities:
    """The properties of this engine on this machine; `neo status` shows them."""

    engine: str
    version: str
    cpus: int
    memory_mib: int
    accelerators: tuple[Accelerator, ...] = ()
    isolates_namespaces: bool = False
    enforces_cpu: bool = False
    enforces_memory: bool = False
    enforces_volume_size: bool = False
    enforces_container_disk: bool = False
    shares_filesystems: bool = False
    """Whether `shared_folder` is served: processes of this machine can work on filesystems."""
    is_boundless: bool = False
    """Capacity for workloads without GPUs is unlimited, since nothing really runs."""
    details: dict[str, str] = field(default_factory=dict[str, str])
    """Anything else worth showing: runtime, cgroup version, storage driver, limits that were found.

    `acceleration` is always there: "kvm" or "tcg", what a virtual machine can be run with.
    """
    warnings: tuple[str, ...] = ()


class Engine(Protocol):
    """Runs workloads. All methods raise EngineError; EngineUnavailable when nothing answered."""

    async def capabilities(self) -> Capabilities: ...

    async def apply(self, objects: "Sequence[Manifest]") -> bool:
        """Make these objects exist as given, in this order of kinds: Namespace first, Pod last.

        Returns whether a pod may have changed: if not, what was observed of them before still holds."""
        ...

    async def observe(self, namespace: str) -> Observation:
        """Return the observed state of a namespace; an unknown namespace is an empty observation."""
        ...

    async def remove(self, references: Sequence[Reference]) -> None:
        """Remove these objects; a Namespace with everything in it, including volumes."""
        ...

    async def restart(self, pod: Reference) -> None: ...

    async def exec(
        self,
        pod: Reference,
        command: Sequence[str],
        *,
        container: str | None = None,
        stdin: bytes = b"",
        timeout_seconds: float = 60.0,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run a command in a pod's container (the first unless named).

        Raises CommandInterrupted when `timeout_seconds` have passed, and OutputTooLarge when stdout and
        stderr together exceed `max_output_bytes`; the command is killed in both cases. CommandInterrupted
        also says that the engine failed while the command ran; with other errors it was not started.
        """
        ...

    def logs(
        self, pod: Reference, *, container: str | None = None, follow: bool = False, tail: int = 0
    ) -> AsyncIterator[str]:
        """Yield lines of output, oldest first; `tail` 0 means all. A line has at most MAX_LINE_BYTES."""
        ...

    async def log_page(
        self, pod: Reference, *, container: str | None = None, first_line: int = 0, tail: int = 0
    ) -> LogPage:
        """Return lines from `first_line` on, or the last `tail` lines where `tail` is not 0.

        A page holds at most MAX_LOG_PAGE_LINES lines and MAX_LOG_PAGE_BYTES bytes. A `first_line` beyond the
        end means that the log was started again: the page starts at 0.
        """
        ...

    def events(self) -> AsyncIterator[EngineEvent]:
        """Yield starts, ends, removals and changes of the readiness of pods from now on, until the caller
        stops reading. One may be missed while the control plane is down, and a pod of an engine that has no
        probes of its own becomes ready without one."""
        ...

    async def pull_image(self, pull: "ImagePull") -> None:
        """Have a registry's image under its local name; do nothing where it is there. May take minutes.

        Raises ImageTooLarge.
        """
        ...

    async def pulled_images(self) -> frozenset[str]:
        """Return the local names of the images that were pulled."""
        ...

    async def remove_image(self, image: str) -> None:
        """Remove a pulled image, unless it is gone. Raises EngineError while a pod uses it."""
        ...

    async def stored_bytes(self, claim: Reference) -> int:
        """Return how much of a disk the content of a volume takes; 0 for a volume that is not there."""
        ...

    async def shared_folder(self, claim: Reference) -> str:
        """Return the path of a filesystem's files for processes of this machine, such as the object gateway.

        It stays mounted there until it is removed, has to be unmounted to grow, or the machine restarts; so
        ask again. Where it is not mounted the path does not exist.
        """
        ...

    def removal_commands(self, namespace: str) -> Sequence[str]:
        """Return shell commands for the host that list what runs in a namespace, and then remove it.

        They are for an operator whose control plane no longer knows the namespace; files stay.
        """
        ...

    async def close(self) -> None:
        """Close connections. Workloads continue."""
        ...
