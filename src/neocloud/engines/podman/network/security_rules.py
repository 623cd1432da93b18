"""Rules for pods on virtual networks: which packets may pass, from which address to which. Rendering is pure.

Text for our tables in `firewall.py`. A packet is checked twice. On *departure*, before any address is
translated, against the rules of its sender; on *arrival*, after all translation, against those of its
receiver, whether it is routed, stays on one bridge or comes from this machine itself. Every packet from the
side that opened a connection is checked, so that the connection ends with the rule that allowed it; replies
pass by a mark that a stateful rule set on the connection.

A second table, of the bridge family, checks source addresses (anti-spoofing), because bridges forward packets
that are never routed: each pod sends only with the MAC and IP address of its own interface. It identifies a
pod by its bridge port, which no other pod can use.

A rule set is loaded as a whole or not at all. Values come from parsed addresses, numbers and checked names.
"""

import asyncio
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from neocloud.engines.base import EngineError
from neocloud.engines.manifest.network_spec import DIRECTIONS, SecurityRule, VirtualNetwork
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network.virtual_networks import NetworkSnapshot, attached_members

PROBE_MARK = 0x4E430001
"""Mark on packets of the engine's own probes; only root can set it."""
_SENT, _RECEIVED, _PUBLIC = 0x10000000, 0x20000000, 0x40000000
"""Bits of a connection's mark: replies pass on the opener's side; on the target's side; it was opened to a
public address."""
_DEPARTURE, _ARRIVAL = -110, 110
"""Before the translation of destinations and after that of sources, both ours and netavark's."""
_TARGETS, _SOURCES = -105, 90
"""Before netavark's translation: the first rule that decides wins."""

Combination = tuple[str, tuple[str, ...]]
"""A network and the security groups of an interface on it."""
_BEFORE_ALL = -300


def render_security_rules(
    snapshot: NetworkSnapshot, ours: str, namespace_ranges: Iterable[IPv4Network]
) -> list[str]:
    """Return sets and chains; `forward` passes packets of members to `from_member` and `to_member`."""
    combinations = _combinations(snapshot)
    lines = [*_addresses(snapshot, namespace_ranges)]
    lines += _groups(snapshot)
    lines += _verdicts(snapshot, combinations)
    for number, combination in enumerate(combinations):
        lines += _interface_chains(snapshot, number, combination)
    lines += rendered_chain("keep_sent", f"ct direction original {_marked(_SENT)}", "accept")
    lines += rendered_chain("keep_received", f"ct direction original {_marked(_RECEIVED)}", "accept")
    lines += _departure()
    lines += _arrival()
    lines += _from_member(snapshot)
    lines += _to_member(ours)
    return lines + _translation(snapshot, ours)


def _combinations(snapshot: NetworkSnapshot) -> list[Combination]:
    found = {(m.interface.network, m.interface.security_groups) for m, _ in attached_members(snapshot)}
    return sorted(found)


def _addresses(snapshot: NetworkSnapshot, namespace_ranges: Iterable[IPv4Network]) -> Iterator[str]:
    members = list(attached_members(snapshot))
    public = snapshot.public_addresses()
    ranges = [*namespace_ranges, *(bridge.cidr for bridge in snapshot.bridges)]
    cards = (f'"{b.interface}" . {m.interface.mac} . {m.interface.address}' for m, b in members)
    yield from rendered_set("subnet_bridges", "ifname", (f'"{b.interface}"' for b in snapshot.bridges))
    yield from rendered_set("cards", "ifname . ether_addr . ipv4_addr", cards)
    yield from rendered_set("own_ranges", "ipv4_addr", ranges, ranges=True)
    yield from rendered_set("public", "ipv4_addr", public)
    yield from rendered_map("to_private", "ipv4_addr : ipv4_addr", (f"{p} : {a}" for p, a in public.items()))
    yield from rendered_map("to_public", "ipv4_addr : ipv4_addr", (f"{a} : {p}" for p, a in public.items()))
    same = (f"{m.interface.address} : {m.interface.address}" for m, _ in members)
    yield from rendered_map("unchanged", "ipv4_addr : ipv4_addr", same)


def _groups(snapshot: NetworkSnapshot) -> Iterator[str]:
    for network in snapshot.networks:
        for number, group in enumerate(network.groups):
            yield from rendered_set(
                _group_set(snapshot, network, number),
                "ipv4_addr",
                _addresses_in(snapshot, network, group.name),
            )


def _addresses_in(snapshot: NetworkSnapshot, network: VirtualNetwork, group: str) -> list[IPv4Address]:
    return [
        member.interface.address
        for member, _ in attached_members(snapshot)
        if member.interface.network == network.namespace and group in member.interface.security_groups
    ]


def _group_set(snapshot: NetworkSnapshot, network: VirtualNetwork, number: int) -> str:
    return f"group_{snapshot.networks.index(network)}_{number}"


def _verdicts(snapshot: NetworkSnapshot, combinations: list[Combination]) -> Iterator[str]:
    for direction in DIRECTIONS:
        entries = (
            f"{m.interface.address} : goto "
            + _chain(direction, combinations.index((m.interface.network, m.interface.security_groups)))
            for m, _ in attached_members(snapshot)
        )
        yield from rendered_map(f"{direction}_of", "ipv4_addr : verdict", entries)


def _chain(direction: str, number: int) -> str:
    return f"{direction}_{number}"


def _interface_chains(snapshot: NetworkSnapshot, number: int, combination: Combination) -> Iterator[str]:
    namespace, groups = combination
    network = next(network for network in snapshot.networks if network.namespace == namespace)
    for direction in DIRECTIONS:
        rules = network.rules_of(groups, direction)
        lines = [line for rule in rules for line in _rule(snapshot, network, rule)]
        yield from rendered_chain(_chain(direction, number), *lines, "counter drop")


def _rule(snapshot: NetworkSnapshot, network: VirtualNetwork, rule: SecurityRule) -> Iterator[str]:
    incoming = rule.direction == "ingress"
    verdict = "counter drop"
    if rule.access == "allow":
        verdict = "accept" if not rule.stateful else "goto keep_received" if incoming else "goto keep_sent"
    side = "ip saddr" if incoming else "ip daddr"
    for peer in _peers(snapshot, network, rule, side):
        yield " ".join(part for part in (peer, _protocol(rule), verdict) if part)


def _peers(
    snapshot: NetworkSnapshot, network: VirtualNetwork, rule: SecurityRule, side: str
) -> Iterator[str]:
    if not rule.cidrs and not rule.groups:
        yield ""
    if any(cidr.prefixlen == 0 for cidr in rule.cidrs):
        yield ""
    elif rule.cidrs:
        yield f"{side} {listed(sorted(_collapsed(rule.cidrs)))}"
    known = [group.name for group in network.groups]
    for name in rule.groups:
        if name in known:
            yield f"{side} @{_group_set(snapshot, network, known.index(name))}"


def _collapsed(cidrs: Iterable[IPv4Network]) -> list[IPv4Network]:
    """Return the ranges without those inside others: the kernel refuses overlapping ranges in one set."""
    found: list[IPv4Network] = []
    for cidr in sorted(set(cidrs), key=lambda each: each.prefixlen):
        if not any(cidr.subnet_of(wider) for wider in found):
            found.append(cidr)
    return found


def _protocol(rule: SecurityRule) -> str:
    protocols = {"any": "{ tcp, udp }" if rule.ports else "", "tcp": "tcp", "udp": "udp", "icmp": "icmp"}
    wanted = protocols[rule.protocol]
    match = f"meta l4proto {wanted}" if wanted else ""
    ports = f"th dport {listed(sorted(set(rule.ports)))}" if rule.ports else ""
    return f"{match} {ports}".strip()


def _marked(bit: int) -> str:
    return f"ct mark set ct mark or {bit:#x}"


def _departure() -> list[str]:
    return rendered_chain(
        "departure",
        f"type filter hook prerouting priority {_DEPARTURE}; policy accept;",
        "iifname != @subnet_bridges accept",
        "iifname . ether saddr . ip saddr @cards jump allowed_to_leave",
        "counter drop",
    ) + rendered_chain(
        "allowed_to_leave",
        "ct state related accept",
        f"ct direction reply ct mark and {_RECEIVED:#x} != 0 accept",
        "ip saddr vmap @egress_of",
    )


def _arrival() -> list[str]:
    return rendered_chain(
        "arrival",
        f"type filter hook postrouting priority {_ARRIVAL}; policy accept;",
        "oifname != @subnet_bridges accept",
        f"meta mark {PROBE_MARK:#x} goto keep_received",
        # The connection came through a port that the pod's manifest publishes on this machine.
        f"ct direction original ct status dnat ct mark and {_PUBLIC:#x} == 0 goto keep_received",
        "ct state related accept",
        f"ct direction reply ct mark and {_SENT:#x} != 0 accept",
        "ip daddr vmap @ingress_of",
        "counter drop",
    )


def _from_member(snapshot: NetworkSnapshot) -> list[str]:
    inside: list[str] = []
    for network in snapshot.networks:
        names = listed(sorted(f'"{bridge.interface}"' for bridge in snapshot.bridges_of(network.namespace)))
        if snapshot.bridges_of(network.namespace):
            inside.append(f"iifname {names} oifname {names} accept")
    return rendered_chain(
        "from_member",
        *inside,
        "ct direction reply accept",
        "ct state related accept",
        "oifname @subnet_bridges ct status dnat ct original ip daddr @public accept",
        'meta oifkind "bridge" counter drop',
        f"jump {OUTSIDE_CHAIN}",
        *_routes(snapshot),
        "counter drop",
    )


def _routes(snapshot: NetworkSnapshot) -> Iterator[str]:
    """Yield a rule for each route; every route leads out of this machine today."""
    for bridge in sorted(snapshot.bridges, key=lambda bridge: bridge.interface):
        subnet = snapshot.subnet_of(bridge)
        for route in subnet.routes if subnet else ():
            yield f'iifname "{bridge.interface}" ip daddr {route.destination} accept'


def _to_member(ours: str) -> list[str]:
    return rendered_chain(
        "to_member",
        "ct direction reply accept",
        "ct state related accept",
        f"iifname {ours} ct original ip daddr != @public counter drop",
        "ct status dnat accept",
        "counter drop",
    )


def _translation(snapshot: NetworkSnapshot, ours: str) -> list[str]:
    """Return the translation of public addresses, one to one.

    Between subnets nothing is translated, although netavark's rules would.
    """
    visitor = "oifname @subnet_bridges ct original ip daddr @public ip saddr @own_ranges"
    inside: list[str] = []
    for network in snapshot.networks:
        ranges = [bridge.cidr for bridge in snapshot.bridges_of(network.namespace)]
        if ranges:
            names = listed(sorted(_collapsed(ranges)))
            inside.append(f"ip saddr {names} ip daddr {names} snat ip to ip saddr map @unchanged")
    return [
        *rendered_chain(
            "public_from_outside",
            f"type nat hook prerouting priority {_TARGETS}; policy accept;",
            f"ip daddr @public {_marked(_PUBLIC)} dnat ip to ip daddr map @to_private",
        ),
        *rendered_chain(
            "public_from_this_machine",
            f"type nat hook output priority {_TARGETS}; policy accept;",
            f"ip daddr @public {_marked(_PUBLIC)} dnat ip to ip daddr map @to_private",
        ),
        *rendered_chain(
            "sources",
            f"type nat hook postrouting priority {_SOURCES}; policy accept;",
            # A sender in our ranges that uses a public address is itself shown with a public one.
            f"{visitor} snat ip to ip saddr map @to_public",
            f"{visitor} snat ip to ip daddr map @to_public",
            *inside,
            f"oifname != {ours} snat ip to ip saddr map @to_public",
        ),
    ]


def render_anti_spoofing_table(layout: Layout, snapshot: NetworkSnapshot) -> str:
    """Return the anti-spoofing table. It checks ARP, too; only address probes may name no sender."""
    members = [
        (member, snapshot.ports[member.pod])
        for member, _ in attached_members(snapshot)
        if member.pod in snapshot.ports
    ]
    cards = [f'"{port}" . {m.interface.mac}' for m, port in members]
    addresses = [f'"{port}" . {m.interface.mac} . {m.interface.address}' for m, port in members]
    resolution = "iifname . arp saddr ether . arp saddr ip @addresses accept"
    lines = [
        *bridge_table_removal(layout),
        f"table bridge {layout.table} {{",
        *rendered_set("ports", "ifname", (f'"{port}"' for _, port in members)),
        *rendered_set("cards", "ifname . ether_addr", cards),
        *rendered_set("addresses", "ifname . ether_addr . ipv4_addr", addresses),
        *rendered_chain(
            "prerouting",
            f"type filter hook prerouting priority {_BEFORE_ALL}; policy accept;",
            "iifname != @ports accept",
            f"ether type arp iifname . ether saddr . arp saddr ip @addresses {resolution}",
            "ether type arp arp saddr ip 0.0.0.0 iifname . ether saddr @cards accept",
            "ether type ip iifname . ether saddr . ip saddr @addresses accept",
            "counter drop",
        ),
        "}",
    ]
    return "\n".join(lines) + "\n"


def bridge_table_removal(layout: Layout) -> list[str]:
    return [f"table bridge {layout.table}", f"delete table bridge {layout.table}"]


OUTSIDE_CHAIN = "to_outside"
"""Chain that decides which addresses outside this machine pods may reach."""


def rendered_set(name: str, kind: str, elements: Iterable[object], *, ranges: bool = False) -> list[str]:
    """Return a named set; sorted, so that the same state gives the same text."""
    return _rendered("set", name, kind, elements, ranges)


def rendered_map(name: str, kind: str, elements: Iterable[object]) -> list[str]:
    return _rendered("map", name, kind, elements, False)


def rendered_chain(name: str, *rules: str) -> list[str]:
    return [f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"]


def listed(values: Iterable[object]) -> str:
    """Return an anonymous set."""
    return f"{{ {', '.join(str(value) for value in values)} }}"


async def load(rules: str) -> None:
    """Load a rule set in one transaction. Raises EngineError."""
    process = await asyncio.create_subprocess_exec(
        "nft",
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate(rules.encode())
    if process.returncode:
        said = errors.decode(errors="replace").strip().rstrip(".")
        reason = said or f"nft {_ending(process.returncode)} and gave no reason"
        raise EngineError(
            f"The firewall rules that separate namespaces could not be loaded: {reason}. Kernel support for"
            " nf_tables is needed."
        )


def _ending(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"


def _rendered(what: str, name: str, kind: str, elements: Iterable[object], ranges: bool) -> list[str]:
    values = sorted({str(element) for element in elements})
    return [
        f"  {what} {name} {{",
        f"    type {kind}",
        *(["    flags interval"] if ranges else []),
        *([f"    elements = {{ {', '.join(values)} }}"] if values else []),
        "  }",
    ]
