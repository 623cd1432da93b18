"""Estimates of cost, asked as SkyPilot's catalogue asks, by the official SDK. BILL-01, FORM-02."""

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio
from nebius.aio.service_error import RequestError
from nebius.api.google.protobuf import Any as Packed
from nebius.api.nebius.billing.v1 import (
    CalculatorServiceClient,
    EstimateBatchRequest,
    EstimateBatchResponse,
    FilterAggregationUnit,
    ResourceSpec,
)
from nebius.api.nebius.billing.v1alpha1 import CalculatorServiceClient as AlphaClient
from nebius.api.nebius.billing.v1alpha1 import EstimateRequest as AlphaRequest
from nebius.api.nebius.billing.v1alpha1 import ResourceSpec as AlphaSpec
from nebius.api.nebius.common.v1 import GetOperationRequest, ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    AttachedDiskSpec,
    CreateDiskRequest,
    CreateFilesystemRequest,
    CreateInstanceRequest,
    DiskSpec,
    FilesystemSpec,
    FollowsSpotPriceSpec,
    InstanceSpec,
    ManagedDisk,
    PreemptibleSpec,
    ResourcesSpec,
)

from neocloud.services.billing.rules.price_list import default_price_list
from neocloud.services.compute.public import platforms
from tests.fast.services.billing.conftest import Bank, running_bank

shared = pytest.mark.asyncio(loop_scope="module")

Unit = FilterAggregationUnit.FilterAggregationUnitValue
HOUR = FilterAggregationUnit(filter_aggregation_unit_values=[Unit.FILTER_AGGREGATION_UNIT_HOUR])


@pytest_asyncio.fixture(scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bank]:
    """Run one bank for all tests here: estimates change nothing."""
    async with running_bank(tmp_path_factory.mktemp("bank")) as started:
        yield started


def instance(platform: str, preset: str, **spec: Any) -> CreateInstanceRequest:
    resources = ResourcesSpec(platform=platform, preset=preset)
    return CreateInstanceRequest(
        metadata=ResourceMetadata(name="thought"), spec=InstanceSpec(resources=resources, **spec)
    )


def packed(request: Any) -> Packed:
    name = request.get_descriptor().full_name
    return Packed(type_url=f"type.googleapis.com/{name}", value=request.SerializeToString())


async def estimate(bank: Bank, *requests: Any, **more: Any) -> EstimateBatchResponse:
    specs = [ResourceSpec(spec=packed(request)) for request in requests]
    request = EstimateBatchRequest(resource_specs=specs, **more)
    return await CalculatorServiceClient(bank.sdk).estimate_batch(request)


def sum_of(cost: Any) -> Any:
    """The total of a cost of a resource, or of all."""
    return cost.general.total


async def hourly(bank: Bank, *requests: Any) -> Decimal:
    answer = await estimate(bank, *requests, filter_aggregation_unit=HOUR)
    (total,) = answer.total_costs
    assert total.aggregation_unit.unit == "hour"
    return Decimal(sum_of(total).cost)


@pytest.mark.parametrize(
    ("platform", "preset", "price"),
    [
        ("gpu-h200-sxm", "8gpu-128vcpu-1600gb", "28.00"),
        ("gpu-h100-sxm", "1gpu-16vcpu-200gb", "2.95"),
        ("gpu-l40s-d", "2gpu-64vcpu-384gb", "4.5688"),
        ("cpu-d3", "8vcpu-32gb", "0.1984"),
    ],
)
@shared
async def test_published_nodes_cost_what_is_published(
    bank: Bank, platform: str, preset: str, price: str
) -> None:
    assert await hourly(bank, instance(platform, preset)) == Decimal(price)


@shared
async def test_every_preset_has_a_price_on_demand_and_preemptible(bank: Bank) -> None:
    """All but the GPU that only its owner can price."""
    for platform in platforms().values():
        if platform.name == "gpu-local":
            continue
        for name in platform.presets:
            on_demand = await hourly(bank, instance(platform.name, name))
            spot = {"preemptible": PreemptibleSpec(), "follows_spot_price": FollowsSpotPriceSpec()}
            preemptible = await hourly(bank, instance(platform.name, name, **spot))
            assert 0 < preemptible < on_demand, name


@shared
async def test_the_sum_is_broken_down_by_sku_and_resource(bank: Bank) -> None:
    answer = await estimate(bank, instance("cpu-d3", "4vcpu-16gb"), instance("cpu-d3", "8vcpu-32gb"))
    assert (answer.currency, len(answer.resource_costs)) == ("USD", 4)
    units = [total.aggregation_unit.unit for total in answer.total_costs]
    assert units == ["hour", "month"]
    total = sum_of(answer.total_costs[0])
    parts = {cost.sku_id: (cost.quantity, cost.cost) for cost in total.sku_costs}
    assert parts == {"cpu-d3.vcpu": ("12", "0.144"), "cpu-d3.ram": ("48", "0.1536")}
    assert (total.cost, total.cost_rounded) == ("0.2976", "0.30")
    assert sum_of(answer.total_costs[1]).cost == "217.248"
    assert answer.resource_costs[0].metadata.name == "thought"


@shared
async def test_disks_and_file_systems_cost_by_the_gib(bank: Bank) -> None:
    ssd = DiskSpec(size_gibibytes=100, type=DiskSpec.DiskType.NETWORK_SSD)
    disk = CreateDiskRequest(metadata=ResourceMetadata(), spec=ssd)
    shared = FilesystemSpec(size_gibibytes=100, type=FilesystemSpec.FilesystemType.NETWORK_SSD)
    filesystem = CreateFilesystemRequest(metadata=ResourceMetadata(), spec=shared)
    month = FilterAggregationUnit(filter_aggregation_unit_values=[Unit.FILTER_AGGREGATION_UNIT_MONTH])
    answer = await estimate(bank, disk, filesystem, filter_aggregation_unit=month)
    assert [sum_of(cost).cost for cost in answer.resource_costs] == ["7.1", "8"]
    boot = AttachedDiskSpec(managed_disk=ManagedDisk(name="boot", spec=ssd))
    with_disk = await hourly(bank, instance("cpu-d3", "4vcpu-16gb", boot_disk=boot))
    assert with_disk - Decimal("0.0992") == pytest.approx(Decimal("7.1") / 730, abs=Decimal("1e-9"))


@pytest.mark.parametrize(
    ("request_", "more", "told"),
    [
        (instance("cpu-d3", "3vcpu-1gb"), {}, "is not a preset of cpu-d3"),
        (instance("gpu-x", "1"), {}, "is not a platform"),
        (instance("gpu-local", "1gpu-2vcpu-8gb"), {}, "gpu-local.gpu, which has no price"),
        (GetOperationRequest(id="x"), {}, "GetOperationRequest, which has no price"),
        (instance("cpu-d3", "4vcpu-16gb"), {"currency": "eur"}, "this cloud charges USD"),
    ],
)
@shared
async def test_what_has_no_price_is_told(bank: Bank, request_: Any, more: Any, told: str) -> None:
    with pytest.raises(RequestError) as caught:
        await estimate(bank, request_, **more)
    assert caught.value.status.code.name == "INVALID_ARGUMENT"
    assert told in str(caught.value.status.message)


@shared
async def test_the_older_version_answers_the_same(bank: Bank) -> None:
    spec = AlphaSpec(compute_instance_spec=instance("cpu-d3", "8vcpu-32gb"))
    answer = await AlphaClient(bank.sdk).estimate(AlphaRequest(resource_spec=spec))
    assert sum_of(answer.hourly_cost).cost == "0.1984"
    assert sum_of(answer.monthly_cost).cost_rounded == "144.84"


def test_preemptible_prices_are_below_those_on_demand() -> None:
    skus = default_price_list().skus
    for name, sku in skus.items():
        if name.endswith(".preemptible"):
            assert sku.prices[-1].amount < skus[name.removesuffix(".preemptible")].prices[-1].amount
