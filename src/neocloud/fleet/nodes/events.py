"""Events of nodes: typed and only appended; the state of a node is a fold over them.

Times are seconds since an epoch that all events of a fleet share. No event carries its place in the log:
the fold judges by times, boot ids and attempt numbers, so that late and duplicate events change nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from neocloud.fleet.nodes.parts import HostPart, Reader
from neocloud.fleet.policy.actions import Action, Suite

OURS = "neocloud"
"""Owner of the drains that the controller orders. Every other owner is foreign."""


class Status(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    """The check did not give an answer, which is never a pass."""


class Phase(StrEnum):
    """The phases in the life of a node."""

    ORDERED = "ordered"
    RACKED = "racked"
    ONBOARDING = "onboarding"
    SEATRIAL = "seatrial"
    FIRMWARE = "firmware"
    BURN_IN = "burn_in"
    READY_SPARE = "ready_spare"
    IN_SERVICE = "in_service"
    SUSPECT = "suspect"
    DRAINING = "draining"
    DRAINED = "drained"
    REMEDIATING = "remediating"
    VERIFYING = "verifying"
    TRIAGE = "triage"
    DEBUG = "debug"
    RMA_OUT = "rma_out"
    RMA_RETURNED = "rma_returned"
    RETIRED = "retired"
    MAINTENANCE = "maintenance"
    QUARANTINED_RACK = "quarantined_rack"


class CheckScope(StrEnum):
    """The scope that a failing check names, before topology is looked at."""

    NODE = "node"
    LINK = "link"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Registered(Event):
    """A node and its place become known."""

    rack: str
    leaf: str
    phase: Phase = Phase.ORDERED


@dataclass(frozen=True, slots=True)
class Booted(Event):
    """An operating system started; what was known of the boot before it proves nothing now."""

    boot: str
    ended: str = ""
    """How what ran before ended; "" where that is not known."""


@dataclass(frozen=True, slots=True)
class Verdict(Event):
    """A check's answer, with what it was made from."""

    id: str
    check: str
    status: Status
    boot: str
    sample: str
    threshold: str
    source: str
    version: str
    action: Action = Action.REBOOT
    """Lowest rung of the ladder that is worth trying."""
    scope: CheckScope = CheckScope.NODE
    is_fatal: bool = False
    """Whether the workload is dead already, so that a drain takes nothing from it."""
    devices: str = ""
    """The devices that it is about, with commas: slots of parts of the node."""


def threshold_in_words(threshold: str) -> str:
    """Return the threshold of a verdict as text. Those of agents say what fails, others what is wanted."""
    return f"{'fails' if threshold.startswith(('over ', 'below ')) else 'wanted'} {threshold}"


@dataclass(frozen=True, slots=True)
class Judged(Event):
    """An independent test or a person found whether a failing verdict was right; the record of precision."""

    check: str
    verdict: str
    is_confirmed: bool
    by: str = ""
    """"test:CHECK", or "operator:ID"."""


@dataclass(frozen=True, slots=True)
class RecordElsewhere(Event):
    """The record of a check on nodes of other pools, with a bounded number of judgements of each tenant. It
    belongs to no node, and replaces the last record of the check.
    """

    check: str
    confirmed: int
    refuted: int


@dataclass(frozen=True, slots=True)
class DrainRequested(Event):
    owner: str
    evidence: str
    check: str = ""
    """Check whose verdict the evidence is, for the breakers."""
    is_dead: bool = False
    """Whether it was ordered though breakers were open: the node could run nothing, and a spare was ready."""


@dataclass(frozen=True, slots=True)
class DrainReleased(Event):
    owner: str


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """No workload runs on the node any more."""


@dataclass(frozen=True, slots=True)
class StepStarted(Event):
    action: Action
    attempt: int
    deadline: float


@dataclass(frozen=True, slots=True)
class StepEnded(Event):
    attempt: int
    succeeded: bool


@dataclass(frozen=True, slots=True)
class VerificationStarted(Event):
    suite: Suite
    attempt: int
    deadline: float


@dataclass(frozen=True, slots=True)
class VerificationEnded(Event):
    attempt: int
    passed: bool
    valid_until: float = 0.0
    """End of the certificate that a pass gives."""


@dataclass(frozen=True, slots=True)
class SpareReserved(Event):
    """A verified node will take the place of another, or fill a gap when `replaces` is empty."""

    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Attached(Event):
    """The network and the storage of the reserved node are in place."""


@dataclass(frozen=True, slots=True)
class Returned(Event):
    """The node is in service again."""


@dataclass(frozen=True, slots=True)
class Assigned(Event):
    tenant: str
    job: str


@dataclass(frozen=True, slots=True)
class Unassigned(Event):
    job: str


@dataclass(frozen=True, slots=True)
class Occupied(Event):
    """A job runs on the node though none should have started there: it is charged."""

    job: str


@dataclass(frozen=True, slots=True)
class Vacated(Event):
    """Such a job has ended."""


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """An operator, or the controller that ran out of steps, moved the node to another phase."""

    to: Phase
    by: str
    why: str = ""
    """The operator's text."""


@dataclass(frozen=True, slots=True)
class InventoryChanged(Event):
    """The node has other parts than it said before."""

    reader: Reader
    parts: tuple[HostPart, ...]
    is_complete: bool = True
    """Whether every part answered: of one that did not, nothing is known."""
    simulated: str = ""
    """The simulated part; "" where everything was real."""


@dataclass(frozen=True, slots=True)
class Labelled(Event):
    """An operator gave the node a label, or took it away with an empty value."""

    key: str
    value: str
    by: str


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """An operator said where the node is. Unknown values are ""."""

    rack: str
    leaf: str
    spine: str
    nvlink_domain: str
    by: str
