"""Network interfaces of this host, as the kernel shows them, and whether addresses are found there by ARP."""

from dataclasses import dataclass
from pathlib import Path

LINKS = Path("/sys/class/net")
_TYPE = 1  # ARPHRD_ETHER
_NO_ARP = 0x80


@dataclass(frozen=True)
class Card:
    """An interface as it is now; one that is removed and comes back has another number."""

    number: int
    mac: str
    is_up: bool
    changes: int = 0
    """How often its link came or went, so that one that did both meanwhile is noticed."""


def why_no_arp(name: str, links: Path = LINKS) -> str:
    """Return why this host cannot answer ARP requests on the interface; "" if it can, once it is up."""
    link = links / name
    flags, kind = _number(link / "flags"), _number(link / "type")
    if flags is None or kind is None:
        return f"there is no network interface {name} on this host"
    if kind != _TYPE or flags & _NO_ARP:
        return f"{name} is not an Ethernet interface, so other machines cannot find addresses on it by ARP"
    if (link / "master").exists():
        master = (link / "master").resolve().name
        return f"{name} is a port of {master}, which receives its ARP requests; name {master} instead"
    return ""


def find_card(name: str, links: Path = LINKS) -> Card | None:
    """Return the interface; None if it is missing, or cannot answer ARP requests."""
    link = links / name
    number = _number(link / "ifindex")
    if number is None or why_no_arp(name, links):
        return None
    try:
        mac = (link / "address").read_text().strip()
    except OSError:
        return None
    changes = _number(link / "carrier_changes") or 0
    return Card(number, mac, is_up=_number(link / "carrier") == 1, changes=changes)


def _number(file: Path) -> int | None:
    """Return the number in a file; None if there is none, as for the carrier of an interface that is off."""
    try:
        return int(file.read_text(), 0)
    except (OSError, ValueError):
        return None
