"""VPC-01: the guest takes the pod's place on its network."""

import subprocess

import pytest
from launcher import network
from launcher.desired import parse_machine


def test_wiring_golden(desired):
    assert network.wiring(parse_machine(desired).interface, 1400) == [
        "ip address flush dev eth0",
        "ip link set dev eth0 up",
        "ip tuntap add dev tap0 mode tap vnet_hdr",
        "ip link set dev tap0 mtu 1400",
        "ip address replace 169.254.169.254/32 dev tap0",
        "ip link set dev tap0 up",
        "ip route replace 10.128.0.5/32 dev tap0 src 169.254.169.254",
        "tc qdisc add dev eth0 ingress",
        "tc qdisc add dev tap0 ingress",
        "tc filter add dev eth0 ingress protocol all prio 9 u32 match u32 0 0"
        " action mirred egress redirect dev tap0",
        "tc filter add dev tap0 ingress protocol arp prio 1 u32"
        " match u32 0xa9fea9fe 0xffffffff at 24 flowid :1",
        "tc filter add dev tap0 ingress protocol ip prio 2 u32 match ip dst 169.254.169.254/32 flowid :1",
        "tc filter add dev tap0 ingress protocol all prio 9 u32 match u32 0 0"
        " action mirred egress redirect dev eth0",
    ]


def test_a_pod_without_the_interface(desired):
    desired["interface"]["name"] = "eth99"
    with pytest.raises(network.NetworkError, match="no interface eth99"):
        network.connect(parse_machine(desired).interface)


def test_a_command_that_fails_names_what_is_needed(desired, monkeypatch):
    def refuse(command, **_):
        return subprocess.CompletedProcess(command, 2, "", "Operation not permitted")

    monkeypatch.setattr(network, "mtu_of", lambda interface: 1500)
    monkeypatch.setattr(network.subprocess, "run", refuse)
    with pytest.raises(network.NetworkError, match=r"flush dev eth0` failed: Operation not .* NET_ADMIN"):
        network.connect(parse_machine(desired).interface)
