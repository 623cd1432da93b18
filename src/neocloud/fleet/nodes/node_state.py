"""The state of a node, which the events of its log add up to."""

import math
from dataclasses import dataclass, fields
from operator import attrgetter

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Phase
from neocloud.fleet.policy.actions import Action, Suite


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof that a node passed its tests, for one boot and until an end."""

    boot: str
    issued_at: float
    valid_until: float
    suite: Suite

    def is_valid(self, boot: str, now: float) -> bool:
        return bool(boot) and self.boot == boot and self.issued_at <= now < self.valid_until


@dataclass(frozen=True, slots=True)
class Attempt:
    """A remediation step or a verification that runs; `action` is NONE for a verification."""

    number: int
    started_at: float
    deadline: float
    boot: str
    action: Action = Action.NONE
    suite: Suite = Suite.QUICK


@dataclass(frozen=True, slots=True)
class NodeState:
    node: str
    rack: str = ""
    leaf: str = ""
    phase: Phase = Phase.ORDERED
    since: float = -math.inf
    boot: str = ""
    booted_at: float = -math.inf
    ended: str = ""  # how the boot before ended; "" where that is not known
    restarted: str = ""
    """The boot with which a node on its way into service started again without being asked; "" once that is
    an incident, or the node has passed its tests since."""
    certificate: Certificate | None = None
    faults: tuple[e.Verdict, ...] = ()
    """The failing verdicts on the node, one for each check."""
    judged: tuple[tuple[str, float], ...] = ()
    """Time of the last verdict of each check."""
    findings: tuple[tuple[str, float], ...] = ()
    """Time of the last judgement of each check's verdicts."""
    holds: tuple[e.DrainRequested, ...] = ()
    """Drains in force, one for each owner."""
    released: tuple[tuple[str, float], ...] = ()
    """When each owner last released a drain: an older request is late."""
    moved_at: float = -math.inf
    assigned_at: float = -math.inf
    unassigned_at: float = -math.inf
    attempts: int = 0
    running: Attempt | None = None
    tried: Action = Action.NONE
    """Highest rung since the node left service."""
    is_repaired: bool = False
    """Whether the last step succeeded, and no verification has judged it yet."""
    has_failed_test: bool = False
    """Whether the last verification did not pass."""
    history: tuple[tuple[Action, float], ...] = ()
    reserved_for: str | None = None
    is_attached: bool = False
    tenant: str = ""
    job: str = ""
    is_occupied: bool = False
    """Whether a job runs on it that should not have started."""
    occupied_at: float = -math.inf  # when `is_occupied` last changed
    inventory: e.InventoryChanged | None = None
    """Its parts as they were last read."""
    labels: tuple[e.Labelled, ...] = ()
    placed: e.Placed | None = None

    def is_schedulable(self, now: float) -> bool:
        """Return whether new work may start on the node."""
        return (
            self.phase is Phase.IN_SERVICE
            and self.has_certificate(now)
            and not self.faults
            and not self.holds
        )

    def has_certificate(self, now: float) -> bool:
        return self.certificate is not None and self.certificate.is_valid(self.boot, now)

    @property
    def is_held_by_others(self) -> bool:
        return any(hold.owner != OURS for hold in self.holds)

    @property
    def is_drained_by_us(self) -> bool:
        return any(hold.owner == OURS for hold in self.holds)


_NAMES = tuple(each.name for each in fields(NodeState))
_VALUES = attrgetter(*_NAMES)
_SET = object.__setattr__


def replace(state: NodeState, **changes: object) -> NodeState:
    """Do what `dataclasses.replace` does in a third of its time, of which a long log takes most."""
    made: NodeState = object.__new__(NodeState)
    for name, value in zip(_NAMES, _VALUES(state), strict=True):
        _SET(made, name, value)
    for name, value in changes.items():
        _SET(made, name, value)
    return made
