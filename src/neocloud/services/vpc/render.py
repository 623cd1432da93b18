"""Renders a network as one VirtualNetwork with everything in it, in a namespace of its own."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Manifest, Namespace
from neocloud.engines.manifest.network_spec import EGRESS as EGRESS
from neocloud.engines.manifest.network_spec import Route, SecurityGroup, SecurityRule, Subnet, VirtualNetwork
from neocloud.services.vpc.types import network_namespace

NETWORK_LABEL = "neocloud.dev/network"


@dataclass(frozen=True)
class RouteView:
    destination: str
    next_hop: str
    """An address, or EGRESS."""


@dataclass(frozen=True)
class SubnetView:
    id: str
    cidrs: tuple[str, ...]
    gateway: str
    routes: tuple[RouteView, ...] = ()


@dataclass(frozen=True)
class RuleView:
    direction: str
    access: str
    protocol: str
    priority: int
    ports: tuple[int, ...] = ()
    cidrs: tuple[str, ...] = ()
    group: str = ""
    """Without ranges and without a group the rule matches every other side."""
    is_stateful: bool = True


@dataclass(frozen=True)
class GroupView:
    id: str
    rules: tuple[RuleView, ...] = ()


@dataclass(frozen=True)
class NetworkView:
    id: str
    domain: str
    subnets: tuple[SubnetView, ...] = ()
    groups: tuple[GroupView, ...] = ()
    platform_services: tuple[str, ...] = ()


def render(network: NetworkView) -> list[Manifest]:
    namespace, labels = network_namespace(network.id), {NETWORK_LABEL: network.id}
    return [
        Namespace(name=namespace, labels=labels),
        VirtualNetwork(
            name=namespace,
            namespace=namespace,
            labels=labels,
            subnets=tuple(_subnet(subnet) for subnet in network.subnets),
            groups=tuple(_group(group) for group in network.groups),
            domain=network.domain,
            platform_services=network.platform_services,
        ),
    ]


def removal(network_id: str) -> list[Reference]:
    namespace = network_namespace(network_id)
    return [
        Reference("VirtualNetwork", namespace, namespace),
        Reference("Namespace", namespace, namespace),
    ]


def _subnet(subnet: SubnetView) -> Subnet:
    return Subnet(
        name=subnet.id,
        cidrs=tuple(map(IPv4Network, subnet.cidrs)),
        gateway=IPv4Address(subnet.gateway),
        routes=tuple(_route(route) for route in subnet.routes),
    )


def _route(route: RouteView) -> Route:
    next_hop = None if route.next_hop == EGRESS else IPv4Address(route.next_hop)
    return Route(IPv4Network(route.destination), next_hop)


def _group(group: GroupView) -> SecurityGroup:
    """Return the group with its rules in order of priority: the first that matches decides."""
    rules = sorted(group.rules, key=lambda rule: rule.priority)
    return SecurityGroup(group.id, tuple(_rule(rule) for rule in rules))


def _rule(rule: RuleView) -> SecurityRule:
    return SecurityRule(
        direction=rule.direction,
        access=rule.access,
        protocol=rule.protocol,
        ports=rule.ports,
        cidrs=tuple(map(IPv4Network, rule.cidrs)),
        groups=(rule.group,) if rule.group else (),
        stateful=rule.is_stateful,
        priority=rule.priority,
    )
