"""Evidence for criteria of ClusterMAX from the records of a cloud, each with its age.

Records of which there are none give no evidence, or `not_run` with the reason; never a pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from neocloud.cli.scorecard.cloud_facts import (
    SPEAK_OF,
    CloudFacts,
    Found,
    NodeFacts,
    Records,
    ReliabilityFacts,
)
from neocloud.cli.scorecard.scorecard import Evidence, Score
from neocloud.cli.scorecard.service_evidence import of_services
from neocloud.cli.scorecard.workload_evidence import of_workloads
from neocloud.fleet.active.judge import plain
from neocloud.fleet.nodes.reliability import REPLACED_WITHIN_SECONDS

WEEK = timedelta(days=7)
CORRUPTION, CONVERGENCE = ("cpu_sdc", "gpu_sdc"), ("gpu_training",)
OF_DASHBOARDS: Mapping[str, str] = {
    "neocloud_fleet_node_phase": "state of nodes",
    "neocloud_slurm_jobs": "queue",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "use of tensor cores",
    "neocloud_node_reading": "link flaps",
}
"""Series that the dashboards need, and what they show of the criterion."""

TRUE_OF_EMULATORS = frozenset({"SEC-8"})
"""Criteria of records that an emulator keeps as a cloud does."""
SIDE_LINES = frozenset({Records.SIGN_IN})
"""Without these the rest of the evidence is shown, with a note that they are not known."""
LONGEST = 400
"""Longest text of a piece of evidence: parts of it come from nodes and other services."""


def of_cloud(facts: CloudFacts, now: datetime) -> dict[str, list[Evidence]]:
    """Return the evidence by the ids of criteria."""
    found: dict[str, list[Evidence]] = {}
    lacking = {each: f"{records} was not read" for records in facts.unread for each in SPEAK_OF[records]}
    own = (*_of_nodes(facts, now), *_of_incidents(facts), *_of_others(facts, now))
    missing = {each for records in facts.unread.keys() - SIDE_LINES for each in SPEAK_OF[records]}
    # These count several kinds of records: without one of them only what fails for certain is said.
    counted = [
        each
        for each in (*of_workloads(facts, now), *of_services(facts, now))
        if each[0] not in missing or each[1] is Score.FAIL
    ]
    lacking |= {each: f"{records} was cut short" for records in facts.cut for each in SPEAK_OF[records]}
    for identifier, score, text, at in (*own, *counted, *_of_unread(facts)):
        if facts.is_emulated and score in (Score.PASS, Score.PARTIAL) and identifier not in TRUE_OF_EMULATORS:
            score, text = Score.NOT_RUN, f"emulated, nothing of it is real: {text}"
        elif score in (Score.PASS, Score.PARTIAL) and identifier in lacking:
            score, text = Score.PARTIAL, f"{text}; {lacking[identifier]}"
        found.setdefault(identifier, []).append(Evidence("cloud", score, plain(text, LONGEST), at))
    return found


def _of_unread(facts: CloudFacts) -> Iterator[Found]:
    for records, why in facts.unread.items():
        for identifier in SPEAK_OF[records]:
            yield identifier, Score.NOT_RUN, f"{records} gives no answer: {why}", None


def _of_nodes(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    nodes = facts.nodes
    if not nodes:
        return
    if blind := [node.name for node in nodes if node.problem]:
        text = f"{len(blind)} of {len(nodes)} nodes are not seen: {', '.join(blind[:3])}"
        yield "MON-1", Score.FAIL, text, now
    elif Records.CHECKS in facts.unread:
        yield (
            "MON-1",
            Score.PARTIAL,
            f"{len(nodes)} nodes are watched; the answers of their agents are unknown",
            now,
        )
    else:
        with_agent = [node for node in nodes if node.agent == "pass"]
        often = max((node.agent_seconds for node in with_agent), default=0.0)
        told = f"the agents of {len(with_agent)} check them" + (f" every {often:.0f} s" if often else "")
        text = f"{len(nodes)} nodes are watched; {told if with_agent else 'none has an agent'}"
        yield "MON-1", Score.PARTIAL, f"{text}; the fabric is not checked", now
    workers = [node for node in nodes if not node.is_host]
    if workers and Records.CHECKS not in facts.unread:
        yield from _of_tests(workers, now)
    proofs = [node.verified_at for node in nodes if node.verified_at is not None]
    if proofs:
        text = f"{len(proofs)} of {len(nodes)} nodes have a certificate of their last start, without burn-in"
        yield "LIF-3", Score.PARTIAL, text, min(proofs)


def _of_tests(nodes: Sequence[NodeFacts], now: datetime) -> Iterator[Found]:
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


def _of_incidents(facts: CloudFacts) -> Iterator[Found]:
    incidents = facts.incidents
    faults = [each for each in incidents if not each.is_asked_for]
    replaced = {each: each.ready_at - each.detected_at for each in faults if each.ready_at is not None}
    spares = sum(node.is_spare for node in facts.nodes)
    if replaced:
        late = sum(took.total_seconds() > REPLACED_WITHIN_SECONDS for took in replaced.values())
        text = f"{len(replaced) - late} of {len(replaced)} nodes were replaced within 90 s of the first sign;"
        text += f" the longest took {max(replaced.values()).total_seconds():.0f} s"
        text += "" if Records.NODES in facts.unread else f"; {spares} spares are ready"
        score = Score.PASS if not late else Score.PARTIAL if late < len(replaced) else Score.FAIL
        yield "REL-2", score, text, max(each.detected_at for each in replaced)
    elif spares:
        yield "REL-2", Score.NOT_RUN, f"{spares} spares are ready; no node had to be replaced yet", None
    if (seen := facts.reliability) is not None:
        yield from _of_reliability(seen)
    if not incidents:
        return
    newest = max(each.detected_at for each in incidents)
    text = f"{len(incidents)} drains by the controller are listed with cause, steps and times, for operators"
    yield "REL-3", Score.PARTIAL, text, newest
    if faults:
        verified = sum(each.ended_at is not None for each in faults)
        text = f"{len(faults)} drains of nodes with a fault; {verified} were repaired and verified since"
        yield (
            "MON-5",
            Score.PARTIAL if verified else Score.FAIL,
            text,
            max(each.detected_at for each in faults),
        )
    ended = [each for each in incidents if each.ended_at is not None]
    if restarted := [each for each in ended if each.was_restarted]:
        alone = sum(not each.needed_people for each in restarted)
        text = f"{alone} of {len(restarted)} nodes that were started again came back without a person"
        score = Score.PASS if alone == len(restarted) else Score.PARTIAL if alone else Score.FAIL
        yield "LIF-4", score, text, max(each.detected_at for each in restarted)
    if credited := [each for each in incidents if each.credited_seconds]:
        seconds = sum(each.credited_seconds for each in credited)
        text = f"{len(credited)} drains were not charged for, {seconds} s together; the level is a document"
        yield "REL-1", Score.PARTIAL, text, max(each.detected_at for each in credited)


def _of_reliability(seen: ReliabilityFacts) -> Iterator[Found]:
    if not seen.node_days:
        yield "REL-3", Score.NOT_RUN, "no worker was watched yet", None
        return
    text = f"{seen.faults} faults in {seen.node_days:,.1f} node-days"
    text += f", availability {seen.availability:.2%}" if seen.availability is not None else ""
    text += ", for operators; goodput is not published"
    yield "REL-3", Score.PARTIAL, text, seen.end


def _of_others(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    if facts.windows or facts.tickets:
        unknown, unread = "an unknown number of", facts.unread
        windows = unknown if Records.WINDOWS in unread else len(facts.windows)
        tickets = unknown if Records.TICKETS in unread else len(facts.tickets)
        text = f"{windows} maintenance windows were announced with their ends, and"
        text += f" {tickets} events of repair tickets can be read by tenants; no support answers"
        yield "LIF-5", Score.PARTIAL, text, max((*facts.windows, *facts.tickets))
    if facts.series is None:
        return
    shown = [what for name, what in OF_DASHBOARDS.items() if name in facts.series]
    missing = [what for what in OF_DASHBOARDS.values() if what not in shown]
    score = Score.PASS if not missing else Score.PARTIAL if shown else Score.FAIL
    text = f"the store of metrics has: {', '.join(shown) or 'nothing'}"
    yield "MON-4", score, text + (f"; not: {', '.join(missing)}" if missing else ""), now
