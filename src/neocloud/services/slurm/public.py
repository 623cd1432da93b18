"""The interface for the fleet service: the workers of a cluster, and actions on them; and the contents of
clusters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.compute.public import preset

NODE_POOL = "neocloud.fleet.v1.NodePool"
"""The kind of the pools that a cluster keeps for the fleet service."""
FLEET_PREFIX = "neocloud: "
"""Reasons of drains that the fleet controller owns start with it."""
RESERVATION_PREFIX = "neocloud-"
"""Names of reservations for maintenance windows start with it."""
SPARE_REASON = FLEET_PREFIX + "spare"
"""Reason of verified workers that wait for one to fail."""
LOST_PREFIX = FLEET_PREFIX + "lost: "
"""Reason of workers whose pod was lost: kept from jobs by their cluster until the fleet controller has
decided.
"""


_SILENT = frozenset({"NOT_RESPONDING", "UNKNOWN", "INVALID_REG"})


@dataclass(frozen=True)
class Worker:
    """One worker as the engine and Slurm know it, read within one look."""

    name: str
    node_set: str
    place: tuple[str, ...] = ()
    """The switches above it, from the top to the leaf, as the cluster's topology names them."""
    started_at: datetime | None = None
    """When its pod last started; None while it does not run."""
    problem: str = ""
    """Why its pod does not run."""
    states: frozenset[str] = frozenset()
    """Slurm's names; none while Slurm does not know the worker."""
    reason: str = ""
    """Reason of its drain."""
    is_registered: bool = False
    """Whether the slurmd that registered last is that of the pod that runs now."""
    is_busy: bool = False
    """Whether a job holds processors of it or is being cleaned up."""
    job: int | None = None
    """The lowest number of the jobs that run on it."""
    hardware: str = ""
    """Platform and preset, such as "gpu-h100-sxm/8gpu-128vcpu-1600gb"."""
    host: str = ""
    """The host that its pod is on; "" of an engine that has one host."""
    ended: str = ""
    """How the run of its pod before this one ended; "" where that is not known."""

    @property
    def boot(self) -> str:
        """Names the start of its pod; "" while it does not run."""
        return self.started_at.isoformat() if self.started_at else ""

    @property
    def is_drained(self) -> bool:
        return "DRAIN" in self.states

    @property
    def is_responding(self) -> bool:
        """Return whether its slurmd answers. A worker that its cluster set DOWN must be resumed first."""
        is_down = "DOWN" in self.states and not self.reason.startswith(FLEET_PREFIX)
        return self.is_registered and not is_down and not self.states & _SILENT


@dataclass(frozen=True)
class Measurement:
    """The measurement of one check on a worker, against the worker's preset."""

    check: str
    passed: bool
    sample: str
    threshold: str


@dataclass(frozen=True)
class Reservation:
    """Workers that Slurm keeps free for maintenance."""

    name: str
    workers: tuple[str, ...]
    start: datetime
    end: datetime


class ReservationRefused(Exception):
    """Slurm refused a reservation; the message is Slurm's."""


class WorkersUnreachable(Exception):
    """The engine, Slurm or the worker did not answer, so nothing is known; the message says what."""


class AgentMissing(WorkersUnreachable):
    """The agent is not in the worker's pod, where it is put after each start."""


class WorkerNodes(Protocol):
    """The workers of clusters; those of elastic node sets are not among them."""

    async def look(self, cluster_id: str, node_set: str) -> Sequence[Worker]:
        """Return the workers that the spec of the cluster asks for. Raises WorkersUnreachable when the engine
        or Slurm does not answer, and while the cluster takes no jobs."""
        ...

    async def drain(self, cluster_id: str, worker: str, reason: str) -> None:
        """Keep new jobs from a worker. Raises WorkersUnreachable."""
        ...

    async def resume(self, cluster_id: str, worker: str) -> None:
        """Let new jobs start on a worker. Raises WorkersUnreachable."""
        ...

    async def restart(self, cluster_id: str, worker: str) -> None:
        """Remove the pod of a worker, which its cluster creates again. Raises WorkersUnreachable."""
        ...

    async def reservations(self, cluster_id: str) -> Mapping[str, Reservation]:
        """Return those with names that begin with RESERVATION_PREFIX. Raises WorkersUnreachable."""
        ...

    async def reserve(self, cluster_id: str, reservation: Reservation) -> None:
        """Reserve workers for maintenance: jobs that would not end before its start do not start there, and
        running jobs continue. Raises ReservationRefused, and WorkersUnreachable."""
        ...

    async def cancel_reservation(self, cluster_id: str, name: str) -> None:
        """Raises ReservationRefused, and WorkersUnreachable."""
        ...

    async def measure(self, cluster_id: str, worker: str, seconds: float) -> Sequence[Measurement]:
        """Compare a worker with its preset, within so many seconds. Raises WorkersUnreachable when it gives
        no answer that can be used."""
        ...

    async def run(
        self,
        cluster_id: str,
        worker: str,
        command: Sequence[str],
        stdin: bytes,
        seconds: float,
        most_bytes: int,
    ) -> bytes:
        """Run a program on a worker, beside Slurm, as root of the cluster, and return what it printed. That
        root may print anything in its place. Raises WorkersUnreachable, also where it fails or prints more
        than `most_bytes`."""
        ...


class WorkerAgents(Protocol):
    """The node agents of workers, each a program in the worker's pod that tenants do not reach."""

    async def ask(
        self,
        cluster_id: str,
        worker: str,
        *,
        after: int,
        of: str,
        trusted: Sequence[str],
        inventory: str,
        seconds: float,
    ) -> bytes:
        """Return what the agent says as `fleet.agent.carry.decode` reads it: its records up to `after`, of
        the spool `of`, are kept and may be dropped, these checks may keep jobs away, and the list of parts
        with this id is known. Raises WorkersUnreachable."""
        ...

    async def install(self, cluster_id: str, worker: str, program: bytes, seconds: float) -> None:
        """Put this agent in the place of the one that is there. Raises WorkersUnreachable."""
        ...


@dataclass(frozen=True)
class NodeEvent:
    """An event of a worker, in words that its tenant may read."""

    at: float
    worker: str
    text: str


class NodeHistoryUnknown(Exception):
    """The events of the workers cannot be read; the message says why."""


class NodeHistory(Protocol):
    """The events of workers, which the fleet service keeps."""

    async def events(
        self, cluster_id: str, workers: Sequence[str], start: float, end: float
    ) -> Sequence[NodeEvent]:
        """Return what happened to these workers in a time, oldest first. Raises NodeHistoryUnknown, also
        where nobody watches workers of the cluster."""
        ...


def demand(spec: ClusterSpec) -> dict[str, int]:
    """Return the units of all node sets that are not elastic, by SKU, e.g. {"cpu-d3.vcpu": 16}."""
    total: dict[str, int] = {}
    for node_set in spec.node_sets:
        if node_set.HasField("elastic"):
            continue
        for sku, units in preset(node_set.platform, node_set.preset).skus().items():
            total[sku] = total.get(sku, 0) + units * node_set.count
    return {sku: units for sku, units in total.items() if units}
