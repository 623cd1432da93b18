"""Which object a network is for the engine: a VirtualNetwork with all in it, in a namespace of its own."""

from dataclasses import dataclass

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.services.vpc.resources import network_namespace

EGRESS = "egress"
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
    """Where no ranges and no group are given the other side may be anybody."""
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


def render(network: NetworkView) -> list[KubernetesObject]:
    namespace, labels = network_namespace(network.id), {NETWORK_LABEL: network.id}
    spec = {
        "subnets": [_subnet(subnet) for subnet in network.subnets],
        "securityGroups": [_group(group) for group in network.groups],
        "domain": network.domain,
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}},
        {
            "apiVersion": "neocloud.dev/v1",
            "kind": "VirtualNetwork",
            "metadata": {"name": namespace, "namespace": namespace, "labels": labels},
            "spec": spec,
        },
    ]


def removal(network_id: str) -> list[Reference]:
    namespace = network_namespace(network_id)
    return [
        Reference("VirtualNetwork", namespace, namespace),
        Reference("Namespace", namespace, namespace),
    ]


def _subnet(subnet: SubnetView) -> dict[str, object]:
    routes = [{"destination": route.destination, "nextHop": route.next_hop} for route in subnet.routes]
    return {"name": subnet.id, "cidrs": list(subnet.cidrs), "gateway": subnet.gateway, "routes": routes}


def _group(group: GroupView) -> dict[str, object]:
    """The first rule that matches decides, so they go in order of priority."""
    rules = sorted(group.rules, key=lambda rule: rule.priority)
    return {"name": group.id, "rules": [_rule(rule) for rule in rules]}


def _rule(rule: RuleView) -> dict[str, object]:
    return {
        "direction": rule.direction,
        "access": rule.access,
        "protocol": rule.protocol,
        "ports": list(rule.ports),
        "cidrs": list(rule.cidrs),
        "groups": [rule.group] if rule.group else [],
        "stateful": rule.is_stateful,
        "priority": rule.priority,
    }
