"""`neo vpc`: ranges are typed as such, not as JSON."""

from typing import Any

import pytest

from neocloud.cli.resources.products import PRODUCTS
from neocloud.control_plane.composition import SERVICES
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

API = "nebius.vpc.v1"


def test_every_method_of_the_service_is_offered() -> None:
    [service] = [service for service in SERVICES if service.name == "vpc"]
    served = {f"{kind.rpc}/{verb}" for kind in service.kinds for verb in kind.verbs}
    served |= {method.path for method in service.methods} | {alias.path for alias in service.aliases}
    assert {f"{noun.service}/{verb}" for noun in PRODUCTS["vpc"].nouns for verb in noun.verbs} == served


def request_of(signed_in: Neo, cloud: FakeServer, service: str, verb: str, *arguments: str) -> Any:
    """Return the request that the command sends."""
    path = f"{API}.{service}Service"
    cloud.serve(f"{path}/{verb}", operation(f"vpc{service.lower()}-e00made"))
    cloud.serve(f"{path}/Get", contract.message(f"{API}.{service}")())
    ran = signed_in("vpc", *arguments)
    assert ran.code == 0, ran.err
    [request] = cloud.asked(f"{path}/{verb}")
    return contract.to_dict(request)


def test_a_subnet_with_its_range(signed_in: Neo, cloud: FakeServer) -> None:
    arguments = (
        "subnet",
        "create",
        "--name",
        "a",
        "--network-id",
        "vpcnetwork-e00a",
        "--cidr",
        "10.128.9.0/24",
    )
    assert request_of(signed_in, cloud, "Subnet", "Create", *arguments) == {
        "metadata": {"parent_id": PROJECT, "name": "a"},
        "spec": {
            "network_id": "vpcnetwork-e00a",
            "ipv4_private_pools": {"pools": [{"cidrs": [{"cidr": "10.128.9.0/24"}]}]},
        },
    }


@pytest.mark.parametrize(
    "given",
    [
        ("--cidr", "10.1.0.0/16", "--cidr", "10.2.0.0/16"),
        ("--cidrs", '[{"cidr": "10.1.0.0/16"}, {"cidr": "10.2.0.0/16"}]'),
        ("--cidrs", '{"cidr": "10.1.0.0/16"}', "--cidrs", "10.2.0.0/16"),
    ],
)
def test_the_ranges_of_a_pool_as_words_or_json(
    signed_in: Neo, cloud: FakeServer, given: tuple[str, ...]
) -> None:
    arguments = ("pool", "create", "--name", "a", "--version", "IPV4", "--visibility", "PRIVATE", *given)
    spec = request_of(signed_in, cloud, "Pool", "Create", *arguments)["spec"]
    assert spec["cidrs"] == [{"cidr": "10.1.0.0/16"}, {"cidr": "10.2.0.0/16"}]


def test_a_network_with_named_pools(signed_in: Neo, cloud: FakeServer) -> None:
    arguments = ("network", "create", "--name", "a", "--private-pool-id", "vpcpool-e00a")
    spec = request_of(signed_in, cloud, "Network", "Create", *arguments)["spec"]
    assert spec == {"ipv4_private_pools": {"pools": [{"id": "vpcpool-e00a"}]}}


def test_a_default_network_takes_only_a_name(signed_in: Neo, cloud: FakeServer) -> None:
    found = request_of(
        signed_in, cloud, "Network", "CreateDefault", "network", "create-default", "--name", "a"
    )
    assert found == {"metadata": {"parent_id": PROJECT, "name": "a"}}


def test_a_rule_of_a_security_group(signed_in: Neo, cloud: FakeServer) -> None:
    spec = request_of(
        signed_in, cloud, "SecurityRule", "Create",
        "security-rule", "create", "--parent-id", "vpcsecuritygroup-e00a", "--name", "https",
        "--access", "ALLOW", "--protocol", "TCP",
        "--ingress-source-cidrs", "0.0.0.0/0", "--ingress-destination-ports", "443",
    )["spec"]  # fmt: skip
    assert spec == {
        "access": "ALLOW",
        "protocol": "TCP",
        "ingress": {"source_cidrs": ["0.0.0.0/0"], "destination_ports": [443]},
    }
