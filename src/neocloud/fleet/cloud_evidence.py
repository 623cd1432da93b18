# pyright: strict
"""What the records of a cloud show of the criteria of ClusterMAX: evidence for each, with its age.

Records of which there are none give no evidence, or `not_run` with the reason; never a pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from neocloud.fleet.scorecard import Evidence, Score

REPLACED_WITHIN = timedelta(seconds=90)
"""ClusterMAX on hot spares: one or two failed nodes within 90 s."""
WEEK = timedelta(days=7)
CORRUPTION, CONVERGENCE = ("cpu_sdc", "gpu_sdc"), ("gpu_training",)
OF_DASHBOARDS: Mapping[str, str] = {
    "neocloud_fleet_node_phase": "state of nodes",
    "neocloud_slurm_jobs": "queue",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "use of tensor cores",
    "neocloud_node_reading": "link flaps",
}
"""Series that the dashboards need, and what they show of the criterion."""


@dataclass(frozen=True)
class NodeFacts:
    """What the cloud's records say of a node."""

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
    credited_seconds: int = 0


@dataclass(frozen=True)
class CloudFacts:
    nodes: Sequence[NodeFacts]
    incidents: Sequence[IncidentFacts] = ()
    windows: Sequence[datetime] = ()
    """When maintenance windows were announced."""
    tickets: Sequence[datetime] = ()
    """When repair tickets of the break-fix API were opened, updated or closed."""
    series: Sequence[str] | None = None
    """Of `OF_DASHBOARDS`, those that the store of metrics has now; None where it gives no answer."""
    no_series: str = ""
    """Why it gives none."""


def of_cloud(facts: CloudFacts, now: datetime) -> dict[str, list[Evidence]]:
    """Return the evidence by the ids of criteria."""
    found: dict[str, list[Evidence]] = {}
    every = (*_of_nodes(facts, now), *_of_incidents(facts), *_of_others(facts, now))
    for identifier, score, text, at in every:
        found.setdefault(identifier, []).append(Evidence("cloud", score, text, at))
    return found


_Found = tuple[str, Score, str, datetime | None]


def _of_nodes(facts: CloudFacts, now: datetime) -> Iterator[_Found]:
    nodes = facts.nodes
    if not nodes:
        return
    if blind := [node.name for node in nodes if node.problem]:
        text = f"{len(blind)} of {len(nodes)} nodes are not seen: {', '.join(blind[:3])}"
        yield "MON-1", Score.FAIL, text, now
    else:
        with_agent = [node for node in nodes if node.agent == "pass"]
        often = max((node.agent_seconds for node in with_agent), default=0.0)
        told = f"the agents of {len(with_agent)} check them" + (f" every {often:.0f} s" if often else "")
        text = f"{len(nodes)} nodes are watched; {told if with_agent else 'none has an agent'}"
        yield "MON-1", Score.PARTIAL, f"{text}; the fabric is not checked", now
    if workers := [node for node in nodes if not node.is_host]:
        yield from _of_tests(workers, now)
    proofs = [node.verified_at for node in nodes if node.verified_at is not None]
    if proofs:
        text = f"{len(proofs)} of {len(nodes)} nodes have a certificate of their last start, without burn-in"
        yield "LIF-3", Score.PARTIAL, text, min(proofs)


def _of_tests(nodes: Sequence[NodeFacts], now: datetime) -> Iterator[_Found]:
    covered = [node.checked_at for node in nodes if node.is_covered]
    on_gpus = [node for node in nodes if _ran(node, ("gpu_gemm",), now)]
    oldest = min((each for each in covered if each is not None), default=None)
    text = f"{len(covered)} of {len(nodes)} nodes were tested within 7 days, {len(on_gpus)} of them on GPUs"
    score = Score.PASS if len(on_gpus) == len(covered) == len(nodes) else Score.PARTIAL
    yield "MON-2", score if covered else Score.FAIL, text, oldest
    corrupt = [node for node in nodes if _ran(node, CORRUPTION, now)]
    converge = [node for node in nodes if _ran(node, CONVERGENCE, now)]
    text = (
        f"within 7 days silent corruption was tested on {len(corrupt)} of {len(nodes)} nodes, convergence on"
    )
    text += f" {len(converge)}"
    score = Score.PASS if len(corrupt) == len(converge) == len(nodes) else Score.PARTIAL
    times = [at for node in nodes for name, at in node.ran.items() if name in (*CORRUPTION, *CONVERGENCE)]
    yield "MON-3", score if corrupt or converge else Score.FAIL, text, min(times, default=None)


def _ran(node: NodeFacts, checks: Sequence[str], now: datetime) -> bool:
    return any(check in node.ran and now - node.ran[check] <= WEEK for check in checks)


def _of_incidents(facts: CloudFacts) -> Iterator[_Found]:
    incidents = facts.incidents
    replaced = {each: each.ready_at - each.detected_at for each in incidents if each.ready_at is not None}
    spares = sum(node.is_spare for node in facts.nodes)
    if replaced:
        late = sum(took > REPLACED_WITHIN for took in replaced.values())
        text = f"{len(replaced) - late} of {len(replaced)} nodes were replaced within 90 s of the first sign;"
        text += f" the longest took {max(replaced.values()).total_seconds():.0f} s; {spares} spares are ready"
        score = Score.PASS if not late else Score.PARTIAL if late < len(replaced) else Score.FAIL
        yield "REL-2", score, text, max(each.detected_at for each in replaced)
    elif spares:
        yield "REL-2", Score.NOT_RUN, f"{spares} spares are ready; no node had to be replaced yet", None
    if not incidents:
        return
    newest = max(each.detected_at for each in incidents)
    text = f"{len(incidents)} drains by the controller are listed with cause, steps and times, for operators"
    yield "REL-3", Score.PARTIAL, text, newest
    ended = [each for each in incidents if each.ended_at is not None]
    text = f"{len(incidents)} nodes were drained by checks; {len(ended)} were repaired and verified since"
    yield "MON-5", Score.PARTIAL if ended else Score.FAIL, text, newest
    if restarted := [each for each in ended if each.was_restarted]:
        alone = sum(not each.needed_people for each in restarted)
        text = f"{alone} of {len(restarted)} nodes that were started again came back without a person"
        score = Score.PASS if alone == len(restarted) else Score.PARTIAL if alone else Score.FAIL
        yield "LIF-4", score, text, max(each.detected_at for each in restarted)
    if credited := [each for each in incidents if each.credited_seconds]:
        seconds = sum(each.credited_seconds for each in credited)
        text = f"{len(credited)} drains were not charged for, {seconds} s together; the level is a document"
        yield "REL-1", Score.PARTIAL, text, max(each.detected_at for each in credited)


def _of_others(facts: CloudFacts, now: datetime) -> Iterator[_Found]:
    if facts.windows or facts.tickets:
        text = f"{len(facts.windows)} maintenance windows were announced with their ends, and"
        text += f" {len(facts.tickets)} events of repair tickets can be read by tenants; no support answers"
        yield "LIF-5", Score.PARTIAL, text, max((*facts.windows, *facts.tickets))
    if facts.series is None:
        if facts.no_series:
            yield "MON-4", Score.NOT_RUN, f"the store of metrics gives no answer: {facts.no_series}", None
        return
    shown = [what for name, what in OF_DASHBOARDS.items() if name in facts.series]
    missing = [what for what in OF_DASHBOARDS.values() if what not in shown]
    score = Score.PASS if not missing else Score.PARTIAL if shown else Score.FAIL
    text = f"the store of metrics has: {', '.join(shown) or 'nothing'}"
    yield "MON-4", score, text + (f"; not: {', '.join(missing)}" if missing else ""), now
