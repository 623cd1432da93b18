"""The verbs that SkyPilot and dstack use, through the official client (api-contract sections 4.1 and 4.2)."""

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.vpc.v1 import (
    AllocationServiceClient,
    AllocationSpec,
    AllocationStatus,
    CreateAllocationRequest,
    CreateSecurityGroupRequest,
    CreateSecurityRuleRequest,
    CreateSubnetRequest,
    DeleteSecurityGroupRequest,
    DeleteSecurityRuleRequest,
    DeleteSubnetRequest,
    GetAllocationRequest,
    GetSecurityGroupByNameRequest,
    GetSubnetRequest,
    IPv4PrivateAllocationSpec,
    IPv4PrivateSubnetPools,
    ListSecurityRulesRequest,
    ListSubnetsRequest,
    RuleAccessAction,
    RuleEgress,
    RuleIngress,
    RuleProtocol,
    SecurityGroupServiceClient,
    SecurityGroupSpec,
    SecurityRuleServiceClient,
    SecurityRuleSpec,
    SubnetCidr,
    SubnetPool,
    SubnetServiceClient,
    SubnetSpec,
    SubnetStatus,
    UpdateSubnetRequest,
)
from nebius.sdk import SDK

from tests.fast.services.vpc.conftest import Cloud


async def test_both_find_the_subnet_to_put_machines_into(cloud: Cloud, sdk: SDK) -> None:
    subnets = SubnetServiceClient(sdk)
    listed = await subnets.list(ListSubnetsRequest(parent_id=cloud.bank.project_id))
    [subnet] = [item for item in listed.items if item.metadata.name.startswith("default-subnet")]
    found = await subnets.get(GetSubnetRequest(id=subnet.metadata.id))
    assert found.spec.network_id.startswith("vpcnetwork-")
    assert found.status.state == SubnetStatus.State.READY
    assert found.status.ipv4_private_pools[0].cidrs


async def test_the_security_group_of_a_skypilot_cluster(cloud: Cloud, sdk: SDK, network_id: str) -> None:
    """Made if it is not there, filled with four rules; goes only when they are gone."""
    groups, rules = SecurityGroupServiceClient(sdk), SecurityRuleServiceClient(sdk)
    project_id, name = cloud.bank.project_id, "sky-sg-lab"
    with pytest.raises(RequestError) as absent:
        await groups.get_by_name(GetSecurityGroupByNameRequest(parent_id=project_id, name=name))
    assert absent.value.status.code.name == "NOT_FOUND"
    made = await groups.create(
        CreateSecurityGroupRequest(
            metadata=ResourceMetadata(parent_id=project_id, name=name),
            spec=SecurityGroupSpec(network_id=network_id),
        )
    )
    group_id = made.resource_id
    assert made.done() and group_id
    assert not (await rules.list(ListSecurityRulesRequest(parent_id=group_id))).items
    allow, any_protocol, tcp = RuleAccessAction.ALLOW, RuleProtocol.ANY, RuleProtocol.TCP
    anywhere = ["0.0.0.0/0"]
    for rule_name, spec in {
        "self": SecurityRuleSpec(
            access=allow, protocol=any_protocol, ingress=RuleIngress(source_security_group_id=group_id)
        ),
        "ssh": SecurityRuleSpec(
            access=allow, protocol=tcp, ingress=RuleIngress(source_cidrs=anywhere, destination_ports=[22])
        ),
        "ssh-docker": SecurityRuleSpec(
            access=allow, protocol=tcp, ingress=RuleIngress(source_cidrs=anywhere, destination_ports=[10022])
        ),
        "egress": SecurityRuleSpec(
            access=allow, protocol=any_protocol, egress=RuleEgress(destination_cidrs=anywhere)
        ),
    }.items():
        metadata = ResourceMetadata(parent_id=group_id, name=rule_name)
        operation = await rules.create(CreateSecurityRuleRequest(metadata=metadata, spec=spec))
        assert operation.done()
    with pytest.raises(RequestError) as held:
        await groups.delete(DeleteSecurityGroupRequest(id=group_id))
    assert held.value.status.code.name == "FAILED_PRECONDITION"
    for item in (await rules.list(ListSecurityRulesRequest(parent_id=group_id))).items:
        await rules.delete(DeleteSecurityRuleRequest(id=item.metadata.id))
    assert not (await rules.list(ListSecurityRulesRequest(parent_id=group_id))).items
    assert (await groups.delete(DeleteSecurityGroupRequest(id=group_id))).done()


async def test_a_subnet_and_an_address_from_create_to_delete(cloud: Cloud, sdk: SDK, network_id: str) -> None:
    """A label is changed the way the client does it: with a mask of everything that is not set."""
    subnets, allocations = SubnetServiceClient(sdk), AllocationServiceClient(sdk)
    pools = IPv4PrivateSubnetPools(pools=[SubnetPool(cidrs=[SubnetCidr(cidr="10.128.200.0/24")])])
    spec = SubnetSpec(network_id=network_id, ipv4_private_pools=pools)
    metadata = ResourceMetadata(parent_id=cloud.bank.project_id, name="workers")
    subnet_id = (await subnets.create(CreateSubnetRequest(metadata=metadata, spec=spec))).resource_id
    found = await subnets.get(GetSubnetRequest(id=subnet_id))
    assert list(found.status.ipv4_private_cidrs) == ["10.128.200.0/24"]
    labelled = ResourceMetadata(id=subnet_id, parent_id=cloud.bank.project_id, labels={"team": "risk"})
    await subnets.update(UpdateSubnetRequest(metadata=labelled, spec=found.spec))
    after = await subnets.get(GetSubnetRequest(id=subnet_id))
    assert after.metadata.labels == {"team": "risk"} and after.metadata.name == "workers"
    assert list(after.status.ipv4_private_cidrs) == ["10.128.200.0/24"]
    address_id = (
        await allocations.create(
            CreateAllocationRequest(
                metadata=ResourceMetadata(parent_id=cloud.bank.project_id, name="head"),
                spec=AllocationSpec(ipv4_private=IPv4PrivateAllocationSpec(subnet_id=subnet_id)),
            )
        )
    ).resource_id
    address = await allocations.get(GetAllocationRequest(id=address_id))
    assert address.status.state == AllocationStatus.State.ALLOCATED
    assert address.status.details.allocated_cidr.startswith("10.128.200.")
    with pytest.raises(RequestError) as held:
        await subnets.delete(DeleteSubnetRequest(id=subnet_id))
    assert held.value.status.code.name == "FAILED_PRECONDITION"


async def test_a_full_subnet_is_not_retried(cloud: Cloud, sdk: SDK, network_id: str) -> None:
    subnets, allocations = SubnetServiceClient(sdk), AllocationServiceClient(sdk)
    pools = IPv4PrivateSubnetPools(pools=[SubnetPool(cidrs=[SubnetCidr(cidr="10.128.200.0/29")])])
    metadata = ResourceMetadata(parent_id=cloud.bank.project_id, name="tiny")
    spec = SubnetSpec(network_id=network_id, ipv4_private_pools=pools)
    subnet_id = (await subnets.create(CreateSubnetRequest(metadata=metadata, spec=spec))).resource_id

    async def take(number: int) -> None:
        await allocations.create(
            CreateAllocationRequest(
                metadata=ResourceMetadata(parent_id=cloud.bank.project_id, name=f"ip{number}"),
                spec=AllocationSpec(ipv4_private=IPv4PrivateAllocationSpec(subnet_id=subnet_id)),
            )
        )

    for number in range(5):
        await take(number)
    with pytest.raises(RequestError) as full:
        await take(5)
    status = full.value.status
    assert status.code.name == "RESOURCE_EXHAUSTED"
    assert [error.retry_type.name for error in status.service_errors] == ["NOTHING"]
