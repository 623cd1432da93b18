"""Whatever changes in a network reaches the engine without anybody asking for it (VPC-01, rfd 0010)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from neocloud.core import wire
from neocloud.core.clock import SystemClock
from neocloud.core.kind import FINALIZER
from neocloud.core.reconcile import Worker
from neocloud.core.reconcile.reconciler import Context, ReconcileResult, Step
from neocloud.core.store import Resource
from neocloud.engines.base import EngineError
from neocloud.services.vpc import SERVICE as VPC
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.types import assign, private_address
from tests.fast.services.vpc.conftest import Cloud


@pytest.fixture
async def applied(cloud: Cloud, network_id: str):
    """The network as the engine has it, once that is true of it."""

    async def until(condition: Any) -> Any:
        async def is_so() -> bool:
            found = cloud.applied(network_id)
            return found is not None and condition(found)

        await cloud.until(is_so)
        return cloud.applied(network_id)

    await until(lambda network: True)
    return until


def rules_of(network: Any, group_id: str) -> list[Any]:
    return [rule for group in network.groups if group.name == group_id for rule in group.rules]


async def test_a_subnet_appears_and_goes(cloud: Cloud, network_id: str, applied: Any) -> None:
    spec = {
        "networkId": network_id,
        "ipv4PrivatePools": {"pools": [{"cidrs": [{"cidr": "10.128.200.0/24"}]}]},
    }
    subnet_id = await cloud.made("Subnet", "workers", spec)
    found = await applied(lambda network: network.subnet(subnet_id))
    assert [str(cidr) for cidr in found.subnet(subnet_id).cidrs] == ["10.128.200.0/24"]
    assert found.platform_services == ("storage",)
    assert (await cloud.delete("Subnet", subnet_id)).status == 200
    await applied(lambda network: network.subnet(subnet_id) is None)


async def test_rules_of_a_group_come_and_go(cloud: Cloud, network_id: str, applied: Any) -> None:
    group_id = await cloud.made("SecurityGroup", "web", {"networkId": network_id})
    await applied(lambda network: any(group.name == group_id for group in network.groups))
    spec = {"access": "ALLOW", "protocol": "TCP", "ingress": {"destinationPorts": [443]}}
    rule_id = await cloud.made("SecurityRule", "https", spec, parent_id=group_id)
    found = await applied(lambda network: rules_of(network, group_id))
    [rule] = rules_of(found, group_id)
    assert (rule.direction, rule.protocol, rule.ports, rule.cidrs) == ("ingress", "tcp", (443,), ())
    refused = await cloud.delete("SecurityGroup", group_id)
    assert refused.code == "failed_precondition" and "https" in refused.message
    await cloud.delete("SecurityRule", rule_id)
    await applied(lambda network: not rules_of(network, group_id))
    assert (await cloud.delete("SecurityGroup", group_id)).status == 200
    await applied(lambda network: all(group.name != group_id for group in network.groups))


async def test_a_route_and_the_table_of_a_subnet(
    cloud: Cloud, network_id: str, subnet_id: str, applied: Any
) -> None:
    allocation = {"ipv4Private": {"subnetId": subnet_id, "cidr": "10.128.0.9"}}
    hop = await cloud.made("Allocation", "router", allocation)
    table_id = await cloud.made("RouteTable", "inspected", {"networkId": network_id})
    route = {"destination": {"cidr": "10.9.0.0/16"}, "nextHop": {"allocation": {"id": hop}}}
    route_id = await cloud.made("Route", "to-lab", route, parent_id=table_id)
    changed = await cloud.update("Subnet", subnet_id, {"routeTableId": table_id})
    assert changed.status == 200, changed
    found = await applied(
        lambda network: str(network.subnet(subnet_id).routes[0].destination) == "10.9.0.0/16"
    )
    assert [str(route.next_hop) for route in found.subnet(subnet_id).routes] == ["10.128.0.9"]
    await cloud.delete("Route", route_id)
    await applied(lambda network: not network.subnet(subnet_id).routes)


async def test_an_engine_that_refuses_ends_the_operation_with_its_words(cloud: Cloud) -> None:
    async def refuse(objects: Any) -> bool:
        raise EngineError("There is no room for another bridge. Delete a network.")

    cloud.engine.apply = refuse  # type: ignore[method-assign]
    answer = await cloud.create("Network", "one-too-many", {})
    await cloud.until(lambda: cloud.is_done(answer.body["id"]))
    row = await cloud.store.read(lambda tx: tx.get_operation(answer.body["id"]))
    assert row is not None
    assert (row.code, row.message) == (9, "There is no room for another bridge. Delete a network.")
    network = await cloud.get("Network", answer.body["resourceId"])
    assert network["status"]["state"] == "CREATING"


async def test_an_owner_makes_addresses_and_who_has_one_shows(cloud: Cloud, subnet_id: str) -> None:
    """A public address of a user, taken by a machine; here by the claim that `vpc.assign` makes."""
    allocation = await cloud.made("Allocation", "login", {"ipv4Public": {"subnetId": subnet_id}})
    before = (await cloud.get("Allocation", allocation))["status"]
    assert before["state"] == "ALLOCATED" and before["static"] is True
    assert before["details"]["allocatedCidr"].startswith("198.18.")
    namespace, holder = vpc.assignment_namespace(allocation), "computeinstance-e00a"
    await cloud.store.write(lambda tx: tx.reserve(namespace, "assigned", holder))
    after = (await cloud.get("Allocation", allocation))["status"]
    assert after["state"] == "ASSIGNED"
    assert after["assignment"] == {"networkInterface": {"instanceId": holder, "type": "PUBLIC"}}
    refused = await cloud.delete("Allocation", allocation)
    assert refused.code == "failed_precondition" and holder in refused.message
    await cloud.store.write(lambda tx: tx.release(namespace, "assigned"))
    assert (await cloud.delete("Allocation", allocation)).status == 200
    assert await cloud.store.read(lambda tx: dict(tx.reservations("vpc/public-addresses"))) == {}


async def test_public_addresses_of_two_tenants_are_never_the_same(cloud: Cloud) -> None:
    """Each has a pool of its own that is a window to one range."""
    pools = (await cloud.call("PoolService/List", {"parentId": cloud.other.project_id}, of=cloud.other)).body
    [theirs] = [pool["metadata"]["id"] for pool in pools["items"] if pool["spec"]["visibility"] == "PUBLIC"]
    pools = (await cloud.call("PoolService/List", {"parentId": cloud.bank.project_id})).body
    [mine] = [pool["metadata"]["id"] for pool in pools["items"] if pool["spec"]["visibility"] == "PUBLIC"]
    await cloud.made("Allocation", "mine", {"ipv4Public": {"poolId": mine, "cidr": "198.18.7.7"}})
    body = {
        "metadata": {"parentId": cloud.other.project_id, "name": "theirs"},
        "spec": {"ipv4Public": {"poolId": theirs, "cidr": "198.18.7.7"}},
    }
    refused = await cloud.call("AllocationService/Create", body, of=cloud.other)
    assert refused.code == "resource_exhausted"
    assert "198.18.7.7/32" in refused.message and cloud.bank.project_id not in refused.message


async def test_lists_by_what_things_belong_to(cloud: Cloud, network_id: str, subnet_id: str) -> None:
    addresses = [
        await cloud.made("Allocation", f"a{number}", {"ipv4Private": {"subnetId": subnet_id}})
        for number in range(3)
    ]
    first = await cloud.call("AllocationService/ListBySubnet", {"subnetId": subnet_id, "pageSize": 2})
    rest = await cloud.call(
        "AllocationService/ListBySubnet",
        {"subnetId": subnet_id, "pageSize": 2, "pageToken": first.body["nextPageToken"]},
    )
    found = [item["metadata"]["id"] for page in (first, rest) for item in page.body["items"]]
    assert found == addresses and "nextPageToken" not in rest.body
    pool_id = (await cloud.get("Subnet", subnet_id))["status"]["ipv4PrivatePools"][0]["poolId"]
    by_pool = await cloud.call("AllocationService/ListByPool", {"poolId": pool_id})
    assert [item["metadata"]["id"] for item in by_pool.body["items"]] == addresses
    for kind in ("Subnet", "RouteTable", "SecurityGroup"):
        by_network = await cloud.call(f"{kind}Service/ListByNetwork", {"networkId": network_id})
        assert len(by_network.body["items"]) == 1, kind
        aggregated = await cloud.call(f"{kind}Service/ListAggregated", {"parentId": cloud.bank.project_id})
        assert aggregated.body["items"] == by_network.body["items"]


async def test_what_is_not_there_is_told_in_the_contracts_words(cloud: Cloud) -> None:
    answer = await cloud.call("SubnetService/ListByNetwork", {"networkId": "vpcnetwork-e00none"})
    assert answer.code == "not_found"
    answer = await cloud.call("TargetGroupService/Get", {"id": "vpctargetgroup-e00a"})
    assert answer.code == "unimplemented"


async def test_nothing_of_a_network_is_shown_to_another_tenant(
    cloud: Cloud, network_id: str, subnet_id: str
) -> None:
    """Neither read, nor listed, nor named in something of their own."""
    for path, body in (
        ("NetworkService/Get", {"id": network_id}),
        ("SubnetService/ListByNetwork", {"networkId": network_id}),
        ("AllocationService/ListBySubnet", {"subnetId": subnet_id}),
        ("NetworkService/CreateDefault", {"metadata": {"parentId": cloud.bank.project_id, "name": "mine"}}),
        (
            "SubnetService/Create",
            {
                "metadata": {"parentId": cloud.other.project_id, "name": "mine"},
                "spec": {"networkId": network_id},
            },
        ),
    ):
        answer = await cloud.call(path, body, of=cloud.other)
        assert answer.code == "not_found", (path, answer)


async def test_field_errors_name_the_field(cloud: Cloud, network_id: str) -> None:
    pools = {"pools": [{"cidrs": [{"cidr": "10.128.200.0/24"}, {"cidr": "10.1.0.0/24"}]}]}
    answer = await cloud.create("Subnet", "workers", {"networkId": network_id, "ipv4PrivatePools": pools})
    assert answer.code == "invalid_argument"
    assert answer.violations == {
        "spec.ipv4_private_pools.pools[0].cidrs[1].cidr": "must lie in a pool of the network: 10.128.0.0/16"
    }


class Holder:
    """A reconciler that needs an address, as an instance does."""

    kind = "nebius.compute.v1.Filesystem"

    def __init__(self, subnet_id: str) -> None:
        self.subnet_id = subnet_id
        self.addresses: dict[str, str] = {}

    async def scope(self, context: Context) -> Context:
        return context

    def steps(self, scope: Context) -> Sequence[Step]:
        return (Step("Take an address", self._take),)

    def delete_steps(self, scope: Context) -> Sequence[Step]:
        return ()

    def status(self, scope: Context, result: ReconcileResult) -> ReconcileResult:
        return result.with_status(
            wire.resource_message(scope.resource).status, "READY" if result.is_done else "ERROR"
        )

    async def _take(self, scope: Context) -> None:
        row = scope.resource
        allocation = await scope.ensure_child(
            vpc.ALLOCATION,
            name=f"{row.name}-address",
            parent_id=row.parent_id,
            spec=private_address(self.subnet_id),
            labels={},
        )
        assert await assign(scope, allocation.id)
        self.addresses[row.id] = vpc.address_of(allocation)


async def test_an_owner_has_its_address_at_once_and_takes_it_along(cloud: Cloud, network_id: str) -> None:
    pools = {"pools": [{"cidrs": [{"cidr": "10.128.200.0/29"}]}]}
    subnet_id = await cloud.made("Subnet", "tiny", {"networkId": network_id, "ipv4PrivatePools": pools})
    holder, clock = Holder(subnet_id), SystemClock()
    worker = Worker(cloud.store, clock, [holder], kinds=VPC.kinds, poll_seconds=0.05, take_over=False)
    now, project_id = clock.now(), cloud.bank.project_id
    rows = [
        Resource(
            f"computefilesystem-e00{n}", holder.kind, project_id, f"vm{n}", now, now, finalizers=(FINALIZER,)
        )
        for n in range(6)
    ]
    await cloud.store.write(lambda tx: [tx.insert(row) for row in rows])
    running = asyncio.create_task(worker.run())
    try:

        async def all_settled() -> bool:
            found = [await cloud.row(row.id) for row in rows]
            return sorted(row.state for row in found if row) == ["ERROR", *["READY"] * 5]

        await cloud.until(all_settled)
        assert sorted(holder.addresses.values()) == [f"10.128.200.{number}" for number in range(2, 7)]
        listed = await cloud.call("AllocationService/ListBySubnet", {"subnetId": subnet_id})
        states = {
            (item["status"]["state"], item["status"].get("static", False)) for item in listed.body["items"]
        }
        assert states == {("ASSIGNED", False)}
        [first, *_] = holder.addresses
        gone = await cloud.row(first)
        assert gone is not None
        await cloud.store.write(lambda tx: tx.update(replace(gone, deleted_at=now)))
        await cloud.until(lambda: cloud.is_gone(first))
        held = await cloud.store.read(lambda tx: tx.reservations(f"{subnet_id}/addresses"))
        assert holder.addresses[first] not in held and len(held) == 4
    finally:
        running.cancel()
        await asyncio.wait({running})
