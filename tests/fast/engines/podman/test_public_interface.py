"""Announcements of public addresses on the operator's interface, whatever happens to it and beside it."""

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.core.ethernet import Card
from neocloud.engines.base import EngineError
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network import arp, public_interface
from neocloud.engines.podman.network.public_interface import (
    DEFEND_SECONDS,
    FREE_SECONDS,
    TAKEN_SECONDS,
    WARN_SECONDS,
    PublicInterface,
)

LAYOUT = Layout.of(Path("/var/lib/neocloud"))
OURS, THEIRS = "52:54:00:00:00:01", "52:54:00:00:00:02"
A, B = IPv4Address("192.0.2.201"), IPv4Address("192.0.2.202")
NO_ADDRESS = IPv4Address(0)


@dataclass
class Lan:
    """A stand-in for the interface and the machines on it."""

    card: Card | None = Card(7, OURS, is_up=True)
    others: dict[IPv4Address, str] = field(default_factory=dict)
    asked: list[set[IPv4Address]] = field(default_factory=list)
    announced: list[list[IPv4Address]] = field(default_factory=list)
    seconds: float = 1000.0
    failure: OSError | None = None
    chains: str = ""
    rules: str = ""
    ears: list["Ear"] = field(default_factory=list)

    def probe(self, interface: str, addresses: Iterable[IPv4Address]) -> dict[IPv4Address, str]:
        if self.failure:
            raise self.failure
        self.asked.append(set(addresses))
        return {address: mac for address, mac in self.others.items() if address in self.asked[-1]}

    def announce(self, interface: str, addresses: Iterable[IPv4Address]) -> None:
        if self.failure:
            raise self.failure
        self.announced.append(list(addresses))

    def listener(self, interface: str, heard: Callable[[arp.Message], None]) -> "Ear":
        if self.failure:
            raise self.failure
        return Ear(self, heard)

    def use(self, address: IPv4Address, mac: str = THEIRS) -> None:
        """Another machine uses the address."""
        message = arp.read_message(arp.frame(mac, address, B))
        assert message is not None
        for ear in list(self.ears):
            ear.heard(message)

    async def nft(self, *arguments: str) -> str:
        return self.chains if arguments == ("list", "chains") else self.rules


class Ear:
    """In place of the listener."""

    def __init__(self, lan: Lan, heard: Callable[[arp.Message], None]) -> None:
        self._lan, self.heard = lan, heard
        lan.ears.append(self)

    def close(self) -> None:
        self._lan.ears.remove(self)


@pytest.fixture
def lan(monkeypatch: pytest.MonkeyPatch) -> Lan:
    lan = Lan()
    monkeypatch.setattr(arp, "probe", lan.probe)
    monkeypatch.setattr(arp, "announce", lan.announce)
    monkeypatch.setattr(arp, "Listener", lan.listener)
    monkeypatch.setattr(public_interface, "find_card", lambda name: lan.card)
    monkeypatch.setattr(public_interface, "why_no_arp", lambda name: "" if lan.card else f"no {name}")
    monkeypatch.setattr(public_interface, "time", SimpleNamespace(monotonic=lambda: lan.seconds))
    monkeypatch.setattr(public_interface, "_nft", lan.nft)
    return lan


@pytest.fixture
def interface(lan: Lan) -> PublicInterface:
    return PublicInterface(LAYOUT, "eth0")


async def sync(interface: PublicInterface, *wanted: IPv4Address, held: Iterable[IPv4Address] = ()) -> str:
    """Synchronise as the engine does; return the addresses that are answered for."""
    withheld = await interface.settle(wanted, list(held))
    rules = interface.render(address for address in wanted if address not in withheld)
    await interface.announce()
    return rules.partition("set announced {")[2].partition("}")[0].partition("{")[2].strip()


async def test_without_an_interface_nothing_is_asked_loaded_or_announced(lan: Lan) -> None:
    interface = PublicInterface(LAYOUT)
    await interface.require_free(A)
    assert await sync(interface, A) == ""
    assert (interface.render([A]), interface.details(), await interface.warnings()) == ("", {}, [])
    assert lan.asked == lan.announced == []


async def test_address_is_asked_for_before_it_is_announced_and_once(lan: Lan, interface) -> None:
    await interface.require_free(A)
    assert await sync(interface, A) == str(A)
    assert await sync(interface, A) == str(A)
    assert (lan.asked, lan.announced) == ([{A}], [[A]])
    assert await sync(interface, A, B) == f"{A}, {B}"
    assert (lan.asked, lan.announced) == ([{A}, {B}], [[A], [B]])
    assert interface.details() == {"public addresses on eth0": f"{A}, {B}"}


def test_requests_are_answered_on_the_interface_alone() -> None:
    lines = [line.strip() for line in PublicInterface(LAYOUT, "eth0").render([A]).splitlines()]
    chain = lines[lines.index("chain input {") + 1 : -2]
    assert chain == [
        "type filter hook input priority 0; policy accept;",
        "arp operation != request accept",
        "arp daddr ip != @public accept",
        'iifname "eth0" arp daddr ip @announced accept',
        "counter drop",
    ]


async def test_address_of_another_machine_is_not_taken_from_it(lan: Lan, interface) -> None:
    lan.others = {A: THEIRS}
    with pytest.raises(EngineError, match=f"{A} is in use by another machine") as refused:
        await interface.require_free(A)
    assert THEIRS not in str(refused.value), "tenants read it"
    assert await interface.settle([A, B], []) == {A}
    assert f"elements = {{ {B} }}" in interface.render([B])
    assert any(f"{A} ({THEIRS})" in warning for warning in await interface.warnings())
    lan.seconds += TAKEN_SECONDS
    lan.others = {}
    assert await sync(interface, A, B) == f"{A}, {B}"
    assert lan.announced == [[A, B]]


async def test_a_conflict_that_nobody_asks_about_any_more_is_not_shown(lan: Lan, interface) -> None:
    """The pod that was refused is gone, and no other has a public address."""
    lan.others = {A: THEIRS}
    with pytest.raises(EngineError):
        await interface.require_free(A)
    assert any(THEIRS in warning for warning in await interface.warnings())
    lan.seconds += WARN_SECONDS
    assert not any(THEIRS in warning for warning in await interface.warnings())


async def test_after_a_reboot_an_address_that_was_taken_meanwhile_is_withheld(lan: Lan, interface) -> None:
    lan.others = {B: THEIRS}
    assert await interface.settle([A, B], []) == {B}


async def test_new_engine_takes_over_what_the_kernel_has_without_asking(lan: Lan, interface) -> None:
    """The server died; its addresses have been answered for all the time."""
    lan.others = {A: THEIRS}
    assert await sync(interface, A, B, held=[A, B]) == f"{A}, {B}"
    assert (lan.asked, lan.announced) == ([], [[A, B]])


async def test_released_address_is_answered_for_no_more_and_moves_without_a_pause(
    lan: Lan, interface
) -> None:
    await sync(interface, A, B)
    assert await sync(interface, B) == str(B)
    await interface.require_free(A)
    assert await sync(interface, A, B) == f"{A}, {B}"
    assert (lan.asked, lan.announced) == ([{A, B}], [[A, B], [A]])
    await sync(interface, B)
    lan.seconds += FREE_SECONDS
    lan.others = {A: THEIRS}
    with pytest.raises(EngineError):
        await interface.require_free(A)


async def test_address_that_leads_to_another_pod_is_announced_again(lan: Lan, interface) -> None:
    await sync(interface, A, B)
    await interface.settle([A, B], [A, B])
    await interface.announce([B])
    assert lan.announced == [[A, B], [B]]


async def test_without_the_interface_nothing_is_announced_until_it_is_back(lan: Lan, interface) -> None:
    before, lan.card = lan.card, None
    await interface.require_free(A)
    assert await sync(interface, A) == ""
    assert "other machines do not reach them: no eth0" in (await interface.warnings())[0]
    lan.card = before
    lan.others = {A: THEIRS}
    assert await interface.settle([A], [A]) == {A}, "it was never announced, so another machine may have it"
    lan.others = {}
    lan.seconds += TAKEN_SECONDS
    assert await sync(interface, A) == str(A)
    lan.card = None
    assert await sync(interface, A) == ""


async def test_another_card_of_that_name_is_asked_and_told_again(lan: Lan, interface) -> None:
    await sync(interface, A)
    lan.seconds += FREE_SECONDS
    for card in (Card(8, OURS, is_up=True), Card(8, THEIRS, is_up=True)):
        lan.card = card
        assert await sync(interface, A) == str(A)
        lan.seconds += FREE_SECONDS
    assert (lan.asked, lan.announced) == ([{A}] * 3, [[A]] * 3)


async def test_cable_that_is_pulled_and_plugged_in_again(lan: Lan, interface) -> None:
    """Another machine may have taken an address meanwhile, so each is asked for again."""
    assert lan.card is not None
    await sync(interface, A)
    lan.card = replace(lan.card, is_up=False)
    assert await sync(interface, A, B) == str(A), "nobody could be asked for the new one"
    assert "do not reach them: eth0 is down" in (await interface.warnings())[0]
    lan.card = replace(lan.card, is_up=True)
    assert await sync(interface, A, B) == f"{A}, {B}"
    assert (lan.asked, lan.announced) == ([{A}, {A, B}], [[A], [A, B]])


async def test_address_that_was_taken_while_the_cable_was_out_is_left_to_its_machine(
    lan: Lan, interface
) -> None:
    """Also when nobody looked while it was out."""
    assert lan.card is not None
    await sync(interface, A, B)
    lan.card, lan.others = replace(lan.card, changes=2), {A: THEIRS}
    assert await interface.settle([A, B], [A, B]) == {A}
    await interface.announce()
    assert lan.announced == [[A, B], [B]]
    assert any(f"{A} ({THEIRS})" in warning for warning in await interface.warnings())
    assert await sync(interface, B) == str(B)
    assert lan.asked[1:] == [{A, B}], "the link has not changed since"


async def test_a_machine_that_uses_an_announced_address_is_named_and_answered(lan: Lan, interface) -> None:
    await sync(interface, A)
    lan.use(B)
    lan.use(A)
    (warning,) = [text for text in await interface.warnings() if THEIRS in text]
    assert f"{A} ({THEIRS})" in warning and "may reach the wrong machine" in warning
    assert lan.announced == [[A], [A]], "the address is defended"
    lan.use(A)
    assert len(lan.announced) == 2, "and no more than once in a while"
    lan.seconds += DEFEND_SECONDS
    lan.use(A)
    assert len(lan.announced) == 3
    lan.seconds += WARN_SECONDS
    assert not any(THEIRS in text for text in await interface.warnings())
    assert await sync(interface, A) == str(A), "the pod keeps it"
    await sync(interface)
    assert lan.ears == [], "nothing is announced"


async def test_one_listener_is_there_while_addresses_are_announced(lan: Lan, interface) -> None:
    assert lan.card is not None
    await sync(interface)
    assert lan.ears == []
    await sync(interface, A)
    await sync(interface, A, B)
    (first,) = lan.ears
    lan.card = replace(lan.card, number=8)
    await sync(interface, A, B)
    assert len(lan.ears) == 1 and lan.ears != [first], "of the interface that is there now"
    interface.close()
    interface.close()
    assert lan.ears == []
    lan.card = None
    await sync(interface, A)
    assert lan.ears == []


async def test_interface_that_vanishes_at_the_last_moment_fails_nothing(lan: Lan, interface) -> None:
    lan.failure = OSError(errno.ENODEV, "No such device")
    await interface.require_free(A)
    assert await sync(interface, A) == ""
    lan.failure = None
    assert await sync(interface, A) == str(A)
    lan.failure = OSError(errno.ENETDOWN, "Network is down")
    await interface.announce([A])
    lan.failure = None
    await sync(interface, A)
    assert lan.announced == [[A], [A]]


@pytest.mark.parametrize(
    ("message", "claimed"),
    [
        (arp.frame(THEIRS, A, A, is_reply=True), {A: THEIRS}),
        (arp.frame(THEIRS, A, B), {A: THEIRS}),
        (arp.frame(THEIRS, NO_ADDRESS, A), {A: THEIRS}),
        (arp.frame(OURS, NO_ADDRESS, A), {}),
        (arp.frame(THEIRS, B, A), {}),
        (arp.frame(THEIRS, NO_ADDRESS, B), {}),
        (b"\x00" * 60, {}),
        (arp.frame(THEIRS, A, A)[:-1], {}),
        (arp.frame(THEIRS, A, A).replace(b"\x08\x06", b"\x08\x00"), {}),
    ],
    ids=["reply", "request", "another's probe", "own", "another asks", "other", "zeros", "cut", "no ARP"],
)
def test_messages_that_claim_an_address(message: bytes, claimed: dict[IPv4Address, str]) -> None:
    found = arp.read_message(message)
    assert (arp.claimed(found, OURS, {A}) if found else {}) == claimed


@given(st.binary(max_size=80))
def test_no_frame_of_a_neighbour_is_an_error(content: bytes) -> None:
    arp.read_message(content)
    arp.read_message(arp.frame(THEIRS, A, A)[:14] + content)


CHAINS = """\
table inet neocloud_000000 {
	chain forward {
		type filter hook forward priority filter - 10; policy accept;
	}
}
table ip filter {
	chain FORWARD {
		type filter hook forward priority filter; policy drop;
	}
}
"""


@pytest.mark.parametrize(
    ("chains", "rules", "warned"),
    [
        (CHAINS, "jump DOCKER-USER", True),
        (CHAINS, "ct status dnat counter packets 0 bytes 0 accept", False),
        (CHAINS.replace("policy drop", "policy accept"), "", False),
        ("", "", False),
    ],
)
async def test_firewall_that_drops_what_is_forwarded_is_named(
    lan: Lan, interface: PublicInterface, chains: str, rules: str, warned: bool
) -> None:
    lan.chains, lan.rules = chains, rules
    found = [text for text in await interface.warnings() if "nft list table ip filter" in text]
    assert bool(found) is warned


async def test_kernel_that_does_not_answer_or_forward_is_named(
    lan: Lan, interface: PublicInterface, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"all/arp_ignore": 1, "eth0/arp_ignore": 0, "eth0/forwarding": 0}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(public_interface, "_OPTIONS", tmp_path)
    text = " ".join(await interface.warnings())
    assert "arp_ignore is 1" in text and "net.ipv4.conf.eth0.forwarding to 1" in text
    (tmp_path / "all/arp_ignore").write_text("3\n")
    (tmp_path / "eth0/forwarding").write_text("1\n")
    text = " ".join(await interface.warnings())
    assert "arp_ignore" not in text and "forwarding" not in text
