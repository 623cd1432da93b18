"""VPC-01, VPC-02: what a VirtualNetwork and a pod's interface may say, before any engine acts on it."""

import copy
import json
from ipaddress import IPv4Address
from typing import Any

import pytest

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import Pod, VirtualNetwork
from neocloud.engines.manifest.network_spec import Member
from neocloud.engines.manifest.pod import INTERFACE_ANNOTATION
from neocloud.engines.network_rules import check_member, check_network, check_unused

RULE = {
    "direction": "ingress",
    "access": "allow",
    "protocol": "tcp",
    "ports": [22],
    "cidrs": ["0.0.0.0/0"],
    "groups": [],
    "stateful": True,
}
SUBNET = {
    "name": "subnet-a",
    "cidrs": ["10.128.0.0/24"],
    "gateway": "10.128.0.1",
    "routes": [{"destination": "0.0.0.0/0", "nextHop": "egress"}],
}
SPEC = {
    "subnets": [SUBNET],
    "securityGroups": [{"name": "group-a", "rules": [RULE]}],
    "domain": "default-network.internal",
}
INTERFACE = {
    "network": "net-a",
    "subnet": "subnet-a",
    "address": "10.128.0.5",
    "mac": "52:54:00:ab:cd:ef",
    "securityGroups": ["group-a"],
    "publicAddress": "203.0.113.5",
}


def network(namespace: str = "net-a", **spec: Any) -> dict[str, Any]:
    metadata = {"name": "network", "namespace": namespace}
    return {"kind": "VirtualNetwork", "metadata": metadata, "spec": {**SPEC, **spec}}


def pod(name: str = "one", **interface: Any) -> dict[str, Any]:
    fields = {key: value for key, value in {**INTERFACE, **interface}.items() if value is not None}
    metadata = {"name": name, "namespace": "space", "annotations": {INTERFACE_ANNOTATION: json.dumps(fields)}}
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


def test_network_is_read_whole() -> None:
    parsed = VirtualNetwork.from_dict(network())
    subnet = parsed.subnet("subnet-a")
    assert subnet and subnet.routes[0].next_hop is None
    assert subnet.cidr_of(IPv4Address("10.128.0.5")) == subnet.cidrs[0]
    assert parsed.rules_of(["group-a", "unknown"], "ingress")[0].ports == (22,)
    assert parsed.rules_of(["group-a"], "egress") == ()
    assert VirtualNetwork.from_dict(parsed.to_dict()) == parsed


def test_rules_of_several_groups_are_one_list_by_priority() -> None:
    groups = [
        {"name": "a", "rules": [{**RULE, "priority": 100}, {**RULE, "priority": 900}]},
        {"name": "b", "rules": [{**RULE, "priority": 500, "access": "deny"}]},
    ]
    rules = VirtualNetwork.from_dict(network(securityGroups=groups)).rules_of(["b", "a"], "ingress")
    assert [rule.priority for rule in rules] == [100, 500, 900]


@pytest.mark.parametrize(
    "path_and_value",
    [
        (("subnets",), {}),
        (("subnets", 0), "10.0.0.0/8"),
        (("subnets", 0, "name"), "../up"),
        (("subnets", 0, "name"), None),
        (("subnets", 0, "cidrs"), []),
        (("subnets", 0, "cidrs"), ["10.128.0.1/24"]),
        (("subnets", 0, "cidrs"), ["10.128.0.0/30"]),
        (("subnets", 0, "cidrs"), ["fd00::/64"]),
        (("subnets", 0, "cidrs"), [7]),
        (("subnets", 0, "cidrs"), ["10.128.0.0/24", "10.128.0.128/25"]),
        (("subnets", 0, "gateway"), "10.129.0.1"),
        (("subnets", 0, "gateway"), "10.128.0.255"),
        (("subnets", 0, "gateway"), 1),
        (("subnets", 0, "routes"), [{"destination": "0.0.0.0/0", "nextHop": "internet"}]),
        (("subnets", 0, "routes"), [{"destination": "x", "nextHop": "egress"}]),
        (("subnets", 0, "routes"), [SUBNET["routes"][0], SUBNET["routes"][0]]),
        (("subnets", 0, "vlan"), 7),
        (("subnets",), [SUBNET, SUBNET]),
        (("domain",), "under_score"),
        (("domain",), 'internal"; drop'),
        (("securityGroups", 0, "name"), 'a"b'),
        (("securityGroups", 0, "rules", 0, "direction"), "sideways"),
        (("securityGroups", 0, "rules", 0, "access"), "ALLOW"),
        (("securityGroups", 0, "rules", 0, "protocol"), "sctp"),
        (("securityGroups", 0, "rules", 0, "protocol"), "icmp"),
        (("securityGroups", 0, "rules", 0, "ports"), [0]),
        (("securityGroups", 0, "rules", 0, "ports"), [65536]),
        (("securityGroups", 0, "rules", 0, "ports"), [True]),
        (("securityGroups", 0, "rules", 0, "ports"), ["22"]),
        (("securityGroups", 0, "rules", 0, "cidrs"), ["0.0.0.0/0; accept"]),
        (("securityGroups", 0, "rules", 0, "groups"), ["a b"]),
        (("securityGroups", 0, "rules", 0, "stateful"), "yes"),
        (("securityGroups", 0, "rules", 0, "priority"), -1),
        (("securityGroups", 0, "rules", 0, "comment"), "x"),
        (("firewall",), {}),
    ],
    ids=str,
)
def test_every_field_of_a_network_is_checked(path_and_value: tuple[tuple[Any, ...], Any]) -> None:
    path, value = path_and_value
    manifest = copy.deepcopy(network())
    place: Any = manifest["spec"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(EngineError) as caught:
        VirtualNetwork.from_dict(manifest)
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    "change",
    [
        {"network": "no/slash"},
        {"network": None},
        {"subnet": "A"},
        {"address": "10.128.0"},
        {"address": None},
        {"mac": "52:54:00:ab:cd"},
        {"mac": "53:54:00:ab:cd:ef"},
        {"mac": "00:00:00:00:00:00"},
        {"mac": None},
        {"securityGroups": "group-a"},
        {"securityGroups": ["a b"]},
        {"publicAddress": "127.0.0.1"},
        {"publicAddress": "224.0.0.1"},
        {"publicAddress": "169.254.169.254"},
        {"publicAddress": 5},
        {"vlan": 7},
    ],
    ids=str,
)
def test_every_field_of_an_interface_is_checked(change: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as caught:
        Pod.from_dict(pod(**change))
    assert "neocloud.dev/interface" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_annotation_that_is_no_json_object_is_refused(text: str) -> None:
    broken = pod()
    broken["metadata"]["annotations"][INTERFACE_ANNOTATION] = text
    with pytest.raises(EngineError, match="JSON"):
        Pod.from_dict(broken)


def test_pod_without_the_annotation_has_no_interface() -> None:
    plain = pod()
    del plain["metadata"]["annotations"]
    read = Pod.from_dict(plain)
    assert read.interface is None and read.member is None


def test_only_place_and_card_make_it_another_pod() -> None:
    """Security groups and public address are changed while it runs."""
    same = [pod(securityGroups=[]), pod(publicAddress=None), pod(mac="52:54:00:AB:CD:EF")]
    assert {Pod.from_dict(each).fingerprint for each in same} == {Pod.from_dict(pod()).fingerprint}
    for change in (
        {"address": "10.128.0.6"},
        {"mac": "52:54:00:ab:cd:ee"},
        {"subnet": "b"},
        {"network": "b"},
    ):
        assert Pod.from_dict(pod(**change)).fingerprint != Pod.from_dict(pod()).fingerprint


def member(name: str = "one", **interface: Any) -> Member:
    found = Pod.from_dict(pod(name, **interface)).member
    assert found
    return found


def test_pod_needs_its_network_and_subnet() -> None:
    networks = {"net-a": VirtualNetwork.from_dict(network())}
    check_member(member(), networks.get, {})
    for change, message in [
        ({"network": "net-b"}, "net-b does not exist; apply it"),
        ({"subnet": "subnet-b"}, "no subnet subnet-b; add"),
        ({"address": "10.129.0.5"}, r"10.129.0.5 is not in subnet subnet-a \(10.128.0.0/24\)"),
        ({"address": "10.128.0.1"}, "belongs to subnet"),
        ({"address": "10.128.0.255"}, "belongs to subnet"),
    ]:
        with pytest.raises(EngineError, match=message):
            check_member(member(**change), networks.get, {})


@pytest.mark.parametrize("what", ["address", "mac", "publicAddress"])
def test_two_pods_never_hold_the_same(what: str) -> None:
    networks = {"net-a": VirtualNetwork.from_dict(network())}
    others = {"address": "10.128.0.6", "mac": "52:54:00:ab:cd:00", "publicAddress": "203.0.113.6"}
    del others[what]
    holders = dict.fromkeys(member().holdings, member().pod)
    check_member(member(), networks.get, holders)
    with pytest.raises(EngineError, match=f"{what} .* is held by pod one"):
        check_member(member("two", **others), networks.get, holders)


def test_networks_do_not_overlap_and_keep_what_their_members_stand_on() -> None:
    first, second = VirtualNetwork.from_dict(network()), VirtualNetwork.from_dict(network("net-b"))
    check_network(first, [first], [member()])
    with pytest.raises(EngineError, match="overlaps"):
        check_network(second, [first], [])
    other_name = network()
    other_name["metadata"]["name"] = "second"
    with pytest.raises(EngineError, match="has VirtualNetwork network already"):
        check_network(VirtualNetwork.from_dict(other_name), [first], [])
    with pytest.raises(EngineError, match="no subnet subnet-a"):
        check_network(VirtualNetwork.from_dict(network(subnets=[])), [first], [member()])
    with pytest.raises(EngineError, match=r"in use by pod one.*remove"):
        check_unused("net-a", [member()])
    check_unused("net-b", [member()])
