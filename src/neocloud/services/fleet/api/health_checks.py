"""HealthCheckService: the catalogue of active checks, what they found, how many nodes they cover; and the
record of every check.

For operators of the cloud alone. Reading computes everything from the logs.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.fleet.active import catalogue as checks
from neocloud.fleet.active.judge import threshold_of
from neocloud.fleet.active.schedule import PROMISE, CheckHistory, is_covered, next_at, oldest_answer
from neocloud.fleet.agent.document import NotRun
from neocloud.fleet.control.breakers import Breakers
from neocloud.fleet.control.judging import judging
from neocloud.fleet.control.precision import Judgements, Precision
from neocloud.messages.neocloud.fleet.v1 import (
    CheckRecord,
    GetHealthCheckCoverageRequest,
    HealthCheck,
    HealthCheckCoverage,
    ListCheckRecordsRequest,
    ListCheckRecordsResponse,
    ListHealthChecksRequest,
    ListHealthChecksResponse,
    ListNodeHealthRequest,
    ListNodeHealthResponse,
    NodeHealth,
)
from neocloud.services.fleet.api.nodes import Pool, fold_of, pools_of
from neocloud.services.fleet.checks.active_checks import TESTED_IN, answers
from neocloud.services.fleet.checks.runs import CheckRuns, PoolRuns
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.node_agents import AGENT, INTERVAL_SECONDS
from neocloud.services.fleet.types import LIMITS

PERMISSION = "fleet.healthChecks"
SERVICE_NAME = "neocloud.fleet.v1.HealthCheckService"


async def list_checks(call: Call, request: ListHealthChecksRequest) -> ListHealthChecksResponse:
    await pools_of(call, "", "list")  # for operators alone
    found = [_check(each) for each in checks.catalogue()]
    items, token = contract.page(found, request, scope=SERVICE_NAME, key=lambda check: check.name)
    return ListHealthChecksResponse(items=items, next_page_token=token)


async def list_nodes(call: Call, request: ListNodeHealthRequest) -> ListNodeHealthResponse:
    found = [each async for each in _nodes(call, request.cluster_id)]
    scope = f"{SERVICE_NAME}/{request.cluster_id}/nodes"
    items, token = contract.page(found, request, scope=scope, key=lambda node: node.id)
    return ListNodeHealthResponse(items=items, next_page_token=token)


async def get_coverage(call: Call, request: GetHealthCheckCoverageRequest) -> HealthCheckCoverage:
    total = HealthCheckCoverage(period_seconds=int(PROMISE))
    now = call.dependencies.clock.now().timestamp()
    for pool in await pools_of(call, request.cluster_id, "get"):
        log, runs = await _known(call, pool)
        total.nodes += len(log.fleet.nodes)
        total.covered += sum(is_covered(each, now) for each in _histories(log, runs, now).values())
        total.runs += runs.runs
        total.preempted_runs += runs.preempted
        longest = max(total.longest_preemption_seconds, runs.longest_preemption_s)
        total.longest_preemption_seconds = longest
    return total


async def _nodes(call: Call, cluster_id: str) -> AsyncIterator[NodeHealth]:
    for pool in await pools_of(call, cluster_id, "list"):
        log, runs = await _known(call, pool)
        histories = _histories(log, runs, call.dependencies.clock.now().timestamp())
        for name in log.fleet.nodes:
            yield _node(call, pool, histories[name], log, runs)


async def _known(call: Call, pool: Pool) -> tuple[PoolLog, PoolRuns]:
    now = call.dependencies.clock.now().timestamp()
    runs = await call.dependencies.provided.get(CheckRuns).read_among_like(pool.row.id, now)
    return await fold_of(call, pool), runs


def _histories(log: PoolLog, runs: PoolRuns, now: float) -> Mapping[str, CheckHistory]:
    """Return what is known of the tests of each node, those of pairs included."""
    nodes = log.fleet.nodes
    boots = {name: state.boot for name, state in nodes.items()}
    leaves = {name: state.leaf for name, state in nodes.items()}
    paired = runs.pairs.answered(boots, leaves, now)
    tested = {name for name, state in nodes.items() if state.phase in TESTED_IN}
    return {
        name: replace(
            runs.history(name, state.boot), paired=paired.get(name, {}) if tested - {name} else None
        )
        for name, state in nodes.items()
    }


def _node(call: Call, pool: Pool, history: CheckHistory, log: PoolLog, runs: PoolRuns) -> NodeHealth:
    now, name = call.dependencies.clock.now().timestamp(), history.name
    node = runs.nodes.get(name)
    spec = pool.message.spec
    found = NodeHealth(
        id=pool.id_of(name),
        name=name,
        cluster_id=spec.cluster_id,
        cluster_name=pool.cluster_name,
        node_set=spec.node_set,
        is_covered=is_covered(history, now),
    )
    status, boot = log.answers.get((name, AGENT), (None, ""))
    if status is not None and boot == log.fleet.nodes[name].boot:
        found.agent, found.agent_interval_seconds = status.value, INTERVAL_SECONDS
    found.next_at.FromDatetime(_moment(max(now, next_at(history))))
    if (oldest := oldest_answer(history)) is not None:
        found.tested_at.FromDatetime(_moment(oldest))
    own = answers(node, name, runs) if node is not None else []
    if node is not None:
        found.problem = node.problem
        found.tried_at.FromDatetime(_moment(node.tried_at))
    boots = {each: state.boot for each, state in log.fleet.nodes.items()}
    leaves = {each: state.leaf for each, state in log.fleet.nodes.items()}
    for said, at in (*own, *runs.pairs.answers(name, boots, leaves, now)):
        if isinstance(said, NotRun):
            result = found.results.add(check=said.check, status="not_run", sample=said.why)
        else:
            result = found.results.add(
                check=said.check,
                status=said.status.value,
                sample=said.sample,
                threshold=said.threshold,
                source=said.source,
                shadow=log.fleet.breakers.in_shadow(said.check, said.status),
            )
        result.at.FromDatetime(_moment(at))
    return found


async def list_records(call: Call, request: ListCheckRecordsRequest) -> ListCheckRecordsResponse:
    logs = [await fold_of(call, pool) for pool in await pools_of(call, "", "list")]
    names = {*judging().by_people, *(name for test in judging().tests for name in test.of)}
    names |= LIMITS.facts | {check for log in logs for check in log.fleet.breakers.records}
    found = [_record(name, [log.fleet.breakers for log in logs]) for name in sorted(names)]
    scope = f"{SERVICE_NAME}/records"
    items, token = contract.page(found, request, scope=scope, key=lambda record: record.check)
    return ListCheckRecordsResponse(items=items, next_page_token=token)


def _record(check: str, pools: Sequence[Breakers]) -> CheckRecord:
    total = sum((each.records.get(check, Judgements()).precision for each in pools), Precision())
    lower, upper = total.interval()
    refusals = [why for each in pools if (why := each.in_shadow(check))]
    test = judging().test_of(check)
    return CheckRecord(
        check=check,
        judged=total.judged,
        confirmed=total.confirmed,
        precision=total.confirmed / total.judged if total.judged else 0.0,
        lower=lower,
        upper=upper,
        pools=len(pools),
        active_pools=len(pools) - len(refusals),
        lacking=max(refusals, default=""),
        is_trusted=check in LIMITS.trusted or check in LIMITS.facts,
        judged_by=test.check if test else "",
        judged_by_reason=test.why if test else judging().by_people.get(check, ""),
    )


def _check(check: checks.ActiveCheck) -> HealthCheck:
    found = HealthCheck(
        name=check.name,
        title=check.title,
        needs=check.needs,
        suites=[each.value for each in check.suites],
        has_program=bool(check.program),
        unit=check.unit,
        seconds=check.seconds,
        margin=check.margin,
    )
    for each in check.limits:
        text = threshold_of(check, each)
        found.limits.add(models=each.models, text=text, source=each.source, note=each.note)
    return found


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


METHODS = (
    Method(f"{SERVICE_NAME}/List", list_checks, f"{PERMISSION}.list"),
    Method(f"{SERVICE_NAME}/ListNodes", list_nodes, f"{PERMISSION}.list"),
    Method(f"{SERVICE_NAME}/GetCoverage", get_coverage, f"{PERMISSION}.get"),
    Method(f"{SERVICE_NAME}/ListRecords", list_records, f"{PERMISSION}.list"),
)
