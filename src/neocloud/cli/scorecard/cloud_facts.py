"""Facts from the records of a cloud, as far as they could be read, for evidence of the scorecard."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from neocloud.cli.scorecard.scorecard import Score

Found = tuple[str, Score, str, datetime | None]
"""Evidence: the id of its criterion, what it says, and how old what it rests on is."""


class Records(StrEnum):
    """Kinds of records, by the name that the evidence gives them."""

    NODES = "the list of nodes"
    CHECKS = "the list of checks of nodes"
    VERDICTS = "the list of failing verdicts"
    INCIDENTS = "the list of drains"
    RELIABILITY = "the record of reliability"
    WINDOWS = "the list of maintenance windows"
    TICKETS = "the list of repair tickets"
    METRICS = "the store of metrics"
    PROJECTS = "the list of projects"
    AUDIT = "the audit log"
    CLUSTERS = "the list of Slurm clusters"
    JOBS = "the record of jobs"
    SIGN_IN = "the list of providers of sign-in"
    MACHINES = "the list of machines"
    NETWORKS = "the list of networks"
    FILESYSTEMS = "the list of filesystems"
    BUCKETS = "the list of buckets"
    KUBERNETES = "the list of Kubernetes clusters"


SPEAK_OF: Mapping[Records, tuple[str, ...]] = {
    Records.NODES: ("MON-1", "LIF-3", "REL-2"),
    Records.CHECKS: ("MON-2", "MON-3", "STO-1", "STO-2", "STO-3", "NET-3"),
    Records.VERDICTS: ("STO-2",),
    Records.INCIDENTS: ("REL-1", "REL-2", "REL-3", "MON-5", "LIF-4"),
    Records.RELIABILITY: ("REL-3",),
    Records.WINDOWS: ("LIF-5",),
    Records.TICKETS: ("LIF-5",),
    Records.METRICS: ("MON-4",),
    Records.PROJECTS: ("SEC-3", "SEC-4", "LIF-2", "ORC-1", "ORC-2", "STO-1", "STO-4", "NET-1"),
    Records.AUDIT: ("SEC-8",),
    Records.CLUSTERS: ("SEC-3", "LIF-2", "ORC-1", "ORC-2", "NET-1"),
    Records.JOBS: ("LIF-2", "MON-6"),
    Records.SIGN_IN: ("ORC-1",),
    Records.MACHINES: ("SEC-3",),
    Records.NETWORKS: ("SEC-4",),
    Records.FILESYSTEMS: ("STO-1",),
    Records.BUCKETS: ("STO-1", "STO-4"),
    Records.KUBERNETES: ("ORC-3",),
}
"""Criteria that these records are evidence for."""


@dataclass(frozen=True)
class CheckResult:
    """The last answer of an active check on a node."""

    status: str
    sample: str
    """The measured value, or why it was not run, as the node's worker reported it."""
    at: datetime | None


@dataclass(frozen=True)
class NodeFacts:
    """Facts about a node from the cloud's records."""

    name: str
    is_spare: bool = False
    is_host: bool = False
    """Active checks run on workers alone."""
    verified_at: datetime | None = None
    problem: str = ""
    agent: str = ""
    """The last answer of its agent, e.g. "pass"; "" without one."""
    agent_seconds: float = 0.0
    """How often its agent checks it."""
    checked_at: datetime | None = None
    """The oldest of the last answers of its active checks; None while one has none."""
    is_covered: bool = False
    ran: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Active checks that measured something on it, and when they did last."""
    results: Mapping[str, CheckResult] = field(default_factory=dict[str, CheckResult])
    """The last answer of each active check."""
    cluster_id: str = ""
    gpus: int = 0
    is_simulated: bool = False
    """A part of it is not real hardware."""
    has_mount_fault: bool = False
    """A mount is missing or read-only now."""


@dataclass(frozen=True)
class IncidentFacts:
    """One drain by the controller."""

    node: str
    detected_at: datetime
    ready_at: datetime | None = None
    """When a spare was in service in its place."""
    ended_at: datetime | None = None
    was_restarted: bool = False
    needed_people: bool = False
    is_asked_for: bool = False
    """A person asked for the node's replacement; no check found a fault."""
    credited_seconds: int = 0


@dataclass(frozen=True)
class ReliabilityFacts:
    end: datetime
    node_days: float
    faults: int
    availability: float | None = None


@dataclass(frozen=True)
class AuditFacts:
    newest: datetime
    oldest: datetime
    looked_at: int
    """So many of the newest records were looked at."""
    by_cloud: int = 0
    """Number of these actions that the cloud did by itself: there was no call."""
    lacking: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of the others that lack "who", "from where", "on what" or "which result"."""


@dataclass(frozen=True)
class ClusterFacts:
    """A Slurm cluster of the operators' own projects."""

    id: str
    created_at: datetime
    is_ready: bool = True
    users: int = 0
    """Linux users besides root."""
    has_groups: bool = False
    has_topology: bool = False
    first_job_ended_at: datetime | None = None
    """The end of its first job that completed; None where none of its first jobs did."""


@dataclass(frozen=True)
class GpuUseFacts:
    """Facts about the GPUs of the jobs that ran at the time of the question."""

    jobs: int
    """Jobs with GPUs that were looked at."""
    known: int = 0
    simulated: int = 0


@dataclass(frozen=True)
class CloudFacts:
    """Empty sequences: there are none, if `unread` does not name the records."""

    nodes: Sequence[NodeFacts] = ()
    incidents: Sequence[IncidentFacts] = ()
    windows: Sequence[datetime] = ()
    """When maintenance windows were announced."""
    tickets: Sequence[datetime] = ()
    """When repair tickets of the break-fix API were opened, updated or closed."""
    series: Sequence[str] | None = None
    """The series of `OF_DASHBOARDS` that the store of metrics has now; None where it was not read."""
    mount_failures: Sequence[datetime] = ()
    """Failing verdicts on mounts that nobody refuted."""
    reliability: ReliabilityFacts | None = None
    projects: int = 0
    """Projects of the operators' tenant."""
    audit: AuditFacts | None = None
    """None while there is no record."""
    clusters: Sequence[ClusterFacts] = ()
    providers: int = 0
    """Providers by which people sign in, e.g. of the company."""
    gpu_use: GpuUseFacts | None = None
    machines: int = 0
    networks: int = 0
    filesystems: int = 0
    buckets: int = 0
    versioned: int = 0
    """Buckets that keep versions of objects."""
    serves_kubernetes: bool | None = None
    """None where it was not asked."""
    is_emulated: bool = False
    """Nothing real is behind the API."""
    unread: Mapping[Records, str] = field(default_factory=dict[Records, str])
    """Unreadable records, with the reason."""
    cut: AbstractSet[Records] = frozenset()
    """Records of which only the first were read."""
