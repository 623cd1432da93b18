"""The pricing policy that a preemptible instance may name: it must be there, fit, and let it run. Pure."""

from collections.abc import Iterable
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.billing.v1 import PricingPolicy
from neocloud.services.billing.resources import PRICING_POLICY, SchedulingState, policy_namespace
from neocloud.services.compute.rules.references import find, missing

_FIELD = "spec.spot_pricing_policy"


def pricing_violations(new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
    """Looked at when the policy is named and when the instance is to run; between, it may go its own way."""
    spec = new.spec
    if spec.WhichOneof("pricing_model") != "spot_pricing_policy":
        return
    policy_id = spec.spot_pricing_policy.id
    if not policy_id:
        yield Violation(f"{_FIELD}.id", "is required: the id of a pricing policy of this project")
        return
    if not spec.HasField("preemptible"):
        yield Violation(_FIELD, "is for preemptible instances only; set spec.preemptible too")
    is_named_now = old is None or old.spec.spot_pricing_policy.id != policy_id
    if is_named_now or (old is not None and old.spec.stopped and not spec.stopped):
        yield from _policy_violations(new, policy_id, world)


def name_policy(new: Any, old: Any | None, world: ResourceReader) -> None:
    """Write down that the instance names it, so that the policy's users are found without reading all."""
    instance_id, named = new.metadata.id, new.spec.spot_pricing_policy.id
    before = old.spec.spot_pricing_policy.id if old is not None else ""
    if before and before != named:
        world.release(policy_namespace(before), instance_id)
    if named:
        world.reserve(policy_namespace(named), instance_id, instance_id)


def _policy_violations(new: Any, policy_id: str, world: ResourceReader) -> Iterable[Violation]:
    row = find(world, PRICING_POLICY, policy_id, new.metadata.parent_id)
    if row is None:
        yield missing(f"{_FIELD}.id", PRICING_POLICY, policy_id)
        return
    policy = PricingPolicy()
    policy.spec.ParseFromString(row.spec)
    policy.status.ParseFromString(row.status)
    platform = policy.spec.compute_instance_spec.v1.platform
    if platform != new.spec.resources.platform:
        yield Violation(f"{_FIELD}.id", f"{policy_id} is for platform {platform}, not for this one")
    elif not new.spec.stopped and _is_blocked(policy):
        raise contract.bad_state(
            policy_id,
            f"Pricing policy {row.name or policy_id} allows less than a preemptible GPU of {platform} costs, "
            "so no machine starts under it. Raise its max_price, or name no policy.",
        )


def _is_blocked(policy: Any) -> bool:
    return policy.status.scheduling_state == SchedulingState.Value("SCHEDULING_STATE_BLOCKED")
