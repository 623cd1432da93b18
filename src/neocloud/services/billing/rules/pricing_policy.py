"""Rules of pricing policies: the most that the owner pays for a GPU of a preemptible machine. Pure.

There is no market here: the price of the day is the price list's. Under a policy below it no machine starts;
a policy at or above it changes no price.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.billing.v1 import PricingPolicy, PricingPolicySpec
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.services.billing.rules.price_list import Unit, price_list
from neocloud.services.billing.types import PricingPolicyState, SchedulingState
from neocloud.services.compute.public import platforms
from neocloud.services.compute.types import InstanceState, policy_namespace

_PRICE = re.compile(r"\d{1,9}(\.\d{1,3})?")
_RUNS_NOT = frozenset({InstanceState.STOPPED, InstanceState.ERROR})


class PricingPolicyRules(Rules[PricingPolicy]):
    def violations(
        self, new: PricingPolicy, old: PricingPolicy | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        platform, price = _platform(new.spec), _max_price(new.spec)
        if platform not in platforms():
            known = ", ".join(platforms())
            yield Violation(
                "spec.compute_instance_spec.v1.platform",
                f'"{platform}" is not a platform; there are: {known}',
            )
        if not _PRICE.fullmatch(price) or not Decimal(price):
            yield Violation(
                "spec.pricing.max_price_v1.max_price",
                f'is "{price}"; must be a positive decimal with at most three places, such as "3.515"',
            )
        elif old is not None and Decimal(price) != Decimal(_max_price(old.spec)):
            _check_unused(new.metadata, reader, "Its price changes")

    def complete(self, new: PricingPolicy, old: PricingPolicy | None, reader: ResourceReader) -> None:
        prices = price_list(reader.provided)
        sku_id = _sku_id(_platform(new.spec))
        sku = prices.skus.get(sku_id)
        today = sku.price_on(reader.now.date()) if sku and sku.unit is Unit.GPU_HOUR else None
        is_too_low = today is not None and Decimal(_max_price(new.spec)) < today
        new.status.state = PricingPolicyState.Value("STATE_ACTIVE")
        new.status.sku_id = sku_id
        new.status.currency = prices.currency
        new.status.scheduling_state = SchedulingState.Value(
            "SCHEDULING_STATE_BLOCKED" if is_too_low else "SCHEDULING_STATE_ALLOWED"
        )

    def quota_demand(self, resource: PricingPolicy) -> Mapping[str, int]:
        return {"billing.pricing-policy.count": 1}

    def check_delete(self, resource: PricingPolicy, reader: ResourceReader) -> None:
        _check_unused(resource.metadata, reader, "It goes")


def running_under(holders: Mapping[str, str], get: Callable[[str], Resource | None]) -> list[Resource]:
    """Return the instances, of those that name a policy, that run or are about to."""
    rows = (get(instance_id) for instance_id in holders.values())
    return [row for row in rows if row is not None and row.state not in _RUNS_NOT]


def pricing_policy_view(policy: PricingPolicy, tx: Transaction, now: datetime) -> None:
    """Set the number of machines that run under the policy, when it is read."""
    holders = tx.reservations(policy_namespace(policy.metadata.id))
    policy.status.running_vm_count = len(running_under(holders, tx.get))


def _check_unused(policy: ResourceMetadata, reader: ResourceReader, what: str) -> None:
    running = running_under(reader.reservations(policy_namespace(policy.id)), reader.get)
    if running:
        users = ", ".join(row.name or row.id for row in running[:5])
        raise contract.bad_state(
            policy.id,
            f"{users} run under pricing policy {policy.name or policy.id}. {what} only while none does: "
            "stop or delete them first.",
        )


def _platform(spec: PricingPolicySpec) -> str:
    return spec.compute_instance_spec.v1.platform


def _max_price(spec: PricingPolicySpec) -> str:
    return spec.pricing.max_price_v1.max_price


def _sku_id(platform: str) -> str:
    """Return the SKU that the price is compared with: a GPU, whatever else such a machine pays for. A machine
    without GPUs has no price by the GPU, so its policy never blocks."""
    any_preset = next(iter(platforms()[platform].presets.values()))
    return next(iter(any_preset.skus(is_preemptible=True)))
