"""Our own nftables table: deny by default between namespaces and from pods to this machine.

Podman's bridges reach each other and every service of the host; this table says what may pass instead. It is
replaced as a whole in one transaction and holds nothing that cannot be rendered again. Rules of others are
never touched.
"""

import asyncio
from collections.abc import Iterable
from ipaddress import IPv4Network

from neocloud.engines.base import EngineError
from neocloud.engines.podman.layout import Layout

_BEFORE_PODMAN = -10
_LINK_LOCAL = "169.254.0.0/16"
"""Where clouds hand this machine's credentials to whoever asks."""


def render_table(layout: Layout, bridges: Iterable[tuple[str, IPv4Network]]) -> str:
    """The whole rule set for these (interface, subnet) pairs.

    A pod may talk within its namespace and out to the world; it may not send under another address, reach
    another bridge or this machine. From outside only published ports lead in.
    """
    bridges = sorted(bridges)
    ours = f'"{layout.interface_prefix}*"'
    spoofed = [f'    iifname "{name}" ip saddr != {subnet} drop' for name, subnet in bridges]
    inside = [f'    iifname "{name}" oifname "{name}" accept' for name, _ in bridges]
    lines = [
        f"table inet {layout.table}",
        f"delete table inet {layout.table}",
        f"table inet {layout.table} {{",
        "  chain forward {",
        f"    type filter hook forward priority {_BEFORE_PODMAN}; policy accept;",
        f"    iifname != {ours} oifname != {ours} accept",
        *spoofed,
        "    ct state established,related accept",
        *inside,
        f'    iifname {ours} meta oifkind "bridge" counter drop',
        f"    iifname {ours} ip daddr {_LINK_LOCAL} counter drop",
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


async def sync_table(layout: Layout, bridges: Iterable[tuple[str, IPv4Network]]) -> None:
    """Make the kernel hold exactly the rules for these bridges; no bridge, no table."""
    bridges = list(bridges)
    if bridges:
        await _nft(render_table(layout, bridges))
    else:
        await _nft(f"table inet {layout.table}\ndelete table inet {layout.table}\n")


async def _nft(rules: str) -> None:
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
        raise EngineError(
            "The firewall rules that separate namespaces could not be loaded: "
            f"{errors.decode(errors='replace').strip()}. Kernel support for nf_tables is needed."
        )
