"""Reserve capacity of this machine for each replica: for the bill, and for the capacity checks of others."""

from collections.abc import Mapping, Sequence

from neocloud.core.contract import ApiError
from neocloud.core.reconcile.reconciler import RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUses
from neocloud.engines.base import Capabilities
from neocloud.messages.neocloud.inference.v1 import ReplicaReservationSpec
from neocloud.services.compute.public import check_fits, held_by_others, holder_name, needs_capacity_check
from neocloud.services.inference.reconcile.scope import Scope
from neocloud.services.inference.rules.deployment import replica_demand
from neocloud.services.inference.types import REPLICA_RESERVATION, RESERVATION_STOPPED

NO_CAPACITY_SECONDS = 5.0


async def reserve_replicas(scope: Scope, inventory: Capabilities, uses: CapacityUses) -> None:
    """Reserve capacity for each desired replica.

    Raises RetryLater, with the sum of what is held, while the machine lacks capacity for them.
    """
    held = await _reservations(scope)
    missing = [name for name in scope.desired_names if name not in held]
    if missing:
        await _require_capacity(scope, inventory, uses, len(held))
    for name in missing:
        metadata = scope.deployment.metadata
        await scope.context.ensure_child(
            REPLICA_RESERVATION,
            name=_reservation_name(scope, name),
            parent_id=metadata.parent_id,
            spec=_spec(scope),
            labels={},
        )


async def release_replicas(scope: Scope, keep: Sequence[str]) -> None:
    """Release the reservations of all replicas but these."""
    for name, row in (await _reservations(scope)).items():
        if name not in keep:
            await scope.context.delete_child(row.id)


async def _reservations(scope: Scope) -> Mapping[str, Resource]:
    """Return them by replica, after releasing those of an older shape or from before a stop."""
    found: dict[str, Resource] = {}
    spec = _spec(scope)
    for row in await scope.context.list(REPLICA_RESERVATION, scope.deployment.metadata.parent_id):
        if row.owner_id != scope.id or row.deleted_at is not None:
            continue
        if row.state == RESERVATION_STOPPED or ReplicaReservationSpec.FromString(row.spec) != spec:
            await scope.context.delete_child(row.id)
        else:
            found[row.name.removeprefix(f"{scope.id}.")] = row
    return found


async def _require_capacity(scope: Scope, inventory: Capabilities, uses: CapacityUses, held: int) -> None:
    least = scope.spec.scaling.min_replicas
    demand = replica_demand(scope.spec, scope.desired)
    if not needs_capacity_check(inventory, demand, replica_demand(scope.spec, max(held, least))):
        return
    rows = {kind: await scope.context.list(kind) for kind in uses.kinds}
    project = scope.deployment.metadata.parent_id
    names = {row.id: holder_name(row) for found in rows.values() for row in found if row.parent_id == project}
    try:
        check_fits(inventory, demand, held_by_others(uses, rows, scope.id), names)
    except ApiError as error:
        raise RetryLater(error.message, delay_seconds=NO_CAPACITY_SECONDS) from error


def _reservation_name(scope: Scope, replica: str) -> str:
    return f"{scope.id}.{replica}"


def _spec(scope: Scope) -> ReplicaReservationSpec:
    spec = scope.spec
    return ReplicaReservationSpec(
        deployment_id=scope.id, platform=spec.platform, preset=spec.preset, charge=spec.charge
    )
