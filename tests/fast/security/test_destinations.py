"""Addresses to which no caller may have the cloud connect."""

from ipaddress import ip_network

import pytest

from neocloud.core.destinations import (
    METADATA_ADDRESSES,
    PRIVATE_NETWORKS,
    is_allowed_destination,
    is_loopback,
)


@pytest.mark.parametrize(
    "address",
    [
        *map(str, METADATA_ADDRESSES),
        "127.0.0.1", "127.255.0.9", "0.0.0.0", "10.1.2.3", "172.31.255.255", "192.168.0.1", "100.64.0.1",
        "169.254.0.1", "192.0.0.8", "198.19.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
        "::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0a00:1", "::10.0.0.1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::10.0.0.1", "2002:7f00:1::", "2002:a00:1::1", "fe80::1%eth0",
        "", "localhost", "0x7f000001", "127.1", "2130706433",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed_destination(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "172.32.0.1", "100.128.0.1", "168.63.129.17", "2606:4700::1", "64:ff9b::101:101"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed_destination(address)


def test_the_operator_opens_networks() -> None:
    opened = (ip_network("10.5.0.0/16"), ip_network("fd00::/8"))
    assert is_allowed_destination("10.5.1.1", opened)
    assert is_allowed_destination("fd00::1", opened)
    assert not is_allowed_destination("10.6.0.1", opened)
    assert is_allowed_destination("::ffff:10.5.1.1", opened)
    assert not is_allowed_destination("::ffff:10.6.0.1", opened)


def test_metadata_addresses_are_opened_one_by_one_only() -> None:
    for address in METADATA_ADDRESSES:
        wide = (*PRIVATE_NETWORKS, ip_network("0.0.0.0/0"), ip_network("::/0"))
        assert not is_allowed_destination(address, wide)
        assert is_allowed_destination(address, (ip_network(address),))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.9.9.9", True),
        ("10.0.0.1", False),
        ("localhost", False),
    ],
)
def test_loopback_is_told_from_the_address(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected
