"""The most that a preemptible GPU may cost: kept at once, and held against the machines that name it, by the
official SDK. CMP-15."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.billing.v1 import (
    ComputeInstanceSpec,
    ComputeInstanceSpecV1,
    MaxPriceV1,
    PricingMethod,
    PricingPolicySpec,
    PricingPolicyStatus,
)
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    AttachedDiskSpec,
    DiskSpec,
    InstanceSpec,
    IPAddress,
    ManagedDisk,
    NetworkInterfaceSpec,
    PreemptibleSpec,
    ResourcesSpec,
    SourceImageFamily,
    SpotPricingPolicySpec,
)

from neocloud.core import contract
from neocloud.core.readers import ServiceRegistry
from neocloud.services.billing.rules.price_list import PriceList, default_price_list, parse_price_list
from neocloud.services.billing.rules.pricing_policy import PricingPolicyRules
from neocloud.services.billing.types import PRICING_POLICY
from neocloud.testing.emulator import Emulator, emulator
from tests.fast.conformance.sdk import SdkCalls

POLICIES, INSTANCES = "nebius.billing.v1.PricingPolicyService", "nebius.compute.v1.InstanceService"
H100 = ("gpu-h100-sxm", "1gpu-16vcpu-200gb")
States, Scheduling = PricingPolicyStatus.State, PricingPolicyStatus.SchedulingState


@dataclass
class Bank:
    api: SdkCalls
    project_id: str
    tenant_id: str
    subnet_id: str
    made: list[str] = field(default_factory=list)

    async def policy(self, name: str, price: str, platform: str = H100[0], project_id: str = "") -> str:
        metadata = ResourceMetadata(parent_id=project_id or self.project_id, name=name)
        spec = policy_spec(price, platform)
        return (await self.api(f"{POLICIES}/Create", metadata=metadata, spec=spec)).resource_id

    async def show(self, policy_id: str) -> Any:
        return await self.api(f"{POLICIES}/Get", id=policy_id)

    async def allow(self, policy_id: str, price: str) -> None:
        metadata = (await self.show(policy_id)).metadata
        await self.api(f"{POLICIES}/Update", metadata=metadata, spec=policy_spec(price))

    async def machine(self, name: str, policy_id: str, **spec: Any) -> str:
        family = SourceImageFamily(image_family="ubuntu24.04-cuda13.0")
        disk = DiskSpec(size_gibibytes=40, type=DiskSpec.DiskType.NETWORK_SSD, source_image_family=family)
        given = {
            "resources": ResourcesSpec(platform=H100[0], preset=H100[1]),
            "boot_disk": AttachedDiskSpec(
                attach_mode=AttachedDiskSpec.AttachMode.READ_WRITE,
                managed_disk=ManagedDisk(name=f"{name}-boot", spec=disk),
            ),
            "network_interfaces": [
                NetworkInterfaceSpec(name="eth0", subnet_id=self.subnet_id, ip_address=IPAddress())
            ],
            "preemptible": PreemptibleSpec(priority=1, on_preemption=PreemptibleSpec.PreemptionPolicy.STOP),
            "spot_pricing_policy": SpotPricingPolicySpec(id=policy_id),
        }
        metadata = ResourceMetadata(parent_id=self.project_id, name=name)
        spec = {key: value for key, value in (given | spec).items() if value is not None}
        created = await self.api(f"{INSTANCES}/Create", metadata=metadata, spec=InstanceSpec(**spec))
        self.made.append(created.resource_id)
        return created.resource_id


def policy_spec(price: str, platform: str = H100[0]) -> PricingPolicySpec:
    return PricingPolicySpec(
        compute_instance_spec=ComputeInstanceSpec(v1=ComputeInstanceSpecV1(platform=platform)),
        pricing=PricingMethod(max_price_v1=MaxPriceV1(max_price=price)),
    )


def price_of_the_day() -> Decimal:
    price = default_price_list().skus[f"{H100[0]}.gpu.preemptible"].price_on(datetime.now(UTC).date())
    assert price is not None
    return price


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with emulator() as running:
        yield running


@pytest.fixture
async def bank(cloud: Emulator) -> AsyncIterator[Bank]:
    sdk = cloud.sdk()
    async with sdk:
        api = SdkCalls(sdk)
        (subnet,) = (await api("nebius.vpc.v1.SubnetService/List", parent_id=cloud.project_id)).items
        bank = Bank(api, cloud.project_id, cloud.tenant_id, subnet.metadata.id)
        yield bank
        for instance_id in bank.made:
            await bank.api(f"{INSTANCES}/Delete", id=instance_id)
        for policy in (await bank.api(f"{POLICIES}/List", parent_id=cloud.project_id)).items:
            await bank.api(f"{POLICIES}/Delete", id=policy.metadata.id)


async def refused(call: Any) -> tuple[str, str]:
    """The code and the words that a call ends with."""
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.status.code.name, str(caught.value)


async def test_a_policy_is_ready_when_create_is_answered(bank: Bank) -> None:
    status = (await bank.show(await bank.policy("dstack", "9.125"))).status
    assert (status.state, status.scheduling_state) == (
        States.STATE_ACTIVE,
        Scheduling.SCHEDULING_STATE_ALLOWED,
    )
    assert (status.sku_id, status.currency) == ("gpu-h100-sxm.gpu.preemptible", "USD")
    assert status.running_vm_count == 0


async def test_machines_that_run_under_a_policy_are_counted_and_hold_it(bank: Bank) -> None:
    policy_id = await bank.policy("held", "9")
    instance_id = await bank.machine("held", policy_id)
    assert (await bank.show(policy_id)).status.running_vm_count == 1
    for call in (bank.allow(policy_id, "9.5"), bank.api(f"{POLICIES}/Delete", id=policy_id)):
        code, words = await refused(call)
        assert code == "FAILED_PRECONDITION" and "held" in words
    metadata = (await bank.show(policy_id)).metadata
    metadata.name = "renamed"
    await bank.api(f"{POLICIES}/Update", metadata=metadata, spec=policy_spec("9.000"))
    await bank.api(f"{INSTANCES}/Stop", id=instance_id)
    assert (await bank.show(policy_id)).status.running_vm_count == 0
    await bank.allow(policy_id, "9.5")
    await bank.api(f"{INSTANCES}/Start", id=instance_id)
    assert (await bank.show(policy_id)).status.running_vm_count == 1


async def test_no_machine_starts_under_a_price_below_that_of_the_day(bank: Bank) -> None:
    policy_id = await bank.policy("cheap", "0.125")
    assert (await bank.show(policy_id)).status.scheduling_state == Scheduling.SCHEDULING_STATE_BLOCKED
    code, words = await refused(bank.machine("cheap", policy_id))
    assert code == "FAILED_PRECONDITION" and "max_price" in words
    await bank.allow(policy_id, str(price_of_the_day()))
    assert (await bank.show(policy_id)).status.scheduling_state == Scheduling.SCHEDULING_STATE_ALLOWED
    instance_id = await bank.machine("cheap", policy_id)
    await bank.api(f"{INSTANCES}/Stop", id=instance_id)
    await bank.allow(policy_id, str(price_of_the_day() - Decimal("0.001")))
    assert (await bank.show(policy_id)).status.scheduling_state == Scheduling.SCHEDULING_STATE_BLOCKED
    code, words = await refused(bank.api(f"{INSTANCES}/Start", id=instance_id))
    assert code == "FAILED_PRECONDITION" and "max_price" in words


async def test_a_stopped_machine_whose_policy_is_gone_says_so_when_started(bank: Bank) -> None:
    policy_id = await bank.policy("gone", "9")
    instance_id = await bank.machine("gone", policy_id)
    await bank.api(f"{INSTANCES}/Stop", id=instance_id)
    await bank.api(f"{POLICIES}/Delete", id=policy_id)
    code, words = await refused(bank.api(f"{INSTANCES}/Start", id=instance_id))
    assert code == "INVALID_ARGUMENT" and policy_id in words


async def test_a_stopped_machine_may_change_its_policy(bank: Bank) -> None:
    first, second = await bank.policy("first", "9"), await bank.policy("second", "9")
    instance_id = await bank.machine("moves", first)
    machine = await bank.api(f"{INSTANCES}/Get", id=instance_id)
    machine.spec.spot_pricing_policy = SpotPricingPolicySpec(id=second)
    change = {"metadata": machine.metadata, "spec": machine.spec}
    assert (await refused(bank.api(f"{INSTANCES}/Update", **change)))[0] == "FAILED_PRECONDITION"
    await bank.api(f"{INSTANCES}/Stop", id=instance_id)
    machine = await bank.api(f"{INSTANCES}/Get", id=instance_id)
    machine.spec.spot_pricing_policy = SpotPricingPolicySpec(id=second)
    await bank.api(f"{INSTANCES}/Update", metadata=machine.metadata, spec=machine.spec)
    await bank.api(f"{INSTANCES}/Start", id=instance_id)
    counts = [(await bank.show(policy_id)).status.running_vm_count for policy_id in (first, second)]
    assert counts == [0, 1]


async def test_a_policy_must_fit_the_machine_that_names_it(bank: Bank) -> None:
    policy_id = await bank.policy("fits", "9")
    other_platform = await bank.policy("l40s", "9", "gpu-l40s-d")
    metadata = ResourceMetadata(parent_id=bank.tenant_id, name="elsewhere")
    project = await bank.api("nebius.iam.v1.ProjectService/Create", metadata=metadata)
    elsewhere = await bank.policy("elsewhere", "9", project_id=project.resource_id)
    for wrong, code, named in (
        (bank.machine("x", policy_id, preemptible=None), "INVALID_ARGUMENT", "preemptible"),
        (bank.machine("x", other_platform), "INVALID_ARGUMENT", "gpu-l40s-d"),
        (bank.machine("x", elsewhere), "INVALID_ARGUMENT", elsewhere),
        (bank.machine("x", contract.new_id("pricingpolicy")), "NOT_FOUND", "pricingpolicy"),
        (bank.machine("x", ""), "INVALID_ARGUMENT", "spot_pricing_policy"),
    ):
        found, words = await refused(wrong)
        assert found == code and named in words


@pytest.mark.parametrize("price", ["", "0", "0.000", "1.2345", "-1", "1e3", "1,5", "NaN"])
async def test_what_is_no_price_is_refused(bank: Bank, price: str) -> None:
    code, words = await refused(bank.policy("wrong", price))
    assert code == "INVALID_ARGUMENT" and "max_price" in words


async def test_the_platform_must_be_known_and_stays(bank: Bank) -> None:
    code, words = await refused(bank.policy("wrong", "1", "gpu-abacus"))
    assert code == "INVALID_ARGUMENT" and "gpu-abacus" in words
    metadata = (await bank.show(await bank.policy("stays", "1"))).metadata
    changed = bank.api(f"{POLICIES}/Update", metadata=metadata, spec=policy_spec("1", "gpu-h200-sxm"))
    assert (await refused(changed))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "platform, allowed",
    [
        ("gpu-h100-sxm", "BLOCKED"),
        ("gpu-h200-sxm", "ALLOWED"),
        ("cpu-d3", "ALLOWED"),
        ("gpu-local", "ALLOWED"),
    ],
)
def test_the_operator_s_own_prices_decide(platform: str, allowed: str) -> None:
    """A GPU without a price, or a machine without a GPU, is not held against the policy."""
    prices = """
currency: EUR
skus:
  gpu-h100-sxm.gpu.preemptible: {unit: gpu-hour, prices: [{from: 2020-01-01, price: "9"}]}
  gpu-h200-sxm.gpu.preemptible: {unit: gpu-hour, prices: [{from: 2020-01-01, price: "2"}]}
  cpu-d3.vcpu.preemptible: {unit: vcpu-hour, prices: [{from: 2020-01-01, price: "9"}]}
"""
    world: Any = SimpleNamespace(
        provided=ServiceRegistry().add(PriceList, parse_price_list(prices, "own")),
        now=datetime(2026, 11, 1, tzinfo=UTC),
    )
    policy: Any = contract.message(PRICING_POLICY)()
    policy.spec.compute_instance_spec.v1.platform = platform
    policy.spec.pricing.max_price_v1.max_price = "2"
    PricingPolicyRules().complete(policy, None, world)
    state = policy.status.DESCRIPTOR.fields_by_name["scheduling_state"].enum_type
    found = state.values_by_number[policy.status.scheduling_state].name
    assert (found, policy.status.currency) == (f"SCHEDULING_STATE_{allowed}", "EUR")
