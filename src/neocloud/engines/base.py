# pyright: strict
"""The border between the control plane and whatever runs workloads.

An engine takes Kubernetes objects as plain dicts and makes them true. The set it understands is small and
the same for every engine: Namespace, VirtualNetwork, NetworkPolicy, ConfigMap, Secret, PersistentVolumeClaim,
Service, Pod.
An engine keeps no wishes of its own: after a restart it adopts what runs by looking at the world.

What an engine promises:
- `apply` may be repeated. Nothing happens to a pod whose spec did not change; a changed pod is replaced.
  A changed ConfigMap or Secret is updated in place inside running pods.
- A Namespace is an isolation border: pods of one resolve and reach each other by `hostname`, and cannot
  reach pods of another; unless their interface is on a VirtualNetwork, which has members of many namespaces
  and its own rules. What such a pod may change while it runs are its security groups and public address.
- `remove` may be repeated and returns only when the objects are gone.
- An engine never decides that a pod should exist; whoever applied it does.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from neocloud.engines.manifest import Manifest

KubernetesObject = dict[str, Any]
"""A manifest: apiVersion, kind, metadata (name, namespace, labels, annotations), spec or data."""


MAX_OUTPUT_BYTES = 2**20
"""Most bytes of stdout and stderr together that `exec` takes from a command unless its caller allows more."""
MAX_LINE_BYTES = 16 * 2**10
"""Longest line of a log, in bytes; a longer one is split, so that no program decides how much is held."""
MAX_LOG_PAGE_LINES = 10_000
MAX_LOG_PAGE_BYTES = 2 * 2**20
"""Most that one `log_page` returns. A gRPC client takes 4 MiB in one message."""


class EngineError(Exception):
    """The engine could not do what was asked. The message says what happened and what to do next."""


class OutputTooLarge(EngineError):
    """A command printed more than its caller takes; it was killed."""

    def __init__(self, program: str, limit: int) -> None:
        super().__init__(
            f"{program} printed more than {limit} bytes and was killed; make it print less, "
            "or write to a file and read that in pieces."
        )


class EngineUnavailable(EngineError):
    """The engine itself does not answer; trying again later may help."""


class PathRefused(EngineError):
    """A path in a volume leads over a link or to a device; trying again helps only when that was changed."""


@dataclass(frozen=True)
class Reference:
    """Names one object."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: KubernetesObject) -> "Reference":
        metadata = manifest["metadata"]
        kind = manifest["kind"]
        namespace = metadata["name"] if kind == "Namespace" else metadata.get("namespace", "")
        return cls(kind, namespace, metadata["name"])


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True)
class ObservedPod:
    """What the engine sees of one pod right now."""

    reference: Reference
    phase: PodPhase
    ready: bool
    ip: str | None
    labels: dict[str, str]
    restart_count: int
    started_at: datetime | None
    message: str = ""


@dataclass(frozen=True)
class Observation:
    """Everything of one namespace that exists, whoever made it."""

    pods: tuple[ObservedPod, ...] = ()
    others: frozenset[Reference] = frozenset()

    def pod(self, name: str) -> ObservedPod | None:
        return next((pod for pod in self.pods if pod.reference.name == name), None)


class EventKind(StrEnum):
    POD_STARTED = "PodStarted"
    POD_DIED = "PodDied"
    POD_REMOVED = "PodRemoved"


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
class Accelerator:
    """One GPU found on the machine; `model` as the driver names it, memory in MiB."""

    vendor: str
    model: str
    memory_mib: int
    index: int
    pci_address: str = ""
    """ "0000:01:00.0" where it can be handed to a guest; "" where that is not known."""
    iommu_group: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What this engine on this machine can do; shown by `neo status`."""

    engine: str
    version: str
    cpus: int
    memory_mib: int
    accelerators: tuple[Accelerator, ...] = ()
    isolates_namespaces: bool = False
    enforces_cpu: bool = False
    enforces_memory: bool = False
    enforces_volume_size: bool = False
    is_boundless: bool = False
    """There is always room for one more without GPUs, since nothing really runs."""
    details: dict[str, str] = field(default_factory=dict[str, str])
    """Anything else worth showing: runtime, cgroup version, storage driver, limits that were found.

    `acceleration` is always there: "kvm" or "tcg", what a virtual machine can be run with.
    """
    warnings: tuple[str, ...] = ()


class Engine(Protocol):
    """Nine verbs. All raise EngineError; EngineUnavailable when nothing answered."""

    async def capabilities(self) -> Capabilities: ...

    async def apply(self, objects: "Sequence[Manifest | KubernetesObject]") -> None:
        """Make these objects exist as given, in this order of kinds: Namespace first, Pod last."""
        ...

    async def observe(self, namespace: str) -> Observation:
        """Look at the world; an unknown namespace is an empty observation."""
        ...

    async def remove(self, references: Sequence[Reference]) -> None:
        """Remove these; a Namespace takes with it all it contains, volumes included."""
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

        Raises EngineError when `timeout_seconds` have passed, and OutputTooLarge when stdout and stderr
        together exceed `max_output_bytes`; the command is killed in both cases.
        """
        ...

    def logs(
        self, pod: Reference, *, container: str | None = None, follow: bool = False, tail: int = 0
    ) -> AsyncIterator[str]:
        """Lines of output, oldest first; `tail` 0 means all. A line has at most MAX_LINE_BYTES."""
        ...

    async def log_page(
        self, pod: Reference, *, container: str | None = None, first_line: int = 0, tail: int = 0
    ) -> LogPage:
        """Return lines from `first_line` on, or the last `tail` lines where `tail` is not 0.

        A page holds at most MAX_LOG_PAGE_LINES lines and MAX_LOG_PAGE_BYTES bytes. A `first_line` beyond the
        end means that the log began anew: the page starts at 0.
        """
        ...

    def events(self) -> AsyncIterator[EngineEvent]:
        """Pods starting, dying and going, from now on. Ends only when the caller stops reading."""
        ...

    async def close(self) -> None:
        """Let go of connections. Workloads go on."""
        ...
