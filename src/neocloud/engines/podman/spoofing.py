"""Each pod on a subnet sends with its own card's address and its own IP address, and nothing else.

Pure; a table of its own, as bridges hand on packets that no routing ever sees. It knows the bridge port of
each pod: what one pod claims from its port, another cannot.
"""

from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.nft import rendered_chain, rendered_set
from neocloud.engines.podman.plane import Plane, placed

_BEFORE_ALL = -300


def render_spoofing_table(layout: Layout, plane: Plane) -> str:
    """Address resolution is held to the same; only what asks whether an address is free may name none."""
    members = [(member, plane.ports[member.pod]) for member, _ in placed(plane) if member.pod in plane.ports]
    cards = [f'"{port}" . {m.interface.mac}' for m, port in members]
    addresses = [f'"{port}" . {m.interface.mac} . {m.interface.address}' for m, port in members]
    resolution = "iifname . arp saddr ether . arp saddr ip @addresses accept"
    lines = [
        *removed(layout),
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


def removed(layout: Layout) -> list[str]:
    return [f"table bridge {layout.table}", f"delete table bridge {layout.table}"]
