"""Our own nftables tables: deny by default between namespaces, between networks, from pods to this machine.

Podman's bridges reach each other and every service of the host; these tables say what may pass instead. They
are replaced as a whole in one transaction and hold nothing that cannot be rendered again. Rules of others are
never touched.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network

from neocloud.engines.podman import nft
from neocloud.engines.podman.egress import CHAIN, Egress, render_egress
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.member_rules import render_member_rules
from neocloud.engines.podman.plane import Plane
from neocloud.engines.podman.spoofing import removed, render_spoofing_table

_BEFORE_PODMAN = -10


def render_table(
    layout: Layout,
    bridges: Iterable[tuple[str, IPv4Network]],
    plane: Plane | None = None,
    egress: Egress | None = None,
) -> str:
    """The whole rule set for the (interface, subnet) pairs of namespaces, and for virtual networks.

    A pod may talk within its namespace and to the public internet (`egress.py`); it may not send under
    another address, reach another bridge or this machine. From outside only published ports lead in.
    """
    bridges = sorted(bridges)
    ours = f'"{layout.interface_prefix}*"'
    spoofed = [f'    iifname "{name}" ip saddr != {subnet} drop' for name, subnet in bridges]
    inside = [f'    iifname "{name}" oifname "{name}" accept' for name, _ in bridges]
    members, to_members = [], []
    if plane:
        members = render_member_rules(plane, ours, [subnet for _, subnet in bridges])
        to_members = [
            "    iifname @subnet_bridges goto from_member",
            "    oifname @subnet_bridges goto to_member",
        ]
    lines = [
        f"table inet {layout.table}",
        f"delete table inet {layout.table}",
        f"table inet {layout.table} {{",
        *render_egress(egress or Egress()),
        *members,
        "  chain forward {",
        f"    type filter hook forward priority {_BEFORE_PODMAN}; policy accept;",
        f"    iifname != {ours} oifname != {ours} accept",
        *spoofed,
        *to_members,
        "    ct state established,related accept",
        *inside,
        f'    iifname {ours} meta oifkind "bridge" counter drop',
        f"    iifname {ours} jump {CHAIN}",
        f"    iifname {ours} meta nfproto ipv4 accept",
        f"    oifname {ours} ct status dnat accept",
        "    counter drop",
        "  }",
        "  chain input {",
        f"    type filter hook input priority {_BEFORE_PODMAN}; policy accept;",
        f"    iifname != {ours} accept",
        "    ct state established,related accept",
        "    counter drop",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


async def sync_tables(
    layout: Layout,
    bridges: Iterable[tuple[str, IPv4Network]],
    plane: Plane | None = None,
    egress: Egress | None = None,
) -> None:
    """Make the kernel hold exactly the rules for these; no bridge, no table.

    `plane` is None on a machine that has never had a virtual network: it may lack what those need.
    """
    bridges = list(bridges)
    if plane and plane.networks:
        rules = render_table(layout, bridges, plane, egress)
        await nft.load(rules + render_spoofing_table(layout, plane))
        return
    rules = render_table(layout, bridges, egress=egress) if bridges else _removed(layout)
    await nft.load(rules + ("\n".join(removed(layout)) + "\n" if plane else ""))


def _removed(layout: Layout) -> str:
    return f"table inet {layout.table}\ndelete table inet {layout.table}\n"
