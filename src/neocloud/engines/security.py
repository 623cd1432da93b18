"""What the security groups of a virtual network say of one connection.

Pure: the meaning of the rules in a few lines. The fake engine goes by it; the rules of real engines are held
against it in tests.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address

from neocloud.engines.manifest.network_spec import Member, SecurityRule, VirtualNetwork


def may_connect(
    network: VirtualNetwork,
    members: Iterable[Member],
    sender: Member,
    receiver: Member,
    protocol: str,
    port: int,
) -> bool:
    """Whether a connection between two members of the network is let out and let in."""
    members = [member for member in members if member.interface.network == network.namespace]
    return _is_allowed(network, members, sender, receiver, "egress", protocol, port) and _is_allowed(
        network, members, receiver, sender, "ingress", protocol, port
    )


def _is_allowed(
    network: VirtualNetwork,
    members: list[Member],
    member: Member,
    peer: Member,
    direction: str,
    protocol: str,
    port: int,
) -> bool:
    """The first rule that matches decides; without one nothing passes."""
    for rule in network.rules_of(member.interface.security_groups, direction):
        if _fits(rule, protocol, port) and _is_meant(rule, peer.interface.address, members):
            return rule.access == "allow"
    return False


def _fits(rule: SecurityRule, protocol: str, port: int) -> bool:
    if rule.protocol not in ("any", protocol):
        return False
    return not rule.ports or (protocol != "icmp" and port in rule.ports)


def _is_meant(rule: SecurityRule, peer: IPv4Address, members: list[Member]) -> bool:
    if not rule.cidrs and not rule.groups:
        return True
    if any(peer in cidr for cidr in rule.cidrs):
        return True
    groups = set(rule.groups)
    return any(m.interface.address == peer and groups & set(m.interface.security_groups) for m in members)
