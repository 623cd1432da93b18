"""The initial resources of a project, as clients look for them (VPC-01, api-contract sections 4 and 6.5)."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from neocloud.messages.nebius.vpc.v1 import SubnetStatus

from neocloud.core.clock import SystemClock
from neocloud.core.service import backfill_defaults
from neocloud.core.store import open_store
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.services.vpc import SERVICE
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.defaults import create_project_defaults
from neocloud.services.vpc.rules.lookup import OWN_RANGE
from neocloud.settings.settings import Settings
from tests.fast.services.vpc.conftest import SETTINGS, Cloud


async def test_a_project_has_a_network_with_a_subnet_and_all_they_need(cloud: Cloud, network_id: str) -> None:
    network, subnet = await cloud.only("Network"), await cloud.only("Subnet")
    assert network["metadata"]["name"] == "default-network"
    assert subnet["metadata"]["name"].startswith("default-subnet")
    assert subnet["spec"]["networkId"] == network_id
    assert subnet["status"]["state"] == "READY"
    assert subnet["status"]["ipv4PrivateCidrs"] == ["10.128.0.0/17"]
    table = await cloud.only("RouteTable")
    assert subnet["status"]["routeTable"] == {"id": table["metadata"]["id"], "default": True}
    assert table["status"]["assignment"]["subnets"] == [subnet["metadata"]["id"]]
    pools = (await cloud.call("PoolService/List", {"parentId": cloud.bank.project_id})).body["items"]
    assert {pool["spec"]["visibility"] for pool in pools} == {"PRIVATE", "PUBLIC"}
    assert all(pool["status"]["assignment"]["networks"] == [network_id] for pool in pools)
    assert subnet["status"]["ipv4PublicCidrs"] == ["198.18.0.0/16"]


@pytest.mark.parametrize("chosen", ["192.168.1.1", "198.17.255.255", "198.18.0.0/15", "0.0.0.0/0"])
async def test_nobody_gets_a_public_address_outside_of_the_clouds_range(
    cloud: Cloud, subnet_id: str, chosen: str
) -> None:
    """Other machines may find it by ARP: it could be the router of the operator's network."""
    allocation = {"ipv4Public": {"subnetId": subnet_id, "cidr": chosen}}
    pools = (await cloud.call("PoolService/List", {"parentId": cloud.bank.project_id})).body["items"]
    [public] = [each["metadata"]["id"] for each in pools if each["spec"]["visibility"] == "PUBLIC"]
    pool = {"version": "IPV4", "visibility": "PUBLIC", "cidrs": [{"cidr": chosen}]}
    answers = [
        await cloud.create("Allocation", "mine", allocation),
        await cloud.create("Allocation", "mine", {"ipv4Public": {"poolId": public, "cidr": chosen}}),
        await cloud.create("Pool", "mine", pool),
        await cloud.create("Pool", "mine", {**pool, "sourcePoolId": public}),
        await cloud.update("Pool", public, pool),
    ]
    assert [answer.code for answer in answers] == ["invalid_argument"] * len(answers)


async def test_the_default_group_lets_members_out_and_ping_and_ssh_in(cloud: Cloud) -> None:
    group = await cloud.only("SecurityGroup")
    assert group["status"] == {"state": "READY", "default": True}
    group_id = group["metadata"]["id"]
    rules = (await cloud.call("SecurityRuleService/List", {"parentId": group_id})).body["items"]
    found = {rule["metadata"]["name"]: rule["spec"] for rule in rules}
    assert found["members"]["ingress"] == {"sourceSecurityGroupId": group_id}
    assert found["ssh"]["ingress"] == {"sourceCidrs": ["0.0.0.0/0"], "destinationPorts": [22]}
    assert found["ping"]["protocol"] == "ICMP"
    assert found["egress"]["egress"] == {"destinationCidrs": ["0.0.0.0/0"]}


async def test_the_engine_gets_the_network_whole(cloud: Cloud, network_id: str, subnet_id: str) -> None:
    async def is_applied() -> bool:
        return cloud.applied(network_id) is not None

    await cloud.until(is_applied)
    found = cloud.applied(network_id)
    assert found is not None
    [subnet], [group] = found.subnets, found.groups
    assert (subnet.name, str(subnet.gateway)) == (subnet_id, "10.128.0.1")
    assert [(str(route.destination), route.next_hop) for route in subnet.routes] == [("0.0.0.0/0", None)]
    assert len(group.rules) == 4
    assert found.domain == "default-network.internal"


async def test_projects_of_all_tenants_have_ranges_of_their_own(cloud: Cloud) -> None:
    other = await cloud.call("SubnetService/List", {"parentId": cloud.other.project_id}, of=cloud.other)
    [subnet] = other.body["items"]
    assert subnet["status"]["ipv4PrivateCidrs"] == ["10.129.0.0/17"]


async def test_a_new_project_gets_the_same_at_once(cloud: Cloud) -> None:
    body = {"metadata": {"parentId": cloud.bank.tenant_id, "name": "risk"}, "spec": {}}
    made = await cloud.call("ProjectService/Create", body, api="nebius.iam.v1")
    assert made.status == 200, made
    subnet = await cloud.only("Subnet", made.body["resourceId"])
    assert subnet["status"]["ipv4PrivateCidrs"] == ["10.130.0.0/17"]


async def test_what_a_user_deleted_stays_deleted(cloud: Cloud, network_id: str, subnet_id: str) -> None:
    assert (await cloud.delete("Subnet", subnet_id)).status == 200
    assert (await cloud.delete("Network", network_id)).status == 200
    await cloud.until(lambda: cloud.is_gone(network_id))
    assert cloud.applied(network_id) is None
    for kind in ("RouteTable", "SecurityGroup"):
        listed = await cloud.call(f"{kind}Service/List", {"parentId": cloud.bank.project_id})
        assert listed.body.get("items", []) == []
    clock_now = (await cloud.row(cloud.bank.project_id)).created_at  # type: ignore[union-attr]
    await backfill_defaults(cloud.store, [SERVICE], clock_now, SETTINGS)
    listed = await cloud.call("NetworkService/List", {"parentId": cloud.bank.project_id})
    assert listed.body.get("items", []) == []
    assert await cloud.store.read(lambda tx: list(tx.reservations("vpc/subnet-blocks"))) == ["10.129.0.0/17"]


async def test_a_default_network_can_be_made_again(cloud: Cloud, network_id: str, subnet_id: str) -> None:
    body = {"metadata": {"parentId": cloud.bank.project_id, "name": "second"}}
    made = await cloud.call("NetworkService/CreateDefault", body)
    assert made.status == 200, made
    await cloud.until(lambda: cloud.is_done(made.body["id"]))
    network = await cloud.get("Network", made.body["resourceId"])
    assert (network["metadata"]["name"], network["status"]["state"]) == ("second", "READY")
    by_network = await cloud.call("SubnetService/ListByNetwork", {"networkId": network["metadata"]["id"]})
    [subnet] = by_network.body["items"]
    assert subnet["metadata"]["name"].startswith("default-subnet")
    taken = await cloud.call("NetworkService/CreateDefault", body)
    assert taken.code == "already_exists"


async def test_a_project_gets_ranges_of_its_cloud_which_no_project_holds() -> None:
    now = datetime(2026, 11, 1, tzinfo=UTC)
    kind = "nebius.iam.v1.Container"
    project = Resource(
        id="project-e00a", kind=kind, parent_id="tenant-e00a", name="a", created_at=now, updated_at=now
    )
    settings = Settings(home=Path("/nowhere"), private_range="10.144.0.0/13", public_pool="198.19.16.0/20")

    def ranges(tx: Transaction) -> list[object]:
        create_project_defaults(tx, project, now, settings)
        [subnet] = tx.list(vpc.SUBNET, parent_id=project.id)[0]
        status = SubnetStatus.FromString(subnet.status)
        return [*status.ipv4_private_cidrs, *status.ipv4_public_cidrs, *tx.reservations(OWN_RANGE).items()]

    store = await open_store(":memory:", b"k" * 32, SystemClock())
    found = await store.write(ranges)
    assert found == ["10.144.0.0/17", "198.19.16.0/20", ("10.144.0.0/13", OWN_RANGE)]
    await store.close()
