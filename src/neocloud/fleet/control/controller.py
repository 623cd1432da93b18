"""The node controller: from the state of the fleet and the time to decisions, with no effect of its own.

A decision is the event to append. The executor appends it first and acts on it afterwards, so that deciding
again gives nothing twice. The simulator runs this code on a virtual clock.
"""

from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from neocloud.fleet.control.breakers import Breakers
from neocloud.fleet.control.ladder import next_action
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, CheckScope, Event, Phase, Status
from neocloud.fleet.nodes.lemons import Lemons
from neocloud.fleet.nodes.lifecycle import advance, note
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.part_history import PartHistory
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.fleet.policy.limits import Limits

RACK_EVIDENCE = "rack:"
WORKING = (Phase.IN_SERVICE, Phase.SUSPECT)
UNSETTLED = frozenset(
    {
        Phase.SUSPECT,
        Phase.DRAINED,
        Phase.REMEDIATING,
        Phase.VERIFYING,
        Phase.BURN_IN,
        Phase.READY_SPARE,
    }
)
"""Phases in which a decision may be due; an idle node in service may need a new certificate."""


class Fleet:
    """All nodes and the breakers, as a fold over one log."""

    def __init__(self, limits: Limits, wanted: int) -> None:
        """`wanted`: how many nodes should be in service; the others are spares."""
        self.limits, self.wanted = limits, wanted
        self.nodes: dict[str, NodeState] = {}
        self.breakers = Breakers(limits)
        self.lemons = Lemons(limits)
        self.parts = PartHistory(limits)
        self.phases: Counter[Phase] = Counter()
        self.unsettled: dict[str, None] = {}
        """In the order in which they became so; a dict, because the order of a set differs between runs."""
        self.draining: dict[str, None] = {}
        self.racks: dict[str, list[str]] = {}
        self.out_of_rack: Counter[str] = Counter()
        """Nodes of each rack that are drained by us."""
        self.reserved = 0
        self.drained_by_us = 0
        self.draining_of_job: Counter[str] = Counter()
        self.open_faults: Counter[tuple[CheckScope, str]] = Counter()
        """Nodes with an open link fault by leaf, and with an open storage fault."""

    @classmethod
    def replay(cls, limits: Limits, wanted: int, log: Iterable[Event]) -> "Fleet":
        fleet = cls(limits, wanted)
        for event in log:
            fleet.apply(event)
        return fleet

    def draft(self) -> "Fleet":
        """Return a copy that decisions are tried on."""
        other = copy(self)
        other.nodes, other.unsettled = self.nodes.copy(), self.unsettled.copy()
        other.draining = self.draining.copy()
        other.breakers, other.lemons = self.breakers.copy(), self.lemons.copy()
        other.parts = self.parts.copy()
        other.phases, other.open_faults = self.phases.copy(), self.open_faults.copy()
        other.out_of_rack = self.out_of_rack.copy()
        other.draining_of_job = self.draining_of_job.copy()
        return other

    def apply(self, event: Event) -> bool:
        """Take an event in; return whether it changed anything."""
        if isinstance(event, e.RecordElsewhere):
            return self.breakers.take_elsewhere(event)
        before = self.nodes.get(event.node)
        if before is None:
            if not isinstance(event, e.Registered):
                return False
            before = NodeState(event.node)
        after = self._after(before, event)
        if after is before:
            return False
        self._count(before, -1)
        self._count(after, 1)
        if event.node not in self.nodes:
            self.racks.setdefault(after.rack, []).append(event.node)
        self.nodes[event.node] = after
        self.breakers.observe(event, before, after, len(self.nodes))
        self.lemons.observe(event, before)
        self.parts.observe(event, before, after)
        if after.phase is Phase.DRAINING:
            self.draining[event.node] = None
        else:
            self.draining.pop(event.node, None)
        if after.phase in UNSETTLED or (after.phase is Phase.IN_SERVICE and not after.job):
            self.unsettled[event.node] = None
        else:
            self.unsettled.pop(event.node, None)
        return True

    def _after(self, before: NodeState, event: Event) -> NodeState:
        if (
            isinstance(event, e.Verdict)
            and event.status is not Status.PASS
            and self.breakers.in_shadow(event.check, event.status)
        ):
            return note(before, event)
        return advance(before, event)

    def _count(self, state: NodeState, sign: int) -> None:
        if state.node in self.nodes or sign > 0:
            self.phases[state.phase] += sign
        self.reserved += sign * (state.reserved_for is not None)
        if state.is_drained_by_us:
            self.drained_by_us += sign
            self.out_of_rack[state.rack] += sign
        if state.phase is Phase.DRAINING and state.job and state.is_drained_by_us:
            self.draining_of_job[state.job] += sign
        for scope in {fault.scope for fault in state.faults if fault.scope is not CheckScope.NODE}:
            self.open_faults[scope, state.leaf if scope is CheckScope.LINK else ""] += sign


@dataclass(frozen=True, slots=True)
class Decision:
    event: Event
    why: str


@dataclass
class FleetPlan:
    decisions: list[Decision] = field(default_factory=list[Decision])
    held: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes for which something is due and may not be done now, and why."""


def decide(fleet: Fleet, now: float) -> FleetPlan:
    """Return what is due now. The fleet is not changed; each decision counts for the ones after it."""
    return _Planning(fleet, now).run()


class _Planning:
    def __init__(self, fleet: Fleet, now: float) -> None:
        self.given, self.now, self.limits = fleet, now, fleet.limits
        self.fleet = fleet
        self.plan = FleetPlan()

    def run(self) -> FleetPlan:
        for node in list(self.given.unsettled):
            state = self.fleet.nodes[node]
            if state.restarted and state.phase is not Phase.READY_SPARE:
                self._restarted(state)
                state = self.fleet.nodes[node]
            match state.phase:
                case Phase.SUSPECT:
                    self._suspect(state)
                case Phase.DRAINED:
                    self._drained(state)
                case Phase.REMEDIATING | Phase.VERIFYING:
                    self._overdue(state)
                case Phase.BURN_IN if self.now >= state.since + self.limits.burn_in:
                    self._verify(state, Suite.FULL, "burn-in is over")
                case Phase.READY_SPARE | Phase.IN_SERVICE:
                    self._ready(state)
                case _:
                    pass
        if self.limits.rack_tolerates is not None:
            self._quarantine_racks(self.limits.rack_tolerates)
        self._fill_gaps()
        return self.plan

    def _order(self, event: Event, why: str) -> None:
        if self.fleet is self.given:
            self.fleet = self.given.draft()
        if self.fleet.apply(event):
            self.plan.decisions.append(Decision(event, why))

    def _hold(self, state: NodeState, why: str) -> None:
        self.plan.held[state.node] = why

    def _suspect(self, state: NodeState) -> None:
        if state.certificate is None and not state.faults:
            self._restarted(state)
            return
        reasons: list[str] = []
        for fault in state.faults:
            why_not = self._not_yet(fault, state)
            if not why_not:
                why = f"{fault.check}: {fault.sample} (threshold {fault.threshold}, {fault.source})"
                why_not = self._drain(state, fault.id, fault.check, why, is_fatal=fault.is_fatal)
                if not why_not:
                    return
            reasons.append(why_not)
        self._hold(state, "; ".join(reasons))

    def _restarted(self, state: NodeState) -> None:
        """One that is not in service yet is drained as well, so that there is an incident of it."""
        why = "started again without being asked"
        if refusal := self._drain(state, f"boot:{state.boot}", "", why, is_fatal=True):
            self._hold(state, refusal)

    def _not_yet(self, fault: e.Verdict, state: NodeState) -> str:
        age = self.now - fault.at
        if fault.status is Status.UNKNOWN and age < self.limits.unknown_grace:
            return f"{fault.check} gives no answer for {age:.0f} s"
        if shadow := self.fleet.breakers.in_shadow(fault.check, fault.status):
            return shadow
        if fault.scope is CheckScope.NODE:
            return ""
        if age < self.limits.correlation_delay:
            return f"{fault.check}: waits for faults of other nodes"
        return blamed_elsewhere(self.fleet, fault, state)

    def _drain(self, state: NodeState, evidence: str, check: str, why: str, *, is_fatal: bool) -> str:
        """Order a drain; return why it is refused, or ""."""
        fleet, limits = self.fleet, self.limits
        refusal = fleet.breakers.refusal(("check", check), self.now)
        held = fleet.breakers.place_refusal(state, self.now)
        out = max(limits.smallest_cluster_limit, int(limits.cluster_out * len(fleet.nodes)))
        if not held and fleet.drained_by_us >= out:
            held = f"{fleet.drained_by_us} nodes are drained by us, at most {out} may be"
        is_dead = bool(held) and state.phase in WORKING and self._may_replace(state)
        refusal = refusal or ("" if is_dead else held)
        if not refusal and state.job and not is_fatal:
            others = fleet.draining_of_job[state.job]
            if others >= limits.tenant_drains:
                refusal = f"job {state.job} is losing {others} other nodes already"
        if not refusal:
            self._order(e.DrainRequested(self.now, state.node, OURS, evidence, check, is_dead), why)
        return refusal

    def _may_replace(self, state: NodeState) -> bool:
        """Return whether the node can run nothing, and a spare is there that nothing else waits for."""
        fleet, limits = self.fleet, self.limits
        is_dead = state.certificate is None or any(
            fault.check in limits.dead_checks and fault.status is Status.FAIL and fault.is_fatal
            for fault in state.faults
        )
        if not is_dead or not fleet.breakers.admits_dead(self.now):
            return False
        gaps = fleet.wanted - fleet.reserved - fleet.phases[Phase.IN_SERVICE] - fleet.phases[Phase.SUSPECT]
        return max(0, gaps) < len(self._free_spares())

    def _drained(self, state: NodeState) -> None:
        if state.is_held_by_others:
            owners = ", ".join(hold.owner for hold in state.holds if hold.owner != OURS)
            self._hold(state, f"drained by {owners}")
            return
        hold = next((hold for hold in state.holds if hold.evidence.startswith(RACK_EVIDENCE)), None)
        if hold is not None and state.moved_at < hold.at and not state.faults:
            self._order(e.Moved(self.now, state.node, Phase.QUARANTINED_RACK, OURS), "its rack is out")
            return
        if not state.is_repaired and (why := self._lemon(state)):
            self._order(e.Moved(self.now, state.node, Phase.TRIAGE, OURS), why)
            return
        if state.is_repaired or not (state.faults or state.has_failed_test):
            suite = Suite.QUICK if state.tried is Action.RESET_GPU else Suite.FULL
            self._verify(state, suite, "before it may return")
            return
        asked = (fault.action for fault in state.faults)
        wanted = max((Action.RESET_GPU, *asked), key=lambda action: action.rung)
        action = next_action(wanted, state.tried, state.history, self.now, self.limits)
        if action is Action.TRIAGE:
            self._order(e.Moved(self.now, state.node, Phase.TRIAGE, OURS), "no step of the ladder is left")
            return
        refusal = self.fleet.breakers.refusal(("action", action), self.now)
        if any(hold.is_dead for hold in state.holds):
            refusal = refusal or self.fleet.breakers.place_refusal(state, self.now)
        if refusal:
            self._hold(state, refusal)
            return
        deadline = self.now + self.limits.step_deadline[action]
        step = e.StepStarted(self.now, state.node, action, state.attempts + 1, deadline)
        self._order(step, f"{action.value} after {state.tried.value}")

    def _lemon(self, state: NodeState) -> str:
        """Return why the node, or one of its parts, counts as a lemon, or ""."""
        return self.fleet.lemons.reason(state.node, self.now) or self.fleet.parts.reason(state, self.now)

    def _verify(self, state: NodeState, suite: Suite, why: str) -> None:
        deadline = self.now + self.limits.verify_deadline[suite]
        self._order(e.VerificationStarted(self.now, state.node, suite, state.attempts + 1, deadline), why)

    def _overdue(self, state: NodeState) -> None:
        running = state.running
        if running is None or self.now <= running.deadline:
            return
        ended = (
            e.VerificationEnded(self.now, state.node, running.number, passed=False)
            if running.action is Action.NONE
            else e.StepEnded(self.now, state.node, running.number, succeeded=False)
        )
        self._order(ended, "its deadline has passed")

    def _ready(self, state: NodeState) -> None:
        if state.reserved_for is not None and state.has_certificate(self.now):
            if state.is_attached:
                self._order(e.Returned(self.now, state.node), "verified, reserved and attached")
            return
        certificate = state.certificate
        if state.job or (
            certificate is not None and certificate.valid_until - self.limits.renew_before > self.now
        ):
            return
        at_once = max(1, int(self.limits.renew_share * len(self.fleet.nodes)))
        if self.fleet.phases[Phase.VERIFYING] < at_once:
            self._verify(state, Suite.FULL, "its certificate ends")
        else:
            self._hold(state, f"{at_once} nodes are in verification")

    def _quarantine_racks(self, tolerated: int) -> None:
        """Drain the rest of each rack that lost too many nodes: its NVLink domain is of no use any more."""
        for rack in [rack for rack, out in self.fleet.out_of_rack.items() if out > tolerated]:
            out, members = self.fleet.out_of_rack[rack], self.fleet.racks[rack]
            for node in members:
                state = self.fleet.nodes[node]
                if state.is_drained_by_us or state.phase not in (*WORKING, Phase.READY_SPARE):
                    continue
                if refusal := self.fleet.breakers.refusal(("cluster", ""), self.now):
                    self._hold(state, refusal)
                    continue
                why = f"{out} of {len(members)} nodes of its rack are out"
                self._order(e.DrainRequested(self.now, node, OURS, f"{RACK_EVIDENCE}{rack}"), why)

    def _free_spares(self) -> list[NodeState]:
        fleet = self.fleet
        return [
            state
            for node in fleet.unsettled
            if (state := fleet.nodes[node]).phase is Phase.READY_SPARE
            and state.reserved_for is None
            and state.has_certificate(self.now)
        ]

    def _fill_gaps(self) -> None:
        fleet = self.fleet
        working = fleet.phases[Phase.IN_SERVICE] + fleet.phases[Phase.SUSPECT]
        gaps = fleet.wanted - fleet.reserved - working
        if gaps <= 0 or fleet.phases[Phase.READY_SPARE] <= fleet.reserved:
            return
        spares = self._free_spares()
        # Among the draining nodes, those that left first have been replaced already.
        leaving = [fleet.nodes[node] for node in list(fleet.draining)[-gaps:]]
        for number in range(min(gaps, len(spares))):
            left = leaving[number] if number < len(leaving) else NodeState("")
            best = min(
                spares, key=lambda spare: (spare.leaf != left.leaf, spare.rack != left.rack, spare.since)
            )
            spares.remove(best)
            self._order(
                e.SpareReserved(self.now, best.node, left.node),
                f"{gaps - number} of {fleet.wanted} nodes are missing",
            )


def blamed_elsewhere(fleet: Fleet, fault: e.Verdict, state: NodeState) -> str:
    """Return what is to blame instead of the node when many nodes fail together, or ""."""
    if fault.scope is CheckScope.LINK:
        count = fleet.open_faults[CheckScope.LINK, state.leaf]
        if count >= fleet.limits.link_faults_blame_leaf:
            return f"{count} nodes on leaf switch {state.leaf} have link faults: look at the switch"
    if fault.scope is CheckScope.STORAGE:
        count = fleet.open_faults[CheckScope.STORAGE, ""]
        if count >= fleet.limits.storage_faults_blame_storage:
            return f"{count} nodes have storage faults: look at the storage"
    return ""
