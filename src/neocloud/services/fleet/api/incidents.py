"""IncidentService and CertificateService: drains by the controller with what was tried, how reliable nodes
were, and proofs that nodes passed their checks. All are computed from the events of nodes, for operators of
the cloud alone."""

from collections.abc import AsyncIterator
from statistics import median

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.fleet.nodes.events import Phase
from neocloud.fleet.nodes.incidents import Incident
from neocloud.fleet.nodes.reliability import REPLACED_WITHIN_SECONDS, Observed, reliability
from neocloud.fleet.policy.limits import DAY
from neocloud.messages.neocloud.fleet.v1 import (
    FaultRate,
    FleetIncident,
    GetIncidentRequest,
    GetReliabilityRequest,
    ListCertificatesRequest,
    ListCertificatesResponse,
    ListIncidentsRequest,
    ListIncidentsResponse,
    NodeCertificate,
    Reliability,
)
from neocloud.services.fleet.api.nodes import Pool, find_node, fold_of, outages_of, pools_of, pools_with_hosts
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.render import set_certificate, set_incident, set_time

INCIDENTS = "neocloud.fleet.v1.IncidentService"
CERTIFICATES = "neocloud.fleet.v1.CertificateService"
USUAL_DAYS = 30


async def get(call: Call, request: GetIncidentRequest) -> FleetIncident:
    node_id, _, number = request.id.rpartition("/")
    if not node_id:
        raise contract.not_found("incident", request.id)
    pool, log, state = await find_node(call, node_id, "get")
    for each in log.incidents.all:
        if each.node == state.node and str(each.number) == number:
            return _message(call, pool, log, each)
    raise contract.not_found("incident", request.id)


async def list_incidents(call: Call, request: ListIncidentsRequest) -> ListIncidentsResponse:
    found = [each async for each in _incidents(call, request.cluster_id)]
    scope = f"{INCIDENTS}/{request.cluster_id}"
    items, token = contract.page(found, request, scope=scope, key=_newest_first)
    return ListIncidentsResponse(items=items, next_page_token=token)


async def get_reliability(call: Call, request: GetReliabilityRequest) -> Reliability:
    end = call.dependencies.clock.now().timestamp()
    pools = [await fold_of(call, pool) for pool in await pools_of(call, request.cluster_id, "list")]
    observed = [
        Observed(
            {
                name: pool.fleet.lemons.records[name].since
                for name, state in pool.fleet.nodes.items()
                if state.phase is not Phase.RETIRED
            },
            *(pool.incidents.all, pool.outages.all),
        )
        for pool in pools
    ]
    found = reliability(observed, end - (request.days or USUAL_DAYS) * DAY, end)
    took = found.replacement_seconds
    answer = Reliability(
        nodes=found.nodes,
        node_days=found.node_seconds / DAY,
        faults=found.faults,
        replaced=len(took),
        replaced_within_90_seconds=sum(each <= REPLACED_WITHIN_SECONDS for each in took),
        median_replacement_seconds=median(took) if took else 0.0,
        longest_replacement_seconds=max(took, default=0.0),
        out_of_service_hours={
            cause.value: seconds / 3600 for cause, seconds in found.out_of_service_seconds.items()
        },
        availability=found.availability,
    )
    if rate := found.rate():
        value, low, high = rate
        answer.rate.CopyFrom(FaultRate(per_1000_node_days=value, low=low, high=high))
    set_time(answer.begin, found.begin)
    set_time(answer.end, found.end)
    return answer


async def list_certificates(call: Call, request: ListCertificatesRequest) -> ListCertificatesResponse:
    found: list[NodeCertificate] = []
    now = call.dependencies.clock.now().timestamp()
    for pool in await pools_with_hosts(call, request.cluster_id, "list"):
        for state in (await fold_of(call, pool)).fleet.nodes.values():
            if state.certificate is not None:
                made = NodeCertificate(
                    node_id=pool.id_of(state.node),
                    cluster_id=pool.message.spec.cluster_id,
                    cluster_name=pool.cluster_name,
                    node=state.node,
                    is_valid=state.has_certificate(now),
                )
                set_certificate(made.certificate, state.certificate)
                found.append(made)
    scope = f"{CERTIFICATES}/{request.cluster_id}"
    items, token = contract.page(found, request, scope=scope, key=lambda each: each.node_id)
    return ListCertificatesResponse(items=items, next_page_token=token)


async def _incidents(call: Call, cluster_id: str) -> AsyncIterator[FleetIncident]:
    for pool in await pools_with_hosts(call, cluster_id, "list"):
        log = await fold_of(call, pool)
        for each in log.incidents.all:
            yield _message(call, pool, log, each)


def _message(call: Call, pool: Pool, log: PoolLog, incident: Incident) -> FleetIncident:
    node_id = pool.id_of(incident.node)
    found = FleetIncident(
        id=f"{node_id}/{incident.number}",
        node_id=node_id,
        cluster_id=pool.message.spec.cluster_id,
        cluster_name=pool.cluster_name,
        node=incident.node,
        state="open" if incident.ended_at is None else "ended",
    )
    now = call.dependencies.clock.now()
    set_incident(found.summary, incident, outages_of(pool, log, incident), now)
    for step in incident.steps:
        added = found.steps.add(what=step.what, outcome=step.outcome)
        set_time(added.at, step.at)
        if step.ended_at is not None:
            set_time(added.ended_at, step.ended_at)
    if incident.ended_at is not None:
        set_time(found.ended_at, incident.ended_at)
    if incident.returned_at is not None:
        set_time(found.returned_at, incident.returned_at)
    return found


def _newest_first(found: FleetIncident) -> str:
    """Return a key of which the smallest is that of the newest."""
    return f"{10**20 - found.summary.decided_at.ToNanoseconds():020d} {found.id}"


METHODS = (
    Method(f"{INCIDENTS}/Get", get, "fleet.incidents.get"),
    Method(f"{INCIDENTS}/List", list_incidents, "fleet.incidents.list"),
    Method(f"{INCIDENTS}/GetReliability", get_reliability, "fleet.incidents.list"),
    Method(f"{CERTIFICATES}/List", list_certificates, "fleet.certificates.list"),
)
