"""Security rules and routes: what may be said, in which order it counts, and what holds what (VPC-01)."""

from dataclasses import replace
from typing import Any

import pytest
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess
from neocloud.messages.nebius.vpc.v1 import RuleDirection, RuleType, SecurityRuleStatus

from neocloud.core import contract
from neocloud.core.contract import ApiError
from neocloud.core.store import Resource
from neocloud.services.vpc import KINDS
from neocloud.services.vpc import types as vpc
from tests.fast.services.vpc.world import NOW, PROJECT, RULES, PlainWorld, Refused


@pytest.fixture
def world() -> PlainWorld:
    return PlainWorld()


@pytest.fixture
def network(world: PlainWorld):
    return world.network()


@pytest.fixture
def group(world: PlainWorld, network):
    return world.create(vpc.SECURITY_GROUP, {"network_id": network.metadata.id}, name="web")


def rule(world: PlainWorld, group: Any, **spec: Any) -> Any:
    whole = {"access": "ALLOW", "protocol": "TCP", **spec}
    return world.create(vpc.SECURITY_RULE, whole, parent_id=group.metadata.id)


def test_a_rule_gets_its_defaults_and_says_what_it_matches(world: PlainWorld, group) -> None:
    found = rule(world, group, ingress={"source_cidrs": ["10.0.0.0/8"], "destination_ports": [22, 443]})
    assert (found.spec.priority, found.spec.type) == (500, RuleType.Value("STATEFUL"))
    assert found.status.direction == RuleDirection.Value("INGRESS")
    assert list(found.status.source.cidrs) == ["10.0.0.0/8"]
    assert list(found.status.destination.ports) == [22, 443]


def test_a_denial_comes_before_an_allowance_of_the_same_priority(world: PlainWorld, group) -> None:
    said = [("ALLOW", 100), ("DENY", 100), ("ALLOW", 99), ("DENY", 101)]
    found = [rule(world, group, access=a, priority=p, ingress={}) for a, p in said]
    order = sorted(found, key=lambda each: each.status.effective_priority)
    assert [(RuleAccess.Name(each.spec.access), each.spec.priority) for each in order] == [
        ("ALLOW", 99),
        ("DENY", 100),
        ("ALLOW", 100),
        ("DENY", 101),
    ]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"ingress": {"source_cidrs": ["fd00::/64"]}}, "must be an IPv4 range"),
        ({"egress": {"destination_cidrs": ["10.0.0.0/8", "10.0.0.1/8"]}}, r"\[1\] must be an IPv4 range"),
        ({"protocol": "ICMP", "ingress": {"destination_ports": [1]}}, "ICMP has no ports"),
        ({"ingress": {"source_security_group_id": "vpcsecuritygroup-e00none"}}, "in this project"),
    ],
)
def test_rules_that_make_no_sense(world: PlainWorld, group, spec: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        rule(world, group, **spec)


def test_a_rule_cannot_name_a_group_of_another_network(world: PlainWorld, group) -> None:
    other = world.create(vpc.SECURITY_GROUP, {"network_id": world.network().metadata.id})
    with pytest.raises(Refused, match="another network"):
        rule(world, group, egress={"destination_security_group_id": other.metadata.id})


def test_a_group_stays_while_rules_are_left_or_name_it(world: PlainWorld, network, group) -> None:
    own = rule(world, group, ingress={"source_security_group_id": group.metadata.id})
    with pytest.raises(ApiError, match="still has rule"):
        world.delete(group)
    world.delete(own)
    other = world.create(vpc.SECURITY_GROUP, {"network_id": network.metadata.id})
    naming = rule(world, other, egress={"destination_security_group_id": group.metadata.id})
    with pytest.raises(ApiError, match="still has rule"):
        world.delete(group)
    world.delete(naming)
    world.delete(group)


def test_a_group_stays_while_an_instance_is_in_it(world: PlainWorld, group) -> None:
    spec = contract.message("nebius.compute.v1.InstanceSpec")()
    spec.network_interfaces.add(name="eth0").security_groups.add(id=group.metadata.id)
    row = Resource(
        "computeinstance-e00a",
        "nebius.compute.v1.Instance",
        PROJECT,
        "vm",
        NOW,
        NOW,
        spec=spec.SerializeToString(),
    )
    world.rows[row.id] = row
    with pytest.raises(ApiError, match="still has instance vm"):
        world.delete(group)
    del world.rows[row.id]
    world.delete(group)


@pytest.fixture
def table(world: PlainWorld, network):
    return world.create(vpc.ROUTE_TABLE, {"network_id": network.metadata.id})


def route(world: PlainWorld, table: Any, cidr: str, **next_hop: Any) -> Any:
    spec = {"destination": {"cidr": cidr}, "next_hop": next_hop or {"default_egress_gateway": True}}
    return world.create(vpc.ROUTE, spec, parent_id=table.metadata.id)


def test_a_route_to_an_address_of_the_network(world: PlainWorld, network, table) -> None:
    hop = world.address(world.subnet(network), "10.128.0.9")
    found = route(world, table, "10.99.0.0/16", allocation={"id": hop.metadata.id})
    assert found.status.next_hop.allocation.cidr == "10.128.0.9/32"
    with pytest.raises(ApiError, match="next hop of route"):
        world.delete(hop)
    world.delete(found)
    world.delete(hop)


def test_routes_that_lead_nowhere(world: PlainWorld, network, table) -> None:
    route(world, table, "0.0.0.0/0")
    block = world.address(world.subnet(network), "10.128.0.16/28")
    foreign = world.address(world.subnet(world.network()))
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("0.0.0.0/0", {}, "the same destination"),
        ("fd00::/8", {}, "must be an IPv4 range"),
        ("10.9.0.0/16", {"default_egress_gateway": False}, "must be true"),
        ("10.9.0.0/16", {"allocation": {"id": "vpcallocation-e00none"}}, "in this project"),
        (
            "10.9.0.0/16",
            {"allocation": {"id": foreign.metadata.id}},
            "not a private address of the table's network",
        ),
        ("10.9.0.0/16", {"allocation": {"id": block.metadata.id}}, "a next hop is one address"),
    ]
    for cidr, next_hop, why in cases:
        with pytest.raises(Refused, match=why):
            route(world, table, cidr, **next_hop)


def test_who_is_woken_by_what(world: PlainWorld, network, group, table) -> None:
    """All ways lead to the network, which is applied whole."""
    subnet = world.subnet(network)
    made = rule(world, group, ingress={})
    way = route(world, table, "0.0.0.0/0")
    network_id = network.metadata.id
    for message, woken in (
        (subnet, network_id),
        (group, network_id),
        (table, network_id),
        (made, group.metadata.id),
        (way, table.metadata.id),
    ):
        assert list(RULES[message.DESCRIPTOR.full_name].dependents(message)) == [woken]


def test_what_a_reconciler_changes_of_its_rule_shows_in_the_status(world: PlainWorld, group) -> None:
    [kind] = [kind for kind in KINDS if kind.message == vpc.SECURITY_RULE]
    made = rule(world, group, ingress={"source_cidrs": ["10.0.0.1/32"]})
    before = world.rows[made.metadata.id]
    made.spec.ingress.source_cidrs[:] = ["10.0.0.2/32"]
    after = kind.completed(replace(before, spec=made.spec.SerializeToString()), before, world)
    assert list(SecurityRuleStatus.FromString(after.status).source.cidrs) == ["10.0.0.2/32"]
    assert after.state == "READY"
