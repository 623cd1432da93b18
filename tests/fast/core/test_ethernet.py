"""On which interfaces of a host other machines find an address by ARP."""

from pathlib import Path

import pytest

from neocloud.core.ethernet import Card, find_card, why_no_arp

MAC = "52:54:00:00:00:01"


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """Build a copy of /sys/class/net: a card, the loopback interface, a tunnel, a bridge with its port, and
    cards without a cable and off.
    """
    for number, (name, kind, flags, carrier) in enumerate(
        [
            ("eth0", 1, 0x1003, "1"),
            ("lo", 772, 0x9, "1"),
            ("wg0", 65534, 0x91, "1"),
            ("br0", 1, 0x1003, "1"),
            ("eth1", 1, 0x1003, "1"),
            ("eth2", 1, 0x1003, "0"),
            ("eth3", 1, 0x1002, ""),
        ],
        1,
    ):
        (tmp_path / name).mkdir()
        values = {"ifindex": number, "type": kind, "flags": hex(flags), "carrier": carrier, "address": MAC}
        for file, value in values.items():
            (tmp_path / name / file).write_text(f"{value}\n")
    (tmp_path / "eth1" / "master").symlink_to(tmp_path / "br0")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("eth9", "there is no network interface eth9"),
        ("lo", "no Ethernet interface"),
        ("wg0", "no Ethernet interface"),
        ("eth1", "a port of br0, which receives its ARP requests; name br0"),
    ],
)
def test_interfaces_that_cannot_answer_say_why(links: Path, name: str, why: str) -> None:
    assert why in why_no_arp(name, links)
    assert find_card(name, links) is None


@pytest.mark.parametrize(
    ("name", "number", "is_up"), [("eth0", 1, True), ("br0", 4, True), ("eth2", 6, False), ("eth3", 7, False)]
)
def test_cards_say_whether_they_work(links: Path, name: str, number: int, is_up: bool) -> None:
    assert why_no_arp(name, links) == ""
    assert find_card(name, links) == Card(number, MAC, is_up)
