"""Act on a worker so that Slurm and the engine follow the state of its node.

Everything is computed from the state and from what was seen, so a run that was cut off between the event and
the act is made up for by the next, and one that has acted already does nothing. Only drains with a reason of
our own are ever undone, and a pod is restarted only while no job runs on it.
"""

from collections.abc import Callable, Iterable, Sequence

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status, Verdict
from neocloud.fleet.nodes.incidents import Incident
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import HOST_PREFIX, MAINTENANCE_PREFIX, OPERATOR_PREFIX, TENANT_PREFIX
from neocloud.fleet.policy.actions import Action
from neocloud.services.fleet.public import VerdictSource
from neocloud.services.fleet.types import LIMITS, plain
from neocloud.services.slurm.public import FLEET_PREFIX, LOST_PREFIX, SPARE_REASON, Worker, WorkerNodes

UNVERIFIED_REASON = FLEET_PREFIX + "not verified yet"
SCHEDULABLE = frozenset({Phase.IN_SERVICE, Phase.SUSPECT})


def wanted_reason(state: NodeState, incident: Incident | None) -> str:
    """Return the reason with which Slurm should have the worker drained; "" where it should not be."""
    hold = next((each for each in state.holds if each.owner == OURS), None)
    recorded = (OPERATOR_PREFIX, MAINTENANCE_PREFIX, HOST_PREFIX, TENANT_PREFIX)
    hold = hold or next((each for each in state.holds if each.owner.startswith(recorded)), None)
    if hold is not None:
        is_of_incident = incident is not None and hold.owner == OURS and incident.evidence == hold.evidence
        owner = "" if hold.owner.startswith(HOST_PREFIX) else hold.owner  # hosts have names for operators
        more = incident.reason if is_of_incident and incident is not None else owner
        return plain(f"{FLEET_PREFIX}{hold.evidence} {more}")
    if state.phase in SCHEDULABLE:
        return ""
    if state.phase is Phase.READY_SPARE:
        return "" if state.reserved_for is not None else SPARE_REASON
    return UNVERIFIED_REASON


async def follow(
    workers: WorkerNodes, cluster_id: str, worker: Worker, state: NodeState, incident: Incident | None
) -> None:
    """Drain or resume the worker in Slurm where its node's state asks for it."""
    if not worker.states:
        return
    wanted = wanted_reason(state, incident)
    is_ours = worker.reason.startswith(FLEET_PREFIX)
    is_lost = worker.reason.startswith(LOST_PREFIX)
    if wanted:
        is_known = state.is_drained_by_us or state.phase is Phase.READY_SPARE or not is_lost
        if is_ours and wanted == SPARE_REASON and "DOWN" in worker.states and worker.is_responding:
            await workers.resume(cluster_id, worker.name)  # it is verified
            await workers.drain(cluster_id, worker.name, wanted)
        elif not worker.is_drained or (is_ours and is_known and worker.reason != wanted):
            await workers.drain(cluster_id, worker.name, wanted)
        return
    may_resume = state.phase is Phase.READY_SPARE or (state.phase is Phase.IN_SERVICE and not is_lost)
    if worker.is_drained and is_ours and may_resume and worker.boot == state.boot:
        await workers.resume(cluster_id, worker.name)


async def repair(
    workers: WorkerNodes, cluster_id: str, worker: Worker, state: NodeState, now: float
) -> list[Event]:
    """Take the running step further; return how it ended, if it has."""
    running = state.running
    if running is None or running.action is Action.NONE:
        return []
    if running.action is not Action.REBOOT:
        # A pod has no GPU of its own to reset, no power and no image to write: the step fails, and the ladder
        # continues.
        return [e.StepEnded(now, state.node, running.number, succeeded=False)]
    if worker.boot and worker.boot != running.boot:
        done = worker.is_responding
        return [e.StepEnded(now, state.node, running.number, succeeded=True)] if done else []
    if worker.boot and not worker.is_busy and worker.is_drained:
        await workers.restart(cluster_id, worker.name)
    return []


def verification(
    sources: Sequence[VerdictSource],
    cluster_id: str,
    worker: Worker,
    state: NodeState,
    answers: Sequence[Sequence[Verdict]],
    now: float,
    *,
    shadow: Callable[[str, Status], str] = lambda check, status: "",
) -> list[Event]:
    """Judge the last answers that the sources gave since the verification began, one list of answers for each
    source; ask those that gave none. No answer is no pass: the verification waits until its deadline. Checks
    in shadow are recorded, and neither pass nor fail a node."""
    running = state.running
    if running is None or running.action is not Action.NONE or not worker.is_responding:
        return []
    fresh = [
        [each for each in found if each.node == state.node and _is_of(each, running.started_at, state)]
        for found in answers
    ]
    for source, found in zip(sources, fresh, strict=True):
        if not found or any(each.status is Status.UNKNOWN for each in found):
            source.request(cluster_id, worker.name)
    last = {each.check: each for found in fresh for each in found}
    every = [each for each in last.values() if not shadow(each.check, each.status)]
    if any(each.status is Status.FAIL for each in every):
        return [e.VerificationEnded(now, state.node, running.number, passed=False)]
    if not all(fresh) or any(each.status is not Status.PASS for each in every):
        return []
    until = now + LIMITS.certificate_term
    return [e.VerificationEnded(now, state.node, running.number, passed=True, valid_until=until)]


def _is_of(verdict: Verdict, since: float, state: NodeState) -> bool:
    return verdict.at >= since and verdict.boot == state.boot


def attached(worker: Worker, state: NodeState, now: float) -> Iterable[Event]:
    """A reserved spare is attached once Slurm starts jobs on it: network and storage it has had before."""
    is_due = state.phase is Phase.READY_SPARE and state.reserved_for is not None and not state.is_attached
    if is_due and worker.is_responding and not worker.is_drained and worker.boot == state.boot:
        yield e.Attached(now, state.node)
