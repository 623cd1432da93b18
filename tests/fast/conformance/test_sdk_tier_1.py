"""The official SDK on every RPC that SkyPilot, dstack and VM recipes need (IAC-01, CMP-01, VPC-01, IAM-01).

Once in plain text and once over TLS under the cloud's own authority, on the emulator: what is tried here is
the API, not the machines. The last test counts: no RPC of the list may be left out.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from nebius.aio.service_error import RequestError
from nebius.api.google.protobuf import Any as AnyMessage
from nebius.api.nebius.billing.v1 import (
    ComputeInstanceSpec,
    ComputeInstanceSpecV1,
    FilterAggregationUnit,
    MaxPriceV1,
    PricingMethod,
    PricingPolicySpec,
    ResourceSpec,
)
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    AttachedDiskSpec,
    CreateInstanceRequest,
    DiskSpec,
    FilesystemSpec,
    GpuClusterSpec,
    ImageSpec,
    InstanceSpec,
    InstanceStatus,
    IPAddress,
    ManagedDisk,
    NetworkInterfaceSpec,
    PublicIPAddress,
    ResourcesSpec,
    SourceImageFamily,
)
from nebius.api.nebius.iam.v1 import (
    Account,
    AuthPublicKeySpec,
    GroupMembershipSpec,
    GroupSpec,
    ServiceAccountSpec,
)
from nebius.api.nebius.vpc.v1 import (
    AllocationSpec,
    IPv4PrivateAllocationSpec,
    IPv4PrivateNetworkPools,
    IPv4PrivateSubnetPools,
    IpVersion,
    IpVisibility,
    NetworkPool,
    NetworkSpec,
    PoolCidr,
    PoolSpec,
    RuleAccessAction,
    RuleIngress,
    RuleProtocol,
    SecurityGroupSpec,
    SecurityRuleSpec,
    SubnetCidr,
    SubnetPool,
    SubnetSpec,
)
from nebius.sdk import SDK

from neocloud.core import contract
from neocloud.testing.emulator import Emulator, emulator
from tests.fast.conformance.sdk import SdkCalls

COMPUTE, VPC, IAM = "nebius.compute.v1", "nebius.vpc.v1", "nebius.iam.v1"
TIER_1 = (
    "nebius.common.v1.OperationService",
    "nebius.billing.v1.CalculatorService",
    "nebius.billing.v1.PricingPolicyService",
    f"{COMPUTE}.DiskService",
    f"{COMPUTE}.FilesystemService",
    f"{COMPUTE}.GpuClusterService",
    f"{COMPUTE}.ImageService",
    f"{COMPUTE}.InstanceService",
    f"{COMPUTE}.PlatformService",
    f"{IAM}.ProfileService",
    f"{IAM}.TenantService",
    f"{IAM}.ProjectService",
    f"{IAM}.ServiceAccountService",
    f"{IAM}.AuthPublicKeyService",
    f"{IAM}.GroupService",
    f"{IAM}.GroupMembershipService",
    f"{VPC}.NetworkService",
    f"{VPC}.SubnetService",
    f"{VPC}.SecurityGroupService",
    f"{VPC}.SecurityRuleService",
    f"{VPC}.AllocationService",
)
PUBLIC_KEY = """-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA2Cde35OzAslZgJKbCdFM
IExAFYixDxTGLmYt2xMk5OGSvARPwh1VL1nIgz6oTPbF+bWYU8UuxYc1o8cz4tmD
IKhVmsOLiDbuc9/VViI/awG+ZkIMTJ08pzwoggX03+BiPsszwPwbP7WqQRFtyH/E
t4M+66sOSzekomAZjW/pGHJAmcQVC9ig7T+CdgzA7LMi5HdBlw8FlGziGHGMFtK+
Kwo1L7IoE88DD6HSHy6xRkLIfrFqPdJEXgECKprdixc69bNcpgwJFTSbIuDNyr8s
uYGAHa116+U/lY8uV5fBmaRqXSAtJR12Y5NUlwpRkZ2uX7CkwCNiUeguYNph4Mjs
KQIDAQAB
-----END PUBLIC KEY-----"""
LEFT_OUT = {
    f"{COMPUTE}.InstanceService/ListInstancesByNVLInstanceGroup": "there are no NVLink groups here",
}


@dataclass(frozen=True)
class Noun:
    """One kind and how to make one: its service, and its spec in a given project."""

    service: str
    spec: Callable[["World"], Any]
    parent: Callable[["World"], str] = lambda world: world.project_id


@dataclass(frozen=True)
class World:
    """The initial content of the emulator."""

    api: SdkCalls
    project_id: str
    tenant_id: str
    network_id: str
    subnet_id: str
    group_id: str
    """Of the default security group."""


def disk_spec(world: World) -> DiskSpec:
    return DiskSpec(
        size_gibibytes=10,
        type=DiskSpec.DiskType.NETWORK_SSD,
        source_image_family=SourceImageFamily(image_family="ubuntu24.04-driverless"),
    )


def instance_spec(world: World) -> InstanceSpec:
    return InstanceSpec(
        resources=ResourcesSpec(platform="cpu-d3", preset="4vcpu-16gb"),
        boot_disk=AttachedDiskSpec(
            attach_mode=AttachedDiskSpec.AttachMode.READ_WRITE,
            managed_disk=ManagedDisk(name="boot", spec=disk_spec(world)),
        ),
        network_interfaces=[
            NetworkInterfaceSpec(
                name="eth0",
                subnet_id=world.subnet_id,
                ip_address=IPAddress(),
                public_ip_address=PublicIPAddress(),
            )
        ],
        cloud_init_user_data="users:\n  - name: ubuntu\n",
    )


def filesystem_spec(world: World) -> FilesystemSpec:
    return FilesystemSpec(size_gibibytes=10, type=FilesystemSpec.FilesystemType.NETWORK_SSD)


def rule_spec(world: World) -> SecurityRuleSpec:
    return SecurityRuleSpec(
        access=RuleAccessAction.ALLOW,
        protocol=RuleProtocol.TCP,
        ingress=RuleIngress(source_cidrs=["0.0.0.0/0"], destination_ports=[22]),
    )


def allocation_spec(world: World) -> AllocationSpec:
    return AllocationSpec(ipv4_private=IPv4PrivateAllocationSpec(subnet_id=world.subnet_id))


def policy_spec(world: World) -> PricingPolicySpec:
    return PricingPolicySpec(
        compute_instance_spec=ComputeInstanceSpec(v1=ComputeInstanceSpecV1(platform="gpu-h100-sxm")),
        pricing=PricingMethod(max_price_v1=MaxPriceV1(max_price="2.125")),
    )


NOUNS = (
    Noun("nebius.billing.v1.PricingPolicyService", policy_spec),
    Noun(f"{COMPUTE}.DiskService", disk_spec),
    Noun(f"{COMPUTE}.FilesystemService", filesystem_spec),
    Noun(
        f"{COMPUTE}.GpuClusterService",
        lambda world: GpuClusterSpec(infiniband_fabric="fabric-1"),
    ),
    Noun(f"{COMPUTE}.InstanceService", instance_spec),
    Noun(f"{IAM}.ServiceAccountService", lambda world: ServiceAccountSpec()),
    Noun(f"{IAM}.GroupService", lambda world: GroupSpec(), parent=lambda world: world.tenant_id),
    Noun(f"{VPC}.NetworkService", lambda world: NetworkSpec()),
    Noun(
        f"{VPC}.SecurityGroupService",
        lambda world: SecurityGroupSpec(network_id=world.network_id),
    ),
    Noun(f"{VPC}.SecurityRuleService", rule_spec, parent=lambda world: world.group_id),
    Noun(f"{VPC}.AllocationService", allocation_spec),
)


@pytest.fixture(scope="module", params=["plain text", "TLS"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def cloud(transport: str) -> Iterator[Emulator]:
    with emulator(tls=transport == "TLS") as running:
        yield running


@pytest.fixture(scope="module")
def answered() -> set[str]:
    return set()


@pytest.fixture
async def world(cloud: Emulator, transport: str, answered: set[str]) -> AsyncIterator[World]:
    sdk = cloud.sdk() if transport == "plain text" else sdk_over_tls(cloud)
    api = SdkCalls(sdk)
    api.answered = answered
    try:
        subnet = (await api(f"{VPC}.SubnetService/List", parent_id=cloud.project_id)).items[0]
        network_id = subnet.spec.network_id
        network = await api(f"{VPC}.NetworkService/Get", id=network_id)
        groups = (await api(f"{VPC}.SecurityGroupService/List", parent_id=cloud.project_id)).items
        default = next(group for group in groups if group.status.default)
        assert network.metadata.name.startswith("default-network")
        yield World(
            api, cloud.project_id, cloud.tenant_id, network_id, subnet.metadata.id, default.metadata.id
        )
    finally:
        await sdk.close()


def sdk_over_tls(cloud: Emulator) -> SDK:
    authority = (cloud.home / "tls" / "ca.pem").read_bytes()
    return SDK(
        domain=f"api.localhost:{cloud.tls_endpoint.rpartition(':')[2]}",
        tls_credentials=grpc.ssl_channel_credentials(authority),
        credentials_file_name=str(cloud.credentials_file),
        user_agent_prefix="tests/1.0",
    )


async def refused(call: Any) -> str:
    """The name of the code that a call ends with."""
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.status.code.name


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.service.rpartition(".")[2])
async def test_a_resource_lives_from_create_to_delete(noun: Noun, world: World) -> None:
    api, parent = world.api, noun.parent(world)
    metadata = ResourceMetadata(parent_id=parent, name="tier-1", labels={"team": "bank"})
    created = await api(f"{noun.service}/Create", metadata=metadata, spec=noun.spec(world))
    found = await api(f"{noun.service}/Get", id=created.resource_id)
    assert (found.metadata.name, found.metadata.labels) == ("tier-1", {"team": "bank"})
    by_name = await api(f"{noun.service}/GetByName", parent_id=parent, name="tier-1")
    assert by_name.metadata.id == created.resource_id
    listed = await api(f"{noun.service}/List", parent_id=parent)
    assert created.resource_id in {item.metadata.id for item in listed.items}
    found.metadata.labels["cost-centre"] = "risk"
    await api(f"{noun.service}/Update", metadata=found.metadata, spec=found.spec)
    updated = await api(f"{noun.service}/Get", id=created.resource_id)
    assert updated.metadata.labels == {"team": "bank", "cost-centre": "risk"}
    if f"{noun.service}/ListOperationsByParent" in contract.methods():
        done = await api(f"{noun.service}/ListOperationsByParent", parent_id=parent)
        assert created.id in {operation.id for operation in done.operations}
    await api(f"{noun.service}/Delete", id=created.resource_id)
    assert await refused(api(f"{noun.service}/Get", id=created.resource_id)) == "NOT_FOUND"


async def test_a_machine_is_stopped_started_and_read_in_batches(world: World) -> None:
    api, service = world.api, f"{COMPUTE}.InstanceService"
    metadata = ResourceMetadata(parent_id=world.project_id, name="power")
    instance_id = (await api(f"{service}/Create", metadata=metadata, spec=instance_spec(world))).resource_id
    states = InstanceStatus.InstanceState
    started = await api(f"{service}/Get", id=instance_id)
    assert started.status.state == states.RUNNING
    (interface,) = started.status.network_interfaces
    shown = (interface.ip_address.address, interface.public_ip_address.address)
    assert all(address.endswith("/32") for address in shown)
    await api(f"{service}/Stop", id=instance_id)
    assert (await api(f"{service}/Get", id=instance_id)).status.state == states.STOPPED
    await api(f"{service}/Start", id=instance_id)
    again = (await api(f"{service}/BatchGet", instance_ids=[instance_id])).items[instance_id].instance
    assert again.status.state == states.RUNNING
    assert again.status.network_interfaces[0].ip_address.address == interface.ip_address.address
    operations = await api("nebius.common.v1.OperationService/List", resource_id=instance_id)
    newest = await api("nebius.common.v1.OperationService/Get", id=operations.operations[0].id)
    assert newest.resource_id == instance_id
    await api(f"{service}/Delete", id=instance_id)


async def test_images_are_found_by_family_and_made_from_disks(world: World) -> None:
    api, service = world.api, f"{COMPUTE}.ImageService"
    public = (await api(f"{service}/ListPublic", region="eu-north1")).items
    families = {image.spec.image_family for image in public}
    assert {"ubuntu24.04-driverless", "ubuntu24.04-cuda13.0", "ubuntu22.04-cuda12"} <= families
    latest = await api(f"{service}/GetLatestByFamily", image_family="ubuntu24.04-driverless")
    assert latest.metadata.id.startswith("computeimage-")
    metadata = ResourceMetadata(parent_id=world.project_id, name="source")
    disk = await api(f"{COMPUTE}.DiskService/Create", metadata=metadata, spec=disk_spec(world))
    spec = ImageSpec(image_family="mine", source_disk_id=disk.resource_id)
    metadata = ResourceMetadata(parent_id=world.project_id, name="mine")
    image = await api(f"{service}/Create", metadata=metadata, spec=spec)
    found = await api(f"{service}/GetByName", parent_id=world.project_id, name="mine")
    assert found.metadata.id == image.resource_id
    found.metadata.labels["kept"] = "yes"
    await api(f"{service}/Update", metadata=found.metadata, spec=found.spec)
    assert (await api(f"{service}/Get", id=image.resource_id)).metadata.labels == {"kept": "yes"}
    listed = await api(f"{service}/List", parent_id=world.project_id)
    assert [item.metadata.name for item in listed.items] == ["mine"]
    assert (await api(f"{service}/ListOperationsByParent", parent_id=world.project_id)).operations
    await api(f"{service}/Delete", id=image.resource_id)
    await api(f"{COMPUTE}.DiskService/Delete", id=disk.resource_id)


async def test_subnets_of_a_network_with_a_pool_of_its_own(world: World) -> None:
    api, service = world.api, f"{VPC}.SubnetService"
    metadata = ResourceMetadata(parent_id=world.project_id, name="office")
    pool_spec = PoolSpec(
        version=IpVersion.IPV4, visibility=IpVisibility.PRIVATE, cidrs=[PoolCidr(cidr="10.77.0.0/16")]
    )
    pool_id = (await api(f"{VPC}.PoolService/Create", metadata=metadata, spec=pool_spec)).resource_id
    network_spec = NetworkSpec(ipv4_private_pools=IPv4PrivateNetworkPools(pools=[NetworkPool(id=pool_id)]))
    network = await api(f"{VPC}.NetworkService/Create", metadata=metadata, spec=network_spec)
    cidrs = SubnetPool(cidrs=[SubnetCidr(cidr="10.77.1.0/24")])
    spec = SubnetSpec(
        network_id=network.resource_id,
        ipv4_private_pools=IPv4PrivateSubnetPools(use_network_pools=False, pools=[cidrs]),
    )
    created = await api(f"{service}/Create", metadata=metadata, spec=spec)
    subnet = await api(f"{service}/GetByName", parent_id=world.project_id, name="office")
    assert subnet.status.ipv4_private_cidrs == ["10.77.1.0/24"]
    subnet.metadata.labels["floor"] = "2"
    await api(f"{service}/Update", metadata=subnet.metadata, spec=subnet.spec)
    assert (await api(f"{service}/Get", id=created.resource_id)).metadata.labels == {"floor": "2"}
    by_network = await api(f"{service}/ListByNetwork", network_id=network.resource_id)
    aggregated = await api(f"{service}/ListAggregated", parent_id=world.project_id)
    for listed in (by_network, aggregated):
        assert created.resource_id in {item.metadata.id for item in listed.items}
    await api(f"{service}/Delete", id=created.resource_id)
    await api(f"{VPC}.NetworkService/Delete", id=network.resource_id)
    await api(f"{VPC}.PoolService/Delete", id=pool_id)


async def test_networks_groups_and_addresses_are_listed_from_every_side(world: World) -> None:
    api = world.api
    metadata = ResourceMetadata(parent_id=world.project_id, name="second-default")
    network = await api(f"{VPC}.NetworkService/CreateDefault", metadata=metadata)
    found = await api(f"{VPC}.NetworkService/ListAggregated", parent_id=world.project_id)
    assert network.resource_id in {item.metadata.id for item in found.items}
    metadata = ResourceMetadata(parent_id=world.project_id, name="seen")
    created = await api(f"{VPC}.AllocationService/Create", metadata=metadata, spec=allocation_spec(world))
    allocation = await api(f"{VPC}.AllocationService/Get", id=created.resource_id)
    pool_id = allocation.status.details.pool_id
    for path, key in (
        ("AllocationService/ListAggregated", {"parent_id": world.project_id}),
        ("AllocationService/ListBySubnet", {"subnet_id": world.subnet_id}),
        ("AllocationService/ListByPool", {"pool_id": pool_id}),
    ):
        listed = await api(f"{VPC}.{path}", **key)
        assert created.resource_id in {item.metadata.id for item in listed.items}, path
    await api(f"{VPC}.AllocationService/Delete", id=created.resource_id)
    for path, key in (
        ("SecurityGroupService/ListAggregated", {"parent_id": world.project_id}),
        ("SecurityGroupService/ListByNetwork", {"network_id": world.network_id}),
    ):
        listed = await api(f"{VPC}.{path}", **key)
        assert world.group_id in {item.metadata.id for item in listed.items}, path


async def test_people_and_projects(world: World) -> None:
    api = world.api
    profile = await api(f"{IAM}.ProfileService/Get")
    own_id = profile.service_account_profile.info.metadata.id
    (tenant,) = (await api(f"{IAM}.TenantService/List")).items
    assert (await api(f"{IAM}.TenantService/Get", id=tenant.metadata.id)).metadata.name
    metadata = ResourceMetadata(parent_id=world.tenant_id, name="risk")
    project_id = (await api(f"{IAM}.ProjectService/Create", metadata=metadata)).resource_id
    project = await api(f"{IAM}.ProjectService/GetByName", parent_id=world.tenant_id, name="risk")
    assert project.metadata.id == project_id
    project.metadata.labels["team"] = "risk"
    await api(f"{IAM}.ProjectService/Update", metadata=project.metadata)
    assert (await api(f"{IAM}.ProjectService/Get", id=project_id)).metadata.labels == {"team": "risk"}
    listed = await api(f"{IAM}.ProjectService/List", parent_id=world.tenant_id)
    assert {project_id, world.project_id} <= {item.metadata.id for item in listed.items}
    await group_memberships(world, own_id)
    # The operator's own account lies in the tenant, every other in a project; keys lie beside their account.
    await public_keys(world, own_id, world.tenant_id)
    metadata = ResourceMetadata(parent_id=world.project_id, name="robot")
    robot = await api(f"{IAM}.ServiceAccountService/Create", metadata=metadata, spec=ServiceAccountSpec())
    await public_keys(world, robot.resource_id, world.project_id)


async def group_memberships(world: World, account_id: str) -> None:
    api, service = world.api, f"{IAM}.GroupMembershipService"
    editors = await api(f"{IAM}.GroupService/GetByName", parent_id=world.tenant_id, name="editors")
    metadata = ResourceMetadata(parent_id=editors.metadata.id)
    created = await api(
        f"{service}/Create", metadata=metadata, spec=GroupMembershipSpec(member_id=account_id)
    )
    for verb in ("Get", "GetWithAttributes"):
        assert await api(f"{service}/{verb}", id=created.resource_id)
    for verb in ("ListMembers", "ListMembersWithAttributes"):
        assert (await api(f"{service}/{verb}", parent_id=editors.metadata.id)).memberships
    groups = (await api(f"{service}/ListMemberOf", subject_id=account_id)).items
    assert editors.metadata.id in {group.metadata.id for group in groups}
    await api(f"{service}/Delete", id=created.resource_id)


async def public_keys(world: World, account_id: str, parent_id: str) -> None:
    api, service = world.api, f"{IAM}.AuthPublicKeyService"
    account = Account(service_account=Account.ServiceAccount(id=account_id))
    spec = AuthPublicKeySpec(account=account, data=PUBLIC_KEY)
    metadata = ResourceMetadata(parent_id=parent_id)
    key_id = (await api(f"{service}/Create", metadata=metadata, spec=spec)).resource_id
    of_account = (await api(f"{service}/ListByAccount", account=account)).items
    assert key_id in {key.metadata.id for key in of_account}
    assert key_id in {key.metadata.id for key in (await api(f"{service}/List", parent_id=parent_id)).items}
    await api(f"{service}/Deactivate", id=key_id)
    key = await api(f"{service}/Get", id=key_id)
    assert key.status.state.name == "INACTIVE"
    await api(f"{service}/Activate", id=key_id)
    key.metadata.labels["used-by"] = "tests"
    await api(f"{service}/Update", metadata=key.metadata, spec=key.spec)
    await api(f"{service}/Delete", id=key_id)


async def test_what_a_machine_costs_is_told_as_skypilot_asks(world: World) -> None:
    spec = InstanceSpec(resources=ResourcesSpec(platform="cpu-d3", preset="4vcpu-16gb"))
    request = CreateInstanceRequest(metadata=ResourceMetadata(parent_id=world.project_id), spec=spec)
    name = f"type.googleapis.com/{COMPUTE}.CreateInstanceRequest"
    packed = AnyMessage(type_url=name, value=request.SerializeToString())
    unit = FilterAggregationUnit.FilterAggregationUnitValue.FILTER_AGGREGATION_UNIT_HOUR
    answer = await world.api(
        "nebius.billing.v1.CalculatorService/EstimateBatch",
        resource_specs=[ResourceSpec(spec=packed)],
        filter_aggregation_unit=FilterAggregationUnit(filter_aggregation_unit_values=[unit]),
    )
    (total,) = answer.total_costs
    assert total.aggregation_unit.unit == "hour"
    assert float(total.general.total.cost) > 0


async def test_platforms_and_their_presets(world: World) -> None:
    api, service = world.api, f"{COMPUTE}.PlatformService"
    listed = (await api(f"{service}/List", parent_id=world.project_id, page_size=999)).items
    names = {platform.metadata.name for platform in listed}
    assert {"gpu-h200-sxm", "gpu-h100-sxm", "gpu-l40s-d", "cpu-d3"} <= names
    found = await api(f"{service}/GetByName", parent_id=world.project_id, name="cpu-d3")
    assert "4vcpu-16gb" in {preset.name for preset in found.spec.presets}


def test_nothing_of_tier_1_was_left_out(answered: set[str]) -> None:
    """Comes last: it counts what the tests above were answered."""
    wanted = {rpc.path for service in TIER_1 for rpc in contract.services()[service]}
    assert wanted - answered == set(LEFT_OUT)
