"""The state of a node as a pure fold over its events.

`advance` never raises for an event that comes late, twice or out of turn: it returns the state unchanged.
An unknown state is never healthy, and only a passed verification of the running boot makes a node usable.
"""

import math
from collections.abc import Iterable, Mapping

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.descriptions import inventory_after, labels_after
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.node_state import Attempt, Certificate, NodeState, replace
from neocloud.fleet.policy.actions import Action

HISTORY_SECONDS = 7 * 86400.0
"""How far back steps are remembered: the longest budget."""

BY_HAND: Mapping[Phase, frozenset[Phase]] = {
    Phase.ORDERED: frozenset({Phase.RACKED}),
    Phase.RACKED: frozenset({Phase.ONBOARDING}),
    Phase.ONBOARDING: frozenset({Phase.SEATRIAL, Phase.TRIAGE}),
    Phase.SEATRIAL: frozenset({Phase.FIRMWARE, Phase.TRIAGE}),
    Phase.FIRMWARE: frozenset({Phase.BURN_IN, Phase.TRIAGE}),
    Phase.BURN_IN: frozenset({Phase.TRIAGE}),
    Phase.DRAINED: frozenset({Phase.TRIAGE, Phase.MAINTENANCE, Phase.QUARANTINED_RACK, Phase.RETIRED}),
    Phase.MAINTENANCE: frozenset({Phase.DRAINED}),
    Phase.QUARANTINED_RACK: frozenset({Phase.DRAINED, Phase.TRIAGE}),
    Phase.TRIAGE: frozenset({Phase.DEBUG, Phase.RMA_OUT, Phase.ONBOARDING, Phase.BURN_IN, Phase.RETIRED}),
    Phase.DEBUG: frozenset({Phase.TRIAGE, Phase.RMA_OUT, Phase.ONBOARDING, Phase.RETIRED}),
    Phase.RMA_OUT: frozenset({Phase.RMA_RETURNED, Phase.RETIRED}),
    Phase.RMA_RETURNED: frozenset({Phase.ONBOARDING, Phase.BURN_IN}),
}
"""Moves that people make. None leads into service: only a passed verification does."""

UNVERIFIED = frozenset({Phase.DRAINED, Phase.BURN_IN})
"""Phases from which a verification starts, beside idle nodes whose certificate is renewed."""

ON_THE_WAY = UNVERIFIED | {Phase.VERIFYING, Phase.READY_SPARE}
"""Phases of a node that runs no work and should do so later."""


def fold(node: str, log: Iterable[Event]) -> NodeState:
    state = NodeState(node)
    for event in log:
        state = advance(state, event)
    return state


def advance(state: NodeState, event: Event) -> NodeState:
    """Return the state after an event of this node."""
    match event:
        case e.Verdict():
            return _verdict(state, event)
        case e.Registered():
            return _registered(state, event)
        case e.Booted():
            return _booted(state, event)
        case e.DrainRequested() | e.DrainReleased() | e.Drained():
            return _drain(state, event)
        case e.StepStarted() | e.StepEnded() | e.VerificationStarted() | e.VerificationEnded():
            return _attempt(state, event)
        case e.SpareReserved() | e.Attached() | e.Returned():
            return _spare(state, event)
        case e.Assigned() | e.Unassigned() | e.Occupied() | e.Vacated():
            return _work(state, event)
        case e.Judged():
            if any(check == event.check and at >= event.at for check, at in state.findings):
                return state
            others = (each for each in state.findings if each[0] != event.check)
            return replace(state, findings=(*others, (event.check, event.at)))
        case e.Moved():
            return _moved(state, event)
        case e.InventoryChanged() | e.Labelled() | e.Placed():
            return _described(state, event)
        case _:
            return state


def _registered(state: NodeState, event: e.Registered) -> NodeState:
    if state.since > -math.inf:
        return state
    phase = event.phase if event.phase in BY_HAND else Phase.ORDERED
    return replace(state, rack=event.rack, leaf=event.leaf, phase=phase, since=event.at)


def _described(state: NodeState, event: e.InventoryChanged | e.Labelled | e.Placed) -> NodeState:
    if isinstance(event, e.InventoryChanged):
        inventory = inventory_after(state.inventory, event)
        return state if inventory is state.inventory else replace(state, inventory=inventory)
    if isinstance(event, e.Labelled):
        labels = labels_after(state.labels, event)
        return state if labels is state.labels else replace(state, labels=labels)
    is_late = state.placed is not None and event.at <= state.placed.at
    return state if is_late else replace(state, placed=event, leaf=event.leaf or state.leaf)


def _work(state: NodeState, event: e.Assigned | e.Unassigned | e.Occupied | e.Vacated) -> NodeState:
    if isinstance(event, e.Occupied | e.Vacated):
        is_occupied = isinstance(event, e.Occupied)
        if state.is_occupied is is_occupied or event.at < state.occupied_at:
            return state
        return replace(state, is_occupied=is_occupied, occupied_at=event.at)
    if isinstance(event, e.Assigned):
        is_late = event.at <= state.unassigned_at or event.at < state.since
        if state.job or is_late or not state.is_schedulable(event.at):
            return state
        return replace(state, tenant=event.tenant, job=event.job, assigned_at=event.at)
    if not state.job or event.job != state.job or event.at < state.assigned_at:
        return state
    return replace(state, tenant="", job="", unassigned_at=event.at)


def _enter(state: NodeState, phase: Phase, at: float) -> NodeState:
    return replace(state, phase=phase, since=at)


def note(state: NodeState, event: e.Verdict) -> NodeState:
    """Return the state that knows of a verdict and draws nothing from it: all that a check in shadow may do.

    A verdict of another boot, and one that is not newer than what the check said before, changes nothing.
    """
    is_late = any(check == event.check and at >= event.at for check, at in state.judged)
    if is_late or event.boot != state.boot or event.at < state.booted_at:
        return state
    others = (each for each in state.judged if each[0] != event.check)
    return replace(state, judged=(*others, (event.check, event.at)))


def _verdict(state: NodeState, event: e.Verdict) -> NodeState:
    noted = note(state, event)
    if noted is state:
        return state
    faults = tuple(each for each in state.faults if each.check != event.check)
    concerns_node = event.status is Status.UNKNOWN or event.action.rung > Action.RESTART_APP.rung
    if event.status is not Status.PASS and concerns_node:
        faults = (*faults, event)
    state = replace(noted, faults=faults)
    if faults and state.phase is Phase.IN_SERVICE:
        return _enter(state, Phase.SUSPECT, event.at)
    if faults and state.phase is Phase.READY_SPARE:
        return _unready(state, event.at)
    if faults and state.phase is Phase.DRAINED:
        return replace(state, certificate=None)
    if not faults and state.phase is Phase.SUSPECT and state.certificate is not None:
        return _enter(state, Phase.IN_SERVICE, event.at)
    return state


def _unready(state: NodeState, at: float) -> NodeState:
    return replace(
        state, phase=Phase.DRAINED, since=at, certificate=None, reserved_for=None, is_attached=False
    )


def _booted(state: NodeState, event: e.Booted) -> NodeState:
    if event.at <= state.booted_at or event.boot == state.boot:
        return state
    restarted = event.boot if _is_unasked(state) else ""
    state = replace(
        state,
        boot=event.boot,
        booted_at=event.at,
        ended=event.ended,
        restarted=restarted,
        certificate=None,
    )
    if state.phase is Phase.IN_SERVICE:
        return _enter(state, Phase.SUSPECT, event.at)
    return _unready(state, event.at) if state.phase is Phase.READY_SPARE else state


def _is_unasked(state: NodeState) -> bool:
    """Return whether nothing explains that a node that is on its way into service starts again."""
    is_repair = state.running is not None and state.running.action is not Action.NONE
    return bool(state.boot) and state.phase in ON_THE_WAY and not state.holds and not is_repair


def _drain(state: NodeState, event: e.DrainRequested | e.DrainReleased | e.Drained) -> NodeState:
    if isinstance(event, e.DrainRequested):
        is_late = any(owner == event.owner and at >= event.at for owner, at in state.released)
        if is_late or not event.evidence or any(hold.owner == event.owner for hold in state.holds):
            return state
        restarted = "" if event.owner == OURS else state.restarted
        state = replace(state, holds=(*state.holds, event), restarted=restarted)
        if state.phase in (Phase.IN_SERVICE, Phase.SUSPECT):
            return _enter(state, Phase.DRAINING, event.at)
        return _unready(state, event.at) if state.phase is Phase.READY_SPARE else state
    if isinstance(event, e.DrainReleased):
        held = next((hold for hold in state.holds if hold.owner == event.owner), None)
        if held is None or event.at < held.at or event.owner == OURS:
            # Our own hold ends with a passed verification, and in no other way.
            return state
        state = replace(
            state,
            holds=tuple(hold for hold in state.holds if hold is not held),
            released=(*(each for each in state.released if each[0] != event.owner), (event.owner, event.at)),
        )
        if state.phase is Phase.DRAINING and not state.holds:
            usable = state.certificate is not None and not state.faults
            return _enter(state, Phase.IN_SERVICE if usable else Phase.SUSPECT, event.at)
        if state.phase is Phase.DRAINED and state.certificate is not None and not state.holds:
            return _enter(state, Phase.READY_SPARE, event.at)
        return state
    if state.phase is not Phase.DRAINING or event.at < state.since:
        return state
    return replace(
        state,
        phase=Phase.DRAINED,
        since=event.at,
        certificate=None,
        tenant="",
        job="",
        unassigned_at=event.at,
        tried=Action.NONE,
        is_repaired=False,
        has_failed_test=False,
    )


def _attempt(
    state: NodeState, event: e.StepStarted | e.StepEnded | e.VerificationStarted | e.VerificationEnded
) -> NodeState:
    if isinstance(event, e.StepStarted):
        if event.attempt != state.attempts + 1 or state.phase is not Phase.DRAINED or state.is_held_by_others:
            return state
        recent = tuple(each for each in state.history if each[1] > event.at - HISTORY_SECONDS)
        return replace(
            state,
            phase=Phase.REMEDIATING,
            since=event.at,
            attempts=event.attempt,
            running=Attempt(event.attempt, event.at, event.deadline, state.boot, event.action),
            tried=max(state.tried, event.action, key=lambda action: action.rung),
            history=(*recent, (event.action, event.at)),
        )
    if isinstance(event, e.VerificationStarted):
        renews = state.phase in (Phase.IN_SERVICE, Phase.READY_SPARE) and not state.job
        if event.attempt != state.attempts + 1 or not (renews or state.phase in UNVERIFIED):
            return state
        return replace(
            state,
            phase=Phase.VERIFYING,
            since=event.at,
            attempts=event.attempt,
            running=Attempt(event.attempt, event.at, event.deadline, state.boot, suite=event.suite),
            certificate=None,
            reserved_for=None,
            is_attached=False,
            is_repaired=False,
        )
    running = state.running
    is_step = isinstance(event, e.StepEnded)
    if running is None or running.number != event.attempt or event.at < running.started_at:
        return state
    if is_step is (running.action is Action.NONE):
        return state
    state = replace(state, running=None, phase=Phase.DRAINED, since=event.at)
    if isinstance(event, e.StepEnded):
        return replace(state, is_repaired=event.succeeded)
    return _passed(state, running, event) if event.passed else replace(state, has_failed_test=True)


def _passed(state: NodeState, running: Attempt, event: e.VerificationEnded) -> NodeState:
    """A pass counts for the boot that was tested, and against the faults from before the test."""
    later = tuple(fault for fault in state.faults if fault.at > running.started_at)
    if later or running.boot != state.boot or not state.boot or event.valid_until <= event.at:
        return replace(state, has_failed_test=True)
    foreign = tuple(hold for hold in state.holds if hold.owner != OURS)
    ours = (OURS, event.at)
    return replace(
        state,
        certificate=Certificate(state.boot, event.at, event.valid_until, running.suite),
        faults=(),
        holds=foreign,
        released=(*(each for each in state.released if each[0] != OURS), ours),
        phase=Phase.DRAINED if foreign else Phase.READY_SPARE,
        since=event.at,
        tried=Action.NONE,
        has_failed_test=False,
        restarted="",
    )


def _spare(state: NodeState, event: e.SpareReserved | e.Attached | e.Returned) -> NodeState:
    is_ready = (
        state.phase is Phase.READY_SPARE
        and state.has_certificate(event.at)
        and not (state.faults or state.holds)
    )
    if not is_ready or event.at < state.since:
        return state
    if isinstance(event, e.SpareReserved):
        return replace(state, reserved_for=event.replaces) if state.reserved_for is None else state
    if state.reserved_for is None:
        return state
    if isinstance(event, e.Attached):
        return replace(state, is_attached=True)
    if not state.is_attached:
        return state
    return replace(state, phase=Phase.IN_SERVICE, since=event.at, reserved_for=None, is_attached=False)


def _moved(state: NodeState, event: e.Moved) -> NodeState:
    if event.at <= state.moved_at or event.at < state.since:
        return state
    if event.to not in BY_HAND.get(state.phase, frozenset()):
        return state
    return replace(
        state, phase=event.to, since=event.at, moved_at=event.at, certificate=None, tried=Action.NONE
    )
