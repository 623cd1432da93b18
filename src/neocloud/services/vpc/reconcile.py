"""Applies a network with its subnets, routes and security groups as one object of the engine.

Every change inside a network enqueues it (`Rules.dependents`), and it is applied whole: one atomic change.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    Context,
    ReconcileResult,
    Step,
)
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Engine, EngineError
from neocloud.engines.calls import engine_call
from neocloud.messages.nebius.vpc.v1 import (
    NetworkStatus,
    RouteSpec,
    RouteStatus,
    RouteTableSpec,
    RuleDirection,
    RuleProtocol,
    RuleType,
    SecurityGroupSpec,
    SecurityRuleSpec,
    SecurityRuleStatus,
    SubnetSpec,
    SubnetStatus,
)
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.render import (
    EGRESS,
    GroupView,
    NetworkView,
    RouteView,
    RuleView,
    SubnetView,
    removal,
    render,
)

NetworkedSpec = RouteTableSpec | SecurityGroupSpec | SubnetSpec


@dataclass(frozen=True)
class NetworkScope:
    view: NetworkView
    status: NetworkStatus
    is_deleting: bool


class NetworkReconciler:
    kind = vpc.NETWORK

    def __init__(self, engine: Engine, platform_services: Sequence[str] = ()) -> None:
        """`platform_services` are reached from every network, subject to its security groups."""
        self._engine = engine
        self._platform_services = tuple(platform_services)

    async def scope(self, context: Context) -> NetworkScope:
        row = context.resource
        return NetworkScope(
            view=await view_of(context, row, self._platform_services),
            status=NetworkStatus.FromString(row.status),
            is_deleting=row.deleted_at is not None,
        )

    def steps(self, scope: NetworkScope) -> Sequence[Step[NetworkScope]]:
        return (Step("Apply the network", self._apply),)

    def delete_steps(self, scope: NetworkScope) -> Sequence[Step[NetworkScope]]:
        return (Step("Remove the network", self._remove),)

    def status(self, scope: NetworkScope, result: ReconcileResult) -> ReconcileResult:
        was_ready = scope.status.state == NetworkStatus.State.Value(vpc.VpcState.READY)
        state = vpc.VpcState.READY if result.is_done or was_ready else vpc.VpcState.CREATING
        if scope.is_deleting:
            state = vpc.VpcState.DELETING
        scope.status.state = NetworkStatus.State.Value(state)
        return result.with_status(scope.status, state, IDLE_RESYNC_SECONDS)

    async def _apply(self, scope: NetworkScope) -> None:
        refused = {EngineError: vpc.NetworkReason.ENGINE_REFUSED}
        await engine_call(self._engine.apply(render(scope.view)), failures=refused)

    async def _remove(self, scope: NetworkScope) -> None:
        await engine_call(self._engine.remove(removal(scope.view.id)))


async def view_of(
    context: Context, network: Resource, platform_services: tuple[str, ...] = ()
) -> NetworkView:
    """Return the network as the store holds it now."""
    routes = {
        table.id: _routes(await context.children(table.id))
        for table in await _of_network(context, vpc.ROUTE_TABLE, RouteTableSpec, network)
    }
    default_id = NetworkStatus.FromString(network.status).default_route_table_id
    subnets = await _of_network(context, vpc.SUBNET, SubnetSpec, network)
    groups = await _of_network(context, vpc.SECURITY_GROUP, SecurityGroupSpec, network)
    return NetworkView(
        id=network.id,
        domain=vpc.domain_of(network.name),
        subnets=tuple(_subnet(row, routes, default_id) for row in subnets),
        platform_services=platform_services,
        groups=tuple([GroupView(row.id, _rules(await context.children(row.id))) for row in groups]),
    )


async def _of_network(
    context: Context, kind: str, spec: type[NetworkedSpec], network: Resource
) -> list[Resource]:
    rows = await context.list(kind, network.parent_id)
    return [row for row in rows if spec.FromString(row.spec).network_id == network.id]


def _subnet(row: Resource, routes: dict[str, tuple[RouteView, ...]], default_table_id: str) -> SubnetView:
    blocks = vpc.subnet_blocks(SubnetStatus.FromString(row.status))
    table_id = SubnetSpec.FromString(row.spec).route_table_id or default_table_id
    return SubnetView(
        id=row.id,
        cidrs=tuple(str(block.cidr) for block in blocks),
        gateway=str(blocks[0].gateway),
        routes=routes.get(table_id, ()),
    )


def _routes(rows: Iterable[Resource]) -> tuple[RouteView, ...]:
    found: list[RouteView] = []
    for row in rows:
        spec, status = RouteSpec.FromString(row.spec), RouteStatus.FromString(row.status)
        next_hop = status.next_hop.allocation.cidr.partition("/")[0] or EGRESS
        found.append(RouteView(spec.destination.cidr, next_hop))
    return tuple(found)


def _rules(rows: Iterable[Resource]) -> tuple[RuleView, ...]:
    return tuple(_rule(row) for row in rows)


def _rule(row: Resource) -> RuleView:
    spec, status = SecurityRuleSpec.FromString(row.spec), SecurityRuleStatus.FromString(row.status)
    direction = RuleDirection.Name(status.direction).lower()
    other_side = status.source if direction == "ingress" else status.destination
    return RuleView(
        direction=direction,
        access=RuleAccess.Name(spec.access).lower(),
        protocol=RuleProtocol.Name(spec.protocol).lower(),
        priority=status.effective_priority,
        ports=tuple(status.destination.ports),
        cidrs=tuple(other_side.cidrs),
        group=other_side.security_group_id,
        is_stateful=spec.type != RuleType.Value("STATELESS"),
    )
