"""VPC-01: firewall rules for virtual networks as text: one snapshot, and the meaning of every rule."""

import json
import os
import re
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.manifest import Interface, VirtualNetwork
from neocloud.engines.manifest.network_spec import Member
from neocloud.engines.network_rules import may_connect
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network.firewall import render_table
from neocloud.engines.podman.network.security_rules import (
    load,
    render_anti_spoofing_table,
    render_security_rules,
)
from neocloud.engines.podman.network.virtual_networks import Bridge, NetworkSnapshot

LAYOUT = Layout.of(Path("/var/lib/neocloud"))
SNAPSHOT = Path(__file__).parent / "snapshots" / "networks.nft"
WRITE = "NEOCLOUD_WRITE_SNAPSHOTS"
NAMESPACES = [("ncx-7", IPv4Network("10.89.7.0/24"))]
WEB = [
    {"direction": "ingress", "access": "deny", "protocol": "any", "cidrs": ["10.128.0.9/32"]},
    {
        "direction": "ingress",
        "access": "allow",
        "protocol": "tcp",
        "ports": [443, 80],
        "cidrs": ["0.0.0.0/0"],
    },
    {
        "direction": "ingress",
        "access": "allow",
        "protocol": "icmp",
        "cidrs": ["10.128.0.0/16", "10.128.1.0/24"],
    },
    {"direction": "ingress", "access": "allow", "protocol": "any", "ports": [53], "groups": ["jobs", "gone"]},
    {"direction": "egress", "access": "allow", "protocol": "udp", "stateful": False},
]
JOBS = [{"direction": "egress", "access": "allow", "protocol": "any"}]


def network(namespace: str, number: int, groups: dict[str, Any]) -> VirtualNetwork:
    def subnet(name: str, third: int, routes: list[str]) -> dict[str, Any]:
        return {
            "name": name,
            "cidrs": [f"10.{number}.{third}.0/24"],
            "gateway": f"10.{number}.{third}.1",
            "routes": [{"destination": route, "nextHop": "egress"} for route in routes],
        }

    spec = {
        "subnets": [subnet("one", 0, ["0.0.0.0/0"]), subnet("two", 1, [])],
        "securityGroups": [{"name": name, "rules": rules} for name, rules in groups.items()],
    }
    metadata = {"name": namespace, "namespace": namespace}
    return VirtualNetwork.from_dict({"kind": "VirtualNetwork", "metadata": metadata, "spec": spec})


def bridges(found: VirtualNetwork, first: int) -> list[Bridge]:
    return [
        Bridge(found.namespace, subnet.name, subnet.cidrs[0], subnet.gateway, f"ncx-v{first + number}")
        for number, subnet in enumerate(found.subnets)
    ]


def member(name: str, network: str, address: str, groups: list[str], **changes: Any) -> Member:
    card = address.rsplit(".", 1)[1].zfill(2)
    fields = {"network": network, "subnet": "one", "address": address, "mac": f"52:54:00:00:00:{card}"}
    text = json.dumps({**fields, "securityGroups": groups, **changes})
    return Member(Reference("Pod", "space", name), Interface.from_json(text), name)


def snapshot() -> NetworkSnapshot:
    first, second = network("net-a", 128, {"web": WEB, "jobs": JOBS}), network("net-b", 129, {"web": JOBS})
    return NetworkSnapshot(
        networks=(first, second),
        bridges=(*bridges(first, 0), *bridges(second, 2)),
        members=(
            member("a", "net-a", "10.128.0.5", ["web"], publicAddress="203.0.113.5"),
            member("b", "net-a", "10.128.1.6", ["jobs", "web"]),
            member("c", "net-b", "10.129.0.7", []),
            member("lost", "net-b", "10.200.0.7", ["web"]),
        ),
        ports={Reference("Pod", "space", "a"): "veth0", Reference("Pod", "space", "c"): "veth5"},
    )


def test_rules_are_those_of_the_snapshot() -> None:
    rendered = render_table(LAYOUT, NAMESPACES, snapshot()) + render_anti_spoofing_table(LAYOUT, snapshot())
    if os.environ.get(WRITE):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(rendered)
    assert rendered == SNAPSHOT.read_text(), f"meant? {WRITE}=1 pytest {__file__}, then look at the diff"


def test_same_state_is_the_same_text_in_whatever_order_it_is_found() -> None:
    one = snapshot()
    other = NetworkSnapshot(one.networks, one.bridges[::-1], one.members[::-1], one.ports)
    assert render_table(LAYOUT, NAMESPACES, one) == render_table(LAYOUT, NAMESPACES, other)
    assert render_anti_spoofing_table(LAYOUT, one) == render_anti_spoofing_table(LAYOUT, other)


def test_machine_without_virtual_networks_has_none_of_their_rules() -> None:
    plain = render_table(LAYOUT, NAMESPACES)
    for word in ("bridges", "hook prerouting", "hook postrouting", "hook output", "nat ip"):
        assert word not in plain


def chains(found: NetworkSnapshot) -> dict[str, list[str]]:
    lines = [line.strip() for line in render_security_rules(found, '"ncx-*"', [])]
    starts = [number for number, line in enumerate(lines) if line.endswith("{")]
    return {lines[start].split()[1]: lines[start + 1 : lines.index("}", start)] for start in starts}


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"access": "allow", "protocol": "any"}, "goto keep_received"),
        ({"access": "allow", "protocol": "any", "stateful": False}, "accept"),
        ({"access": "deny", "protocol": "any"}, "counter drop"),
        (
            {"access": "allow", "protocol": "tcp", "ports": [80, 22, 80]},
            "meta l4proto tcp th dport { 22, 80 }",
        ),
        ({"access": "allow", "protocol": "udp"}, "meta l4proto udp goto"),
        ({"access": "allow", "protocol": "icmp"}, "meta l4proto icmp goto"),
        ({"access": "allow", "protocol": "any", "ports": [5]}, "meta l4proto { tcp, udp } th dport { 5 }"),
        ({"access": "allow", "protocol": "any", "cidrs": ["10.0.0.0/8"]}, "ip saddr { 10.0.0.0/8 } goto"),
        ({"access": "allow", "protocol": "any", "cidrs": ["10.0.0.0/8", "10.1.0.0/16"]}, "{ 10.0.0.0/8 }"),
        ({"access": "allow", "protocol": "any", "groups": ["g"]}, "ip saddr @group_0_0 goto"),
    ],
    ids=str,
)
def test_each_part_of_a_rule_has_its_words(rule: dict[str, Any], text: str) -> None:
    found = network("net-a", 128, {"g": [{"direction": "ingress", **rule}]})
    members = (member("a", "net-a", "10.128.0.5", ["g"]),)
    rules = chains(NetworkSnapshot((found,), tuple(bridges(found, 0)), members))["ingress_0"]
    assert len(rules) == 2 and text in rules[0] and rules[1] == "counter drop"


def test_rule_for_a_group_that_is_gone_lets_nobody_in() -> None:
    rule = {"direction": "ingress", "access": "allow", "protocol": "any", "groups": ["gone"]}
    found = network("net-a", 128, {"g": [rule]})
    members = (member("a", "net-a", "10.128.0.5", ["g"]),)
    assert chains(NetworkSnapshot((found,), tuple(bridges(found, 0)), members))["ingress_0"] == [
        "counter drop"
    ]


RULES = st.lists(
    st.fixed_dictionaries(
        {
            "direction": st.sampled_from(["ingress", "egress"]),
            "access": st.sampled_from(["allow", "deny"]),
            "protocol": st.sampled_from(["any", "tcp", "udp"]),
            "ports": st.lists(st.sampled_from([22, 80]), max_size=2),
            "cidrs": st.lists(
                st.sampled_from(["0.0.0.0/0", "10.128.0.0/24", "10.128.0.5/32", "10.9.0.0/16"]), max_size=2
            ),
            "groups": st.lists(st.sampled_from(["first", "second", "gone"]), max_size=2),
            "stateful": st.booleans(),
            "priority": st.just(500),
        }
    ),
    max_size=4,
)
MEMBERSHIP = st.lists(st.sampled_from(["first", "second"]), unique=True)


@given(RULES, RULES, MEMBERSHIP, MEMBERSHIP, st.sampled_from(["tcp", "udp"]), st.sampled_from([22, 80, 443]))
def test_rendered_rules_mean_what_the_groups_say(
    first: list[Any], second: list[Any], sends: list[str], receives: list[str], protocol: str, port: int
) -> None:
    found = network("net-a", 128, {"first": first, "second": second})
    sender, receiver = (
        member("a", "net-a", "10.128.0.5", sends),
        member("b", "net-a", "10.128.1.6", receives),
    )
    state = NetworkSnapshot((found,), tuple(bridges(found, 0)), (sender, receiver))
    text = chains(state)
    passes = _verdict(text, "egress", sender, receiver, protocol, port) and _verdict(
        text, "ingress", receiver, sender, protocol, port
    )
    assert passes is may_connect(found, state.members, sender, receiver, protocol, port)


def _verdict(
    text: dict[str, list[str]], direction: str, of: Member, peer: Member, protocol: str, port: int
) -> bool:
    """Return the verdict of this interface's chain on a packet, read word by word."""
    (elements,) = [line for line in text[f"{direction}_of"] if line.startswith("elements")]
    chain = re.search(rf"{of.interface.address} : goto (\w+)", elements)
    assert chain
    for line in text[chain[1]]:
        match = re.fullmatch(
            r"(?:ip [sd]addr (?:@(\w+)|\{ (.*?) \}) ?)?(?:meta l4proto (tcp|udp|icmp|\{ tcp, udp \}) ?)?"
            r"(?:th dport \{ (.*?) \} ?)?(counter drop|accept|goto keep_\w+)",
            line,
        )
        assert match, line
        group, ranges, l4, ports, verdict = match.groups()
        address = peer.interface.address
        if group and not any(str(address) in _elements(entry) for entry in text[group]):
            continue
        if ranges and not any(address in IPv4Network(each) for each in ranges.split(", ")):
            continue
        if (l4 and protocol not in l4) or (ports and str(port) not in ports.split(", ")):
            continue
        return verdict != "counter drop"
    raise AssertionError("a chain has no end")


def _elements(line: str) -> list[str]:
    return re.findall(r"[\d.]+", line) if line.startswith("elements") else []


def test_public_addresses_are_one_to_one() -> None:
    assert snapshot().public_addresses() == {IPv4Address("203.0.113.5"): IPv4Address("10.128.0.5")}
    text = chains(snapshot())
    assert "elements = { 203.0.113.5 : 10.128.0.5 }" in text["to_private"]
    assert "elements = { 10.128.0.5 : 203.0.113.5 }" in text["to_public"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo Operation not permitted >&2; exit 1", "could not be loaded: Operation not permitted. Kernel"),
        ("exit 3", "could not be loaded: nft ended with exit code 3 and gave no reason. Kernel"),
        ("kill -9 $$", "could not be loaded: nft was killed by signal 9 and gave no reason. Kernel"),
    ],
)
async def test_rules_that_are_not_loaded_have_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    (tmp_path / "nft").write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    (tmp_path / "nft").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(EngineError, match=why):
        await load("flush ruleset")
