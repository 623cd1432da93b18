"""VerdictService: failing verdicts of checks, and what operators say of them. For operators alone."""

from neocloud.core import contract
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.protocol import Transaction
from neocloud.fleet.control.failing import Failing
from neocloud.fleet.control.judging import judging
from neocloud.fleet.nodes.events import Judged
from neocloud.messages.neocloud.fleet.v1 import (
    FailingVerdict,
    JudgeVerdictRequest,
    ListFailingVerdictsRequest,
    ListFailingVerdictsResponse,
)
from neocloud.services.fleet.api.nodes import Pool, find_node, fold_of, operator_name, pools_of
from neocloud.services.fleet.logs.node_logs import PoolLog, log_event
from neocloud.services.fleet.render import set_time, verdict_message

PERMISSION = "fleet.verdicts"
SERVICE_NAME = "neocloud.fleet.v1.VerdictService"


async def list_verdicts(call: Call, request: ListFailingVerdictsRequest) -> ListFailingVerdictsResponse:
    found: list[FailingVerdict] = []
    for pool in await pools_of(call, request.cluster_id, "list"):
        log = await fold_of(call, pool)
        found += [_message(pool, log, each) for each in log.failing.all]
    scope = f"{SERVICE_NAME}/{request.cluster_id}"
    items, token = contract.page(found, request, scope=scope, key=_newest_first)
    return ListFailingVerdictsResponse(items=items, next_page_token=token)


async def judge(call: Call, request: JudgeVerdictRequest) -> Write[FailingVerdict]:
    pool, log, state = await find_node(call, request.id, "update")
    failing = log.failing.get(state.node, request.verdict)
    if failing is None:
        raise contract.not_found("failing verdict", f"{request.verdict} of {request.id}")
    is_confirmed, by = request.finding == JudgeVerdictRequest.Finding.CONFIRMED, operator_name(call)
    known = failing.judged
    is_said = known is not None and (known.is_confirmed, known.by) == (is_confirmed, by)

    def work(tx: Transaction) -> FailingVerdict:
        if not is_said:
            now = call.dependencies.clock.now()
            at, check = now.timestamp(), failing.verdict.check
            event = Judged(at, state.node, check, failing.verdict.id, is_confirmed, by)
            tx.append_event(pool.row.id, log_event(event))
            tx.enqueue(pool.row.id, now)
        return _message(pool, log, failing)

    async def complete(answer: FailingVerdict) -> FailingVerdict:
        after = await fold_of(call, pool)
        found = after.failing.get(state.node, request.verdict)
        return answer if found is None else _message(pool, after, found)

    return Write(work, complete=complete)


def _message(pool: Pool, log: PoolLog, failing: Failing) -> FailingVerdict:
    verdict, rules = failing.verdict, judging()
    test = rules.test_of(verdict.check)
    found = FailingVerdict(
        node_id=pool.id_of(verdict.node),
        cluster_id=pool.message.spec.cluster_id,
        cluster_name=pool.cluster_name,
        node=verdict.node,
        verdict=verdict_message(verdict),
        shadow=log.fleet.breakers.in_shadow(verdict.check, verdict.status),
        was_in_shadow=failing.was_in_shadow,
        judged_by=test.check if test else "",
        judged_by_reason=test.why if test else rules.by_people.get(verdict.check, ""),
    )
    if failing.judged is not None:
        found.judgement.is_confirmed, found.judgement.by = failing.judged.is_confirmed, failing.judged.by
        set_time(found.judgement.at, failing.judged.at)
    return found


def _newest_first(found: FailingVerdict) -> str:
    """Return a key of which the smallest is that of the newest."""
    return f"{10**20 - found.verdict.at.ToNanoseconds():020d} {found.node_id} {found.verdict.id}"


METHODS = (
    Method(f"{SERVICE_NAME}/List", list_verdicts, f"{PERMISSION}.list"),
    Method(f"{SERVICE_NAME}/Judge", judge, f"{PERMISSION}.update", is_change=True),
)
