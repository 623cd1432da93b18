"""Our nftables tables: deny by default between namespaces, between networks, and from pods to this machine.

Podman's bridges reach each other and every service of the host; these tables define what may pass instead.
They are replaced as a whole in one transaction and hold nothing that cannot be rendered again. Rules of
others are never changed.

Outside this machine, pods may reach the public internet. Private ranges and cloud providers' metadata
services are closed, except ranges that the operator opens and port 53 of the pods' name servers. A namespace
whose NetworkPolicy allows no egress reaches only the ranges that the operator opens. A metadata service stays
closed in a wider range that is opened, as in `core/destinations.py`: it has to be opened by its own address.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, collapse_addresses

from neocloud.core.destinations import METADATA_ADDRESSES, REFUSED_NETWORKS
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network.platform_services import ServiceAccess, render_services
from neocloud.engines.podman.network.security_rules import (
    OUTSIDE_CHAIN,
    bridge_table_removal,
    listed,
    render_anti_spoofing_table,
    render_security_rules,
    rendered_chain,
    rendered_set,
)
from neocloud.engines.podman.network.virtual_networks import NetworkSnapshot

CLOSED = tuple(collapse_addresses(each for each in REFUSED_NETWORKS if isinstance(each, IPv4Network)))
_BEFORE_PODMAN = -10


@dataclass(frozen=True)
class Egress:
    """Exceptions for destinations outside this machine."""

    opened: tuple[IPv4Network, ...] = ()
    """Closed ranges that the operator opened."""
    resolvers: tuple[IPv4Address, ...] = ()
    """Name servers of the pods."""
    sealed: tuple[str, ...] = ()
    """Bridge interfaces of namespaces whose pods may not open connections to the outside."""


def render_egress(egress: Egress) -> list[str]:
    """Return the sets and the chain `to_outside`, which returns for permitted packets and drops others."""
    sealed = listed(f'"{name}"' for name in sorted(egress.sealed))
    metadata = [
        each for each in METADATA_ADDRESSES if each.version == 4 and IPv4Network(each) not in egress.opened
    ]
    return [
        *rendered_set("metadata", "ipv4_addr", metadata),
        *rendered_set("closed", "ipv4_addr", CLOSED, ranges=True),
        *rendered_set("opened", "ipv4_addr", collapse_addresses(egress.opened), ranges=True),
        *rendered_set("resolvers", "ipv4_addr", egress.resolvers),
        *rendered_chain(
            OUTSIDE_CHAIN,
            "ip daddr @opened ip daddr != @metadata return",
            *([f"iifname {sealed} counter drop"] if egress.sealed else []),
            "meta l4proto { tcp, udp } th dport 53 ip daddr @resolvers return",
            "ip daddr @closed counter drop",
        ),
    ]


def name_servers(resolver: str) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses of the name servers in a resolv.conf."""
    found: list[IPv4Address] = []
    for line in resolver.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            try:
                found.append(IPv4Address(words[1]))
            except AddressValueError:
                continue
    return tuple(found)


def render_table(
    layout: Layout,
    bridges: Iterable[tuple[str, IPv4Network]],
    snapshot: NetworkSnapshot | None = None,
    egress: Egress | None = None,
    services: Sequence[ServiceAccess] = (),
) -> str:
    """Return the rule set for the (interface, subnet) pairs of namespaces and for virtual networks.

    A pod may connect within its namespace and to the public internet; it may not send with another source
    address, nor reach another bridge, nor this machine except for `services`. From outside only published
    ports are reachable.
    """
    bridges = sorted(bridges)
    ours = f'"{layout.interface_prefix}*"'
    spoofed = [f'    iifname "{name}" ip saddr != {subnet} drop' for name, subnet in bridges]
    inside = [f'    iifname "{name}" oifname "{name}" accept' for name, _ in bridges]
    members, to_members = [], []
    if snapshot:
        members = render_security_rules(snapshot, ours, [subnet for _, subnet in bridges])
        to_members = [
            "    iifname @subnet_bridges goto from_member",
            "    oifname @subnet_bridges goto to_member",
        ]
    to_services = render_services(services, ours)
    lines = [
        f"table inet {layout.table}",
        f"delete table inet {layout.table}",
        f"table inet {layout.table} {{",
        *render_egress(egress or Egress()),
        *members,
        *to_services.objects,
        "  chain forward {",
        f"    type filter hook forward priority {_BEFORE_PODMAN}; policy accept;",
        f"    iifname != {ours} oifname != {ours} accept",
        *spoofed,
        *to_members,
        "    ct state established,related accept",
        *inside,
        f'    iifname {ours} meta oifkind "bridge" counter drop',
        f"    iifname {ours} jump {OUTSIDE_CHAIN}",
        f"    iifname {ours} meta nfproto ipv4 accept",
        f"    oifname {ours} ct status dnat accept",
        "    counter drop",
        "  }",
        "  chain input {",
        f"    type filter hook input priority {_BEFORE_PODMAN}; policy accept;",
        *to_services.closed_to_others,
        f"    iifname != {ours} accept",
        *(spoofed if services else ()),
        "    ct state established,related accept",
        *to_services.allowed,
        "    counter drop",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def render_tables(
    layout: Layout,
    bridges: Iterable[tuple[str, IPv4Network]],
    snapshot: NetworkSnapshot | None = None,
    egress: Egress | None = None,
    answers: str = "",
    services: Sequence[ServiceAccess] = (),
) -> str:
    """Return what makes our tables those for these bridges and networks; without any, removes them.

    `answers`: the table of `public_interface.py`, loaded with them. `snapshot` is None on a machine that has
    never had a virtual network, whose kernel may lack support for the table of the bridge family.
    """
    bridges = list(bridges)
    if snapshot and snapshot.networks:
        rules = render_table(layout, bridges, snapshot, egress, services)
        rules += render_anti_spoofing_table(layout, snapshot)
    else:
        plain = render_table(layout, bridges, egress=egress, services=services)
        rules = plain if bridges else _table_removal(layout)
        rules += "\n".join(bridge_table_removal(layout)) + "\n" if snapshot else ""
    return rules + answers


def _table_removal(layout: Layout) -> str:
    return f"table inet {layout.table}\ndelete table inet {layout.table}\n"
