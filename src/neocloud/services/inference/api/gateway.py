"""What the gateway process asks the control plane.

Each method is open to whoever has the gateway's key, and to nobody else: see `admission.require_gateway`.
"""

from datetime import UTC

from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.inference.v1 import (
    ListRoutesRequest,
    ListRoutesResponse,
    ReportTrafficRequest,
    ReportTrafficResponse,
)
from neocloud.services.billing.resources import TokenPrices, TokenTerms
from neocloud.services.inference.api.admission import admit, require_gateway
from neocloud.services.inference.api.routes import TermsOf, read_routes
from neocloud.services.inference.resources import DEPLOYMENT
from neocloud.services.inference.route_changes import RouteChanges
from neocloud.services.inference.traffic import TrafficBoard

SERVICE = "neocloud.inference.v1.GatewayService"
LONGEST_WAIT_SECONDS = 60


async def list_routes(call: Call, request: ListRoutesRequest) -> ListRoutesResponse:
    require_gateway(call)
    changes = call.dependencies.provided.get(RouteChanges)
    store, clock = call.dependencies.store, call.dependencies.clock
    terms = _terms_of(call)
    until = clock.monotonic() + min(max(request.wait_seconds, 0), LONGEST_WAIT_SECONDS)
    while True:
        changed = changes.listen()
        # Among the writers: whoever told of a change until now has committed it when this one's turn comes.
        answer = await store.write(lambda tx: read_routes(tx, terms))
        remaining = until - clock.monotonic()
        if answer.version != request.version or remaining <= 0:
            return answer
        await changes.wait(changed, remaining)


def _terms_of(call: Call) -> TermsOf:
    """As of today; without a price list nothing has a price."""
    prices = call.dependencies.provided.find(TokenPrices)
    today = call.dependencies.clock.now().astimezone(UTC).date()
    return lambda name: prices(name, today) if prices else TokenTerms()


async def report_traffic(call: Call, request: ReportTrafficRequest) -> ReportTrafficResponse:
    require_gateway(call)
    board = call.dependencies.provided.get(TrafficBoard)
    waiting = board.report(request.items)
    if waiting:
        await call.dependencies.store.write(lambda tx: _wake(tx, waiting, call))
    return ReportTrafficResponse()


def _wake(tx: Transaction, deployment_ids: set[str], call: Call) -> None:
    """Seen by the worker within its second."""
    for deployment_id in sorted(deployment_ids):
        row = tx.get(deployment_id)
        if row is not None and row.kind == DEPLOYMENT:
            tx.enqueue(deployment_id, call.dependencies.clock.now())


METHODS = (
    Method(f"{SERVICE}/Admit", admit, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ListRoutes", list_routes, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ReportTraffic", report_traffic, None, is_internal=True, is_checked=False),
)
"""Not checked by the server: who has no key learns not even whether the request was well formed."""
