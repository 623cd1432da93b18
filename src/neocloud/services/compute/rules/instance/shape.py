"""Platform, preset, GPU cluster, and what of an instance is not offered. Pure."""

from collections.abc import Iterable
from typing import Any

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.services.compute.resources.catalogue import platforms, preset_violations
from neocloud.services.compute.resources.instance import GPU_CLUSTER
from neocloud.services.compute.rules.references import find, missing

SERVICE_ACCOUNT = "nebius.iam.v1.ServiceAccount"
STRICT_RESERVATION = 2


def shape_violations(new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
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
    spec: Any, parent_id: str, world: ResourceReader, *, is_preset_known: bool
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
