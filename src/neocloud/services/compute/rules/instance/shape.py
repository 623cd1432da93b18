"""Platform, preset, GPU cluster, and whether this machine has room for it. Pure."""

from collections.abc import Iterable
from typing import Any

from neocloud.core.service import Violation, World
from neocloud.services.compute.resources.capacity import check_capacity
from neocloud.services.compute.resources.catalogue import platforms, preset, preset_violations
from neocloud.services.compute.resources.instance import (
    GPU_CLUSTER,
    INSTANCE,
    InstanceSpec,
    InstanceState,
)
from neocloud.services.compute.rules.references import find, missing

SERVICE_ACCOUNT = "nebius.iam.v1.ServiceAccount"
STRICT_RESERVATION = 2
_HOLDS_NOTHING = frozenset({InstanceState.STOPPED, InstanceState.ERROR})


def shape_violations(new: Any, old: Any | None, world: World) -> Iterable[Violation]:
    spec, parent_id = new.spec, new.metadata.parent_id
    wrong = list(preset_violations(spec.resources.platform, spec.resources.preset, "spec.resources"))
    yield from wrong
    account_id = spec.service_account_id if old is None else ""
    if account_id and find(world, SERVICE_ACCOUNT, account_id, parent_id) is None:
        yield missing("spec.service_account_id", SERVICE_ACCOUNT, account_id)
    if old is None and spec.gpu_cluster.id:
        yield from _gpu_cluster_violations(spec, parent_id, world, is_preset_known=not wrong)
    yield from _not_offered(spec)


def _gpu_cluster_violations(
    spec: Any, parent_id: str, world: World, *, is_preset_known: bool
) -> Iterable[Violation]:
    if find(world, GPU_CLUSTER, spec.gpu_cluster.id, parent_id) is None:
        yield missing("spec.gpu_cluster.id", GPU_CLUSTER, spec.gpu_cluster.id)
    elif is_preset_known:
        platform = platforms()[spec.resources.platform]
        if spec.resources.preset not in platform.clustering_presets:
            fitting = ", ".join(sorted(platform.clustering_presets)) or "none of this platform"
            yield Violation("spec.gpu_cluster.id", f"takes only presets that may be clustered: {fitting}")


def _not_offered(spec: Any) -> Iterable[Violation]:
    if spec.nvl_instance_group_id:
        yield Violation("spec.nvl_instance_group_id", "NVLink instance groups are not offered here")
    if spec.reservation_policy.policy == STRICT_RESERVATION or spec.reservation_policy.reservation_ids:
        yield Violation("spec.reservation_policy", "there are no reservations here; leave it out")
    if spec.local_disks.passthrough_group.requested:
        yield Violation("spec.local_disks", "local disks are not offered here; attach disks instead")
    if spec.spot_pricing_policy.id:
        yield Violation("spec.spot_pricing_policy", "spot prices are not offered here; use preemptible alone")


def check_room(new: Any, old: Any | None, world: World) -> None:
    """Raises NOT_ENOUGH_RESOURCES unless this machine holds it beside all others that run or will run."""
    if world.inventory is None or new.spec.stopped:
        return
    is_same_shape = old is not None and old.spec.resources == new.spec.resources
    if old is not None and is_same_shape and not old.spec.stopped:
        return
    if world.inventory.is_boundless and not _preset(new.spec).gpus:
        return
    check_capacity(world.inventory, [(_preset(new.spec), 1), *demands(world, new.metadata.id)])


def demands(world: World, but: str) -> Iterable[tuple[Any, int]]:
    """What all other instances of the machine hold."""
    for row in world.list(INSTANCE):
        if row.id == but or row.state in _HOLDS_NOTHING:
            continue
        spec = InstanceSpec.FromString(row.spec)
        if not spec.stopped:
            yield _preset(spec), 1


def _preset(spec: Any) -> Any:
    return preset(spec.resources.platform, spec.resources.preset)
