"""Public addresses on the network of one interface, where other machines find them by ARP.

The kernel answers ARP requests for each of its addresses on every interface. Where the operator names an
interface, a table of ours lets requests for public addresses pass on that one alone, and only for addresses
that no other machine answered for. An address that is new there, or leads to another pod, is announced. When
the link of the interface was down, other machines may have taken addresses: each is asked for again. Machines
that use an address which is announced here are heard, told that it is ours, and named in `neo status`.

Nothing is recorded. The addresses on the loopback interface and the table stay when the server dies, and the
next engine takes them over; after a reboot it asks for each address before it uses it again.
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from neocloud.core.ethernet import Card, find_card, why_no_arp
from neocloud.engines.base import EngineError
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network import arp
from neocloud.engines.podman.network.security_rules import rendered_chain, rendered_set

logger = logging.getLogger(__name__)

FREE_SECONDS, TAKEN_SECONDS = 30.0, 10.0
"""How long it counts that no other machine has an address, and that one has it."""
WARN_SECONDS = 150.0
"""How long a conflict is shown after it was seen last. Addresses in use are asked for once a minute."""
DEFEND_SECONDS = 10.0
"""How often an address is announced at most because another machine uses it (RFC 5227, section 2.4)."""
_OPTIONS = Path("/proc/sys/net/ipv4/conf")
_IGNORED = (1, 2, 8)
"""Values of `arp_ignore` with which the kernel does not answer for addresses of the loopback interface."""
_TABLE = re.compile(r"table (\S+ \S+) \{")
_DROPPING_CHAIN = re.compile(r"hook forward .*policy drop")
_ACCEPTS_TRANSLATED = re.compile(r"ct (status|state) .*\bdnat\b.*accept", re.IGNORECASE)


@dataclass(frozen=True)
class _Answer:
    at: float
    mac: str
    """MAC of the machine that has the address; "" when there was no answer."""

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.at < (TAKEN_SECONDS if self.mac else FREE_SECONDS)


class PublicInterface:
    """The interface on which public addresses are announced, if the operator named one."""

    def __init__(self, layout: Layout, name: str = "") -> None:
        self.name = name
        self._table = layout.table
        self._card: Card | None = None
        self._answers: dict[IPv4Address, _Answer] = {}
        self._announced: set[IPv4Address] = set()
        """Addresses for which requests are answered."""
        self._due: set[IPv4Address] = set()
        """Addresses that are still to be announced."""
        self._claims: dict[IPv4Address, _Answer] = {}
        """Other machines that use announced addresses, heard since these were announced."""
        self._defended: dict[IPv4Address, float] = {}
        self._listener: arp.Listener | None = None
        self._is_new = True
        self._forward_warning = ""
        self._warning_until = 0.0

    async def require_free(self, address: IPv4Address) -> None:
        """Raise EngineError if another machine on the interface has the address."""
        if not self.name or address in self._announced:
            return
        if not self._is_known(address):
            await self._ask(find_card(self.name), {address})
        if self._has_conflict(address):
            raise EngineError(
                f"Public address {address} is in use by another machine on the network of this host. It is"
                " not taken from it: use another public address, or have the operator free this one."
            )

    async def settle(
        self, wanted: Collection[IPv4Address], held: Collection[IPv4Address]
    ) -> frozenset[IPv4Address]:
        """Decide which addresses are answered for, and return those that other machines have.

        `held` are on the loopback interface already: a new engine takes them over without asking.
        """
        if not self.name:
            return frozenset()
        released = self._announced.difference(wanted)
        self._announced -= released
        if self._is_new:
            released |= set(held)
            self._is_new = False
        now = time.monotonic()
        self._answers |= {address: _Answer(now, "") for address in released}
        card = find_card(self.name)
        self._follow(card)
        unknown = set(wanted) - self._announced
        await self._ask(card, {address for address in unknown if not self._is_known(address)})
        taken = {address for address in unknown if self._has_conflict(address)}
        if card:
            new = {address for address in unknown - taken if self._is_known(address)}
            self._announced |= new
            self._due |= new
        self._listen()
        self._answers = {a: b for a, b in self._answers.items() if a in taken or b.is_fresh}
        return frozenset(taken)

    def render(self, public: Iterable[IPv4Address]) -> str:
        """Return the table that keeps answers for public addresses on this interface; "" without one."""
        if not self.name:
            return ""
        lines = [
            f"table arp {self._table}",
            f"delete table arp {self._table}",
            f"table arp {self._table} {{",
            *rendered_set("public", "ipv4_addr", public),
            *rendered_set("announced", "ipv4_addr", self._announced),
            *rendered_chain(
                "input",
                "type filter hook input priority 0; policy accept;",
                "arp operation != request accept",
                "arp daddr ip != @public accept",
                f'iifname "{self.name}" arp daddr ip @announced accept',
                "counter drop",
            ),
            "}",
        ]
        return "\n".join(lines) + "\n"

    async def announce(self, moved: Iterable[IPv4Address] = ()) -> None:
        """Announce the addresses that are new on the interface, and those that lead to another pod now."""
        self._due = self._announced.intersection(self._due.union(moved))
        if not self._due or not self._card or not self._card.is_up:
            return
        chosen = sorted(self._due)
        try:
            await asyncio.to_thread(arp.announce, self.name, chosen)
        except OSError as error:
            logger.warning("Public addresses could not be announced on %s: %s", self.name, error)
            return
        logger.info("Announced %s on %s", ", ".join(map(str, chosen)), self.name)
        self._due.clear()

    def close(self) -> None:
        """Stop listening for other machines, until addresses are decided on again."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None

    async def remove_table(self) -> None:
        """Remove the table, if there is one."""
        await _nft("delete", "table", "arp", self._table)

    def details(self) -> dict[str, str]:
        """Return what `neo status` shows."""
        if not self.name:
            return {}
        shown = ", ".join(map(str, sorted(self._announced)))
        return {f"public addresses on {self.name}": shown or "none"}

    async def warnings(self) -> list[str]:
        """Return what keeps other machines from public addresses."""
        if not self.name:
            return []
        if time.monotonic() > self._warning_until:
            self._forward_warning = await _find_dropping_firewall()
            self._warning_until = time.monotonic() + FREE_SECONDS
        conflicts = [self._conflict_warning(), self._claim_warning()]
        found = [self._interface_warning(), *conflicts, *_kernel_warnings(self.name)]
        return [each for each in (*found, self._forward_warning) if each]

    def _follow(self, card: Card | None) -> None:
        """Note what the interface is now. After a change of it or its link, addresses are asked for again."""
        before, self._card = self._card, card
        is_same = card and before and (card.number, card.mac) == (before.number, before.mac)
        if not is_same:
            self.close()
            self._announced.clear()
        elif card and before and card.is_up and (not before.is_up or card.changes != before.changes):
            self._answers = {a: b for a, b in self._answers.items() if a not in self._announced}
            self._announced.clear()

    def _listen(self) -> None:
        """Listen for other machines as long as addresses are announced."""
        self._claims = {a: b for a, b in self._claims.items() if a in self._announced}
        self._defended = {a: b for a, b in self._defended.items() if a in self._announced}
        if not self._announced or self._card is None:
            self.close()
        elif self._listener is None:
            try:
                self._listener = arp.Listener(self.name, self._hear)
            except OSError as error:
                logger.warning("Other machines on %s are not heard: %s", self.name, error)

    def _hear(self, message: arp.Message) -> None:
        """Note that another machine uses an address of ours, and announce the address, now and then."""
        address, now = message.sender, time.monotonic()
        if address not in self._announced:
            return
        known = self._claims.get(address)
        self._claims[address] = _Answer(now, message.sender_mac)
        if known is None or now - known.at > WARN_SECONDS:
            logger.warning(
                "Public address %s is used on %s by %s, too", address, self.name, message.sender_mac
            )
        if now - self._defended.get(address, -DEFEND_SECONDS) < DEFEND_SECONDS:
            return
        self._defended[address] = now
        try:
            arp.announce(self.name, [address])
        except OSError as error:
            logger.warning("Public addresses could not be announced on %s: %s", self.name, error)

    def _is_known(self, address: IPv4Address) -> bool:
        answer = self._answers.get(address)
        return answer is not None and answer.is_fresh

    async def _ask(self, card: Card | None, addresses: set[IPv4Address]) -> None:
        """Probe for addresses. Those that cannot be asked for now stay unknown, and are not announced."""
        if card is None or not card.is_up or not addresses:
            return
        try:
            found = await asyncio.to_thread(arp.probe, self.name, addresses)
        except OSError as error:
            logger.warning("Cannot ask for public addresses on %s: %s", self.name, error)
            return
        now = time.monotonic()
        for address in addresses:
            mac = found.get(address, "")
            if mac and not self._has_conflict(address):
                logger.warning("Public address %s is in use on %s by %s", address, self.name, mac)
            self._answers[address] = _Answer(now, mac)

    def _has_conflict(self, address: IPv4Address) -> bool:
        answer = self._answers.get(address)
        return answer is not None and bool(answer.mac)

    def _interface_warning(self) -> str:
        problem = why_no_arp(self.name)
        card = find_card(self.name)
        if not problem and not (card and card.is_up):
            problem = f"{self.name} is down"
        consequence = "Public addresses are not announced, and other machines do not reach them"
        return f"{consequence}: {problem}." if problem else ""

    def _conflict_warning(self) -> str:
        seen_since = time.monotonic() - WARN_SECONDS
        found = self._answers.items()
        taken = {address: answer.mac for address, answer in found if answer.mac and answer.at > seen_since}
        if not taken:
            return ""
        shown = _listed(taken)
        return (
            f"Other machines on {self.name} have public addresses of this cloud: {shown}. They are not"
            " announced; free them there, or keep the range of public addresses out of DHCP."
        )

    def _claim_warning(self) -> str:
        seen_since = time.monotonic() - WARN_SECONDS
        claims = {
            address: answer.mac
            for address, answer in self._claims.items()
            if answer.at > seen_since and address in self._announced
        }
        if not claims:
            return ""
        return (
            f"Other machines on {self.name} use public addresses that are announced there by this cloud:"
            f" {_listed(claims)}. Connections to them may reach the wrong machine: free them there, or keep"
            " the range of public addresses out of DHCP."
        )


def _listed(machines: Mapping[IPv4Address, str]) -> str:
    return ", ".join(f"{address} ({machines[address]})" for address in sorted(machines))


def _kernel_warnings(name: str) -> list[str]:
    found: list[str] = []
    ignored = max(_option("all", "arp_ignore"), _option(name, "arp_ignore"))
    if ignored in _IGNORED:
        found.append(
            f"The kernel does not answer ARP requests for public addresses: net.ipv4.conf.all.arp_ignore or"
            f" net.ipv4.conf.{name}.arp_ignore is {ignored}. Set both to 0 with sysctl."
        )
    if (_OPTIONS / name).exists() and not _option(name, "forwarding"):
        found.append(
            f"The kernel does not forward packets from {name} to public addresses:"
            f" set net.ipv4.conf.{name}.forwarding to 1 with sysctl."
        )
    return found


def _option(interface: str, name: str) -> int:
    try:
        return int((_OPTIONS / interface / name).read_text())
    except (OSError, ValueError):
        return 0


async def _find_dropping_firewall() -> str:
    """Return a warning if another firewall drops forwarded packets by default, as Docker's and ufw's do."""
    table = ""
    for line in (await _nft("list", "chains")).splitlines():
        if found := _TABLE.match(line.strip()):
            table = found[1]
            continue
        if not _DROPPING_CHAIN.search(line):
            continue
        if not _ACCEPTS_TRANSLATED.search(await _nft("list", "table", *table.split())):
            return (
                f"A firewall of this host (`nft list table {table}`) drops forwarded packets by default."
                " Unless a rule there accepts them, other machines do not reach public addresses. Such a"
                " rule: iptables -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"
            )
    return ""


async def _nft(*arguments: str) -> str:
    """Return what nft prints; "" when it fails, as for a table that is not there."""
    process = await asyncio.create_subprocess_exec(
        "nft", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace") if process.returncode == 0 else ""
