"""Which addresses outside this machine its pods may reach. Pure; text for our table in `firewall.py`.

The public internet is open. Private ranges and cloud providers' metadata services are closed, except ranges
that the operator opens and port 53 of the name servers that pods are told to ask. A namespace whose
NetworkPolicy allows no egress reaches only what the operator opens. A metadata service stays closed in a
wider range that is opened, as in `core/destinations.py`: it has to be opened by its own address.
"""

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, collapse_addresses

from neocloud.core.destinations import METADATA_ADDRESSES, REFUSED_NETWORKS
from neocloud.engines.podman.nft import listed, rendered_chain, rendered_set

CHAIN = "to_outside"
CLOSED = tuple(collapse_addresses(each for each in REFUSED_NETWORKS if isinstance(each, IPv4Network)))


@dataclass(frozen=True)
class Egress:
    opened: tuple[IPv4Network, ...] = ()
    """What the operator has opened of the closed ranges."""
    resolvers: tuple[IPv4Address, ...] = ()
    """Name servers of the pods."""
    sealed: tuple[str, ...] = ()
    """Interfaces of the namespaces that may not begin a connection to the outside."""


def render_egress(egress: Egress) -> list[str]:
    """Sets, and the chain `to_outside`: it returns for what may leave, and drops the rest."""
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
            CHAIN,
            "ip daddr @opened ip daddr != @metadata return",
            *([f"iifname {sealed} counter drop"] if egress.sealed else []),
            "meta l4proto { tcp, udp } th dport 53 ip daddr @resolvers return",
            "ip daddr @closed counter drop",
        ),
    ]


def name_servers(resolver: str) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that a resolv.conf names."""
    found = []
    for line in resolver.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            try:
                found.append(IPv4Address(words[1]))
            except AddressValueError:
                continue
    return tuple(found)
