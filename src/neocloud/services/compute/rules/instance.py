"""Rules of instances and GPU clusters. Pure.

An instance acquires its disks in the transaction that creates it.
"""

from collections.abc import Iterable, Mapping

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.usage import CapacityUse, Rows
from neocloud.messages.nebius.billing.v1 import PricingPolicy, PricingPolicyStatus
from neocloud.messages.nebius.compute.v1 import (
    CreateInstanceRequest,
    GpuCluster,
    Instance,
    InstanceSpec,
    UpdateInstanceRequest,
)
from neocloud.services.compute.catalogue import platforms, preset, preset_violations
from neocloud.services.compute.maintenance import is_under_maintenance
from neocloud.services.compute.public import Demand, check_capacity, instance_demands
from neocloud.services.compute.rules.instance_attachments import (
    acquire_storage,
    interface_violations,
    storage_violations,
)
from neocloud.services.compute.rules.instance_update import change_violations, changes_what_runs
from neocloud.services.compute.rules.user_data import user_data_violations
from neocloud.services.compute.rules.volumes import find, missing
from neocloud.services.compute.types import (
    GIB,
    GPU_CLUSTER,
    INSTANCE,
    InstanceState,
    existing_disks,
    policy_namespace,
)
from neocloud.services.iam.types import SERVICE_ACCOUNT

_WITHOUT_CAPACITY = frozenset({InstanceState.STOPPED, InstanceState.ERROR})


def _held(rows: Rows) -> Iterable[tuple[str, Demand]]:
    for row in rows[INSTANCE]:
        if row.state not in _WITHOUT_CAPACITY or is_under_maintenance(row):
            for demand in instance_demands(InstanceSpec.FromString(row.spec)):
                yield row.id, demand


CAPACITY = (CapacityUse((INSTANCE,), _held),)


class InstanceRules(Rules[Instance]):
    def request_violations(
        self, request: CreateInstanceRequest | UpdateInstanceRequest
    ) -> Iterable[Violation]:
        return user_data_violations(request.spec.cloud_init_user_data)

    def violations(self, new: Instance, old: Instance | None, reader: ResourceReader) -> Iterable[Violation]:
        found = [
            *shape_violations(new, old, reader),
            *pricing_violations(new, old, reader),
            *storage_violations(new, old, reader),
            *interface_violations(new, old, reader),
            *(change_violations(new, old) if old is not None else ()),
        ]
        if not found:
            held = instance_demands(old.spec) if old is not None else []
            may_preempt = not new.spec.HasField("preemptible")
            demanded = instance_demands(new.spec)
            check_capacity(reader, new.metadata, demanded, held, may_wait=True, may_preempt=may_preempt)
        return found

    def complete(self, new: Instance, old: Instance | None, reader: ResourceReader) -> None:
        acquire_storage(new, old, reader)
        name_policy(new, old, reader)

    def quota_demand(self, resource: Instance) -> Mapping[str, int]:
        """Count an instance whether it runs or not; its disks have quotas of their own."""
        shape = preset(resource.spec.resources.platform, resource.spec.resources.preset)
        if shape.gpus:
            return {
                "compute.instance.count": 1,
                f"compute.instance.gpu.{shape.gpu_type or 'any'}": shape.gpus,
            }
        memory = shape.memory_gib * GIB
        return {
            "compute.instance.count": 1,
            "compute.instance.non-gpu.vcpu": shape.vcpu,
            "compute.instance.non-gpu.memory": memory,
        }

    def changes_what_runs(self, new: Instance, old: Instance) -> bool:
        return changes_what_runs(new, old)

    def dependents(self, resource: Instance) -> Iterable[str]:
        """Disks, filesystems and addresses show the instance that uses them."""
        yield from existing_disks(resource.spec)
        for attached in resource.spec.filesystems:
            yield attached.existing_filesystem.id
        for interface in resource.status.network_interfaces:
            yield interface.ip_address.allocation_id
            yield interface.public_ip_address.allocation_id


STRICT_RESERVATION = 2


def shape_violations(new: Instance, old: Instance | None, reader: ResourceReader) -> Iterable[Violation]:
    spec, parent_id = new.spec, new.metadata.parent_id
    wrong = list(preset_violations(spec.resources.platform, spec.resources.preset, "spec.resources"))
    yield from wrong
    account_id = spec.service_account_id if old is None else ""
    if account_id and find(reader, SERVICE_ACCOUNT, account_id, parent_id) is None:
        yield missing("spec.service_account_id", SERVICE_ACCOUNT, account_id)
    if old is None and spec.gpu_cluster.id:
        yield from _gpu_cluster_violations(spec, parent_id, reader, is_preset_known=not wrong)
    yield from _not_offered(spec)


def _gpu_cluster_violations(
    spec: InstanceSpec, parent_id: str, reader: ResourceReader, *, is_preset_known: bool
) -> Iterable[Violation]:
    if find(reader, GPU_CLUSTER, spec.gpu_cluster.id, parent_id) is None:
        yield missing("spec.gpu_cluster.id", GPU_CLUSTER, spec.gpu_cluster.id)
    elif is_preset_known:
        platform = platforms()[spec.resources.platform]
        if spec.resources.preset not in platform.clustering_presets:
            fitting = ", ".join(sorted(platform.clustering_presets)) or "none of this platform"
            yield Violation("spec.gpu_cluster.id", f"takes only presets that may be clustered: {fitting}")


def _not_offered(spec: InstanceSpec) -> Iterable[Violation]:
    if spec.nvl_instance_group_id:
        yield Violation("spec.nvl_instance_group_id", "NVLink instance groups are not offered here")
    if spec.reservation_policy.policy == STRICT_RESERVATION or spec.reservation_policy.reservation_ids:
        yield Violation("spec.reservation_policy", "there are no reservations here; leave it out")
    if spec.local_disks.passthrough_group.requested:
        yield Violation("spec.local_disks", "local disks are not offered here; attach disks instead")


_POLICY_FIELD = "spec.spot_pricing_policy"
_PRICING_POLICY = PricingPolicy.DESCRIPTOR.full_name
"""The contract's message says what a policy allows; billing, which is built on compute, is not imported."""


def pricing_violations(new: Instance, old: Instance | None, reader: ResourceReader) -> Iterable[Violation]:
    """Check the pricing policy when it is named and when the instance is to run, but not in between."""
    spec = new.spec
    if spec.WhichOneof("pricing_model") != "spot_pricing_policy":
        return
    policy_id = spec.spot_pricing_policy.id
    if not policy_id:
        yield Violation(f"{_POLICY_FIELD}.id", "is required: the id of a pricing policy of this project")
        return
    if not spec.HasField("preemptible"):
        yield Violation(_POLICY_FIELD, "is for preemptible instances only; set spec.preemptible too")
    is_named_now = old is None or old.spec.spot_pricing_policy.id != policy_id
    if is_named_now or (old is not None and old.spec.stopped and not spec.stopped):
        yield from _policy_violations(new, policy_id, reader)


def name_policy(new: Instance, old: Instance | None, reader: ResourceReader) -> None:
    """Reserve the instance's use of its policy, so that a policy's users are found without reading all."""
    instance_id, named = new.metadata.id, new.spec.spot_pricing_policy.id
    before = old.spec.spot_pricing_policy.id if old is not None else ""
    if before and before != named:
        reader.release(policy_namespace(before), instance_id)
    if named:
        reader.reserve(policy_namespace(named), instance_id, instance_id)


def _policy_violations(new: Instance, policy_id: str, reader: ResourceReader) -> Iterable[Violation]:
    row = find(reader, _PRICING_POLICY, policy_id, new.metadata.parent_id)
    if row is None:
        yield missing(f"{_POLICY_FIELD}.id", _PRICING_POLICY, policy_id)
        return
    policy = PricingPolicy()
    policy.spec.ParseFromString(row.spec)
    policy.status.ParseFromString(row.status)
    platform = policy.spec.compute_instance_spec.v1.platform
    if platform != new.spec.resources.platform:
        yield Violation(f"{_POLICY_FIELD}.id", f"{policy_id} is for platform {platform}, not for this one")
    elif not new.spec.stopped and _is_blocked(policy):
        raise contract.bad_state(
            policy_id,
            f"Pricing policy {row.name or policy_id} allows less than a preemptible GPU of {platform} costs, "
            "so no machine starts under it. Raise its max_price, or name no policy.",
        )


def _is_blocked(policy: PricingPolicy) -> bool:
    blocked = PricingPolicyStatus.SchedulingState.Value("SCHEDULING_STATE_BLOCKED")
    return policy.status.scheduling_state == blocked


class GpuClusterRules(Rules[GpuCluster]):
    def quota_demand(self, resource: GpuCluster) -> Mapping[str, int]:
        return {"compute.gpucluster.count": 1}

    def check_delete(self, resource: GpuCluster, reader: ResourceReader) -> None:
        cluster = resource.metadata
        members = [
            row.name or row.id
            for row in reader.list(INSTANCE, cluster.parent_id)
            if InstanceSpec.FromString(row.spec).gpu_cluster.id == cluster.id
        ]
        if members:
            raise contract.bad_state(
                cluster.id,
                f"GPU cluster {cluster.name} still holds {', '.join(members[:5])}. Delete them first.",
            )
