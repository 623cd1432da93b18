"""Manifests of a network for the engine, whole (rfd 0010)."""

from neocloud.engines.base import Reference
from neocloud.engines.manifest import VirtualNetwork
from neocloud.services.vpc.render import (
    EGRESS,
    GroupView,
    NetworkView,
    RouteView,
    RuleView,
    SubnetView,
    removal,
    render,
)

NETWORK = NetworkView(
    id="vpcnetwork-e00x",
    domain="lab.internal",
    subnets=(
        SubnetView(
            id="vpcsubnet-e00a",
            cidrs=("10.128.0.0/24", "10.128.4.0/24"),
            gateway="10.128.0.1",
            routes=(RouteView("0.0.0.0/0", EGRESS), RouteView("10.9.0.0/16", "10.128.0.7")),
        ),
        SubnetView(id="vpcsubnet-e00b", cidrs=("10.128.1.0/24",), gateway="10.128.1.1"),
    ),
    groups=(
        GroupView(
            id="vpcsecuritygroup-e00a",
            rules=(
                RuleView("egress", "allow", "any", 1001, cidrs=("0.0.0.0/0",)),
                RuleView("ingress", "allow", "tcp", 1001, ports=(22, 443), cidrs=("0.0.0.0/0",)),
                RuleView("ingress", "deny", "udp", 1000, group="vpcsecuritygroup-e00a", is_stateful=False),
            ),
        ),
    ),
)


def test_a_network_is_a_namespace_and_one_object() -> None:
    labels = {"neocloud.dev/network": "vpcnetwork-e00x"}
    assert [each.to_dict() for each in render(NETWORK)] == [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "vpcnetwork-e00x", "labels": labels},
        },
        {
            "apiVersion": "neocloud.dev/v1",
            "kind": "VirtualNetwork",
            "metadata": {"name": "vpcnetwork-e00x", "namespace": "vpcnetwork-e00x", "labels": labels},
            "spec": {
                "subnets": [
                    {
                        "name": "vpcsubnet-e00a",
                        "cidrs": ["10.128.0.0/24", "10.128.4.0/24"],
                        "gateway": "10.128.0.1",
                        "routes": [
                            {"destination": "0.0.0.0/0", "nextHop": "egress"},
                            {"destination": "10.9.0.0/16", "nextHop": "10.128.0.7"},
                        ],
                    },
                    {
                        "name": "vpcsubnet-e00b",
                        "cidrs": ["10.128.1.0/24"],
                        "gateway": "10.128.1.1",
                        "routes": [],
                    },
                ],
                "securityGroups": [
                    {
                        "name": "vpcsecuritygroup-e00a",
                        "rules": [
                            {
                                "direction": "ingress",
                                "access": "deny",
                                "protocol": "udp",
                                "ports": [],
                                "cidrs": [],
                                "groups": ["vpcsecuritygroup-e00a"],
                                "stateful": False,
                                "priority": 1000,
                            },
                            {
                                "direction": "egress",
                                "access": "allow",
                                "protocol": "any",
                                "ports": [],
                                "cidrs": ["0.0.0.0/0"],
                                "groups": [],
                                "stateful": True,
                                "priority": 1001,
                            },
                            {
                                "direction": "ingress",
                                "access": "allow",
                                "protocol": "tcp",
                                "ports": [22, 443],
                                "cidrs": ["0.0.0.0/0"],
                                "groups": [],
                                "stateful": True,
                                "priority": 1001,
                            },
                        ],
                    }
                ],
                "domain": "lab.internal",
            },
        },
    ]


def test_engines_can_read_it() -> None:
    for view in (NETWORK, NetworkView("vpcnetwork-e00x", "a.internal")):
        network = render(view)[1]
        assert VirtualNetwork.from_dict(network.to_dict()) == network


def test_both_go_with_the_network() -> None:
    assert removal("vpcnetwork-e00x") == [
        Reference("VirtualNetwork", "vpcnetwork-e00x", "vpcnetwork-e00x"),
        Reference("Namespace", "vpcnetwork-e00x", "vpcnetwork-e00x"),
    ]
