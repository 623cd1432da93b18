"""`neo up --public-interface`: what cannot work is refused before anything starts."""

import socket
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from neocloud.cli.machine import public_addresses
from neocloud.cli.machine.public_addresses import check_public_interface
from neocloud.client.errors import ClientError
from neocloud.control_plane.settings_file import read_settings
from neocloud.settings.option_values import interface_name
from neocloud.settings.settings import Settings
from tests.fast.cli.conftest import Neo

Address = namedtuple("Address", "family address netmask")
GIVEN = {"public_interface", "public_pool"}
SETTINGS = Settings(home=Path("/nowhere"), public_interface="eth0", public_pool="192.0.2.224/28")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in two networks, on which another cloud has a public address."""
    addresses = {
        "lo": [("127.0.0.1", "255.0.0.0")],
        "lo:nc123456": [("192.0.2.230", "255.255.255.255")],
        "eth0": [("192.0.2.7", "255.255.255.0")],
        "eth1": [("198.51.100.7", "255.255.255.0")],
    }
    found = {
        name: [Address(socket.AF_INET, *each) for each in of_name] for name, of_name in addresses.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    why = "there is no network interface {} on this host"
    monkeypatch.setattr(
        public_addresses, "why_no_arp", lambda name: "" if name == "eth0" else why.format(name)
    )


def test_a_part_of_the_network_that_nobody_uses_is_taken(host: None) -> None:
    check_public_interface(SETTINGS, GIVEN)
    check_public_interface(replace(SETTINGS, public_pool="198.51.100.240/28"), GIVEN)
    check_public_interface(replace(SETTINGS, public_interface="", public_pool="192.0.2.0/24"), GIVEN)


def test_a_cloud_starts_again_although_its_interface_is_gone(host: None) -> None:
    check_public_interface(replace(SETTINGS, public_interface="eth9"), {"listen"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"public_interface": "eth9"}, "there is no network interface eth9"),
        ({"public_pool": ""}, "needs the range of public addresses"),
        ({"public_pool": "192.0.2.0/29"}, "contains 192.0.2.7, this host's own address on eth0"),
        ({"public_pool": "198.51.100.0/28"}, "contains 198.51.100.7, this host's own address on eth1"),
        ({"public_pool": "192.0.2.240/28"}, "contains 192.0.2.255, the broadcast address of eth0"),
        ({"public_pool": "192.0.2.0/30"}, "contains 192.0.2.0, the address of the network of eth0"),
        ({"emulator": True}, "is for a real cloud"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_work_is_refused(host: None, changes: dict[str, object], why: str) -> None:
    with pytest.raises(ClientError, match=why):
        check_public_interface(replace(SETTINGS, **changes), GIVEN)


@pytest.mark.parametrize(
    "text", ['eth0"; flush ruleset; #', "../lo", "eth 0", "-x", "eth0\n", "ä0", "x" * 16, "eth0/1", "."]
)
def test_names_that_are_none_are_refused(text: str) -> None:
    """They are a part of firewall rules and of paths."""
    with pytest.raises(ValueError, match="not the name of a network interface"):
        interface_name(text)


def test_names_of_interfaces() -> None:
    assert [interface_name(text) for text in ("eth0", "enp0s31f6.100", "br-lan_1", "none")] == [
        *("eth0", "enp0s31f6.100", "br-lan_1"),
        "",
    ]


def test_up_refuses_before_it_builds_or_starts_anything(
    neo: Neo, user_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise AssertionError("it continued")

    monkeypatch.setattr("neocloud.cli.commands.up.check_machine", fail)
    ran = neo("up", "--public-interface", "missing0", "--public-pool", "192.0.2.224/28")
    assert ran.code == 2
    assert "there is no network interface missing0 on this host. Choose one of those" in ran.err
    assert read_settings(user_folders / "state").public_interface == ""
