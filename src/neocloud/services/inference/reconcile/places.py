"""A place for each replica: what it holds of the machine, kept for the bill and for those who ask for
room."""

from collections.abc import Mapping, Sequence
from typing import Any

from neocloud.core.capacity import CapacityUses
from neocloud.core.contract import ApiError
from neocloud.core.reconcile.reconciler import RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Capabilities
from neocloud.messages.neocloud.inference.v1 import PlaceSpec
from neocloud.services.compute.public import check_fits, held_by_others, needs_capacity_check
from neocloud.services.inference.reconcile.scope import Scope
from neocloud.services.inference.resources import PLACE, PLACE_STOPPED
from neocloud.services.inference.rules.deployment import replica_demand

NO_ROOM_SECONDS = 5.0


async def take_places(scope: Scope, inventory: Capabilities, uses: CapacityUses) -> None:
    """One for each wanted replica. Raises RetryLater, with the sum, while there is no room for them."""
    held = await places(scope)
    missing = [name for name in scope.wanted_names if name not in held]
    if missing:
        await _require_room(scope, inventory, uses, len(held))
    for name in missing:
        metadata = scope.deployment.metadata
        await scope.context.ensure_child(
            PLACE,
            name=_place_name(scope, name),
            parent_id=metadata.parent_id,
            spec=_spec(scope),
            labels={},
        )


async def give_places_back(scope: Scope, keep: Sequence[str]) -> None:
    for name, row in (await places(scope)).items():
        if name not in keep:
            await scope.context.delete_child(row.id)


async def places(scope: Scope) -> Mapping[str, Resource]:
    """By replica; those of an older shape or from before a stop are given back first."""
    found: dict[str, Resource] = {}
    wanted = _spec(scope)
    for row in await scope.context.list(PLACE, scope.deployment.metadata.parent_id):
        if row.owner_id != scope.id or row.deleted_at is not None:
            continue
        if row.state == PLACE_STOPPED or PlaceSpec.FromString(row.spec) != wanted:
            await scope.context.delete_child(row.id)
        else:
            found[row.name.removeprefix(f"{scope.id}.")] = row
    return found


async def _require_room(scope: Scope, inventory: Capabilities, uses: CapacityUses, held: int) -> None:
    least = scope.spec.scaling.min_replicas
    wanted = replica_demand(scope.spec, scope.wanted)
    if not needs_capacity_check(inventory, wanted, replica_demand(scope.spec, max(held, least))):
        return
    rows = {kind: await scope.context.list(kind) for kind in uses.kinds}
    try:
        check_fits(inventory, [*wanted, *held_by_others(uses, rows.__getitem__, scope.id)])
    except ApiError as error:
        raise RetryLater(error.message, delay_seconds=NO_ROOM_SECONDS) from error


def _place_name(scope: Scope, replica: str) -> str:
    return f"{scope.id}.{replica}"


def _spec(scope: Scope) -> Any:
    spec = scope.spec
    return PlaceSpec(deployment_id=scope.id, platform=spec.platform, preset=spec.preset, charge=spec.charge)
