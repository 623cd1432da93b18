"""Constraints between a pod and its virtual network, and the connections that the security groups allow.

Pure. Engines check both before they change anything; the pods that were applied are the only record they
need. The fake engine decides by `may_connect`; the rules of real engines are compared with it in tests.
"""

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.manifest.network_spec import Member, SecurityRule, Subnet, VirtualNetwork

Holders = Mapping[str, Reference]
"""The pod that has each of `Member.holdings`."""


def check_member(
    member: Member, network_of: Callable[[str], VirtualNetwork | None], holders: Holders
) -> tuple[VirtualNetwork, IPv4Network]:
    """Check that the member's subnet exists and has its address, and that no other pod uses its addresses.

    Returns the network and the range of the subnet that the address is in.
    """
    interface = member.interface
    where = f"Pod {member.pod.name}"
    network = network_of(interface.network)
    if network is None:
        raise EngineError(
            f"{where}: VirtualNetwork {interface.network} does not exist; apply it before its pods."
        )
    subnet = network.subnet(interface.subnet)
    if subnet is None:
        raise EngineError(
            f"{where}: VirtualNetwork {interface.network} has no subnet {interface.subnet}; "
            "add the subnet to it before its pods."
        )
    for what in member.holdings:
        holder = holders.get(what, member.pod)
        if holder != member.pod:
            raise EngineError(
                f"{where}: {what} is held by pod {holder.name} of namespace {holder.namespace}; "
                "take it from that pod first."
            )
    return network, _cidr(interface.address, subnet, where)


def check_network(
    network: VirtualNetwork, others: Iterable[VirtualNetwork], members: Iterable[Member]
) -> None:
    """Check that it is the only network of its namespace, overlaps no other, and still fits its members."""
    where = f"VirtualNetwork {network.name}"
    for other in others:
        if other.namespace == network.namespace:
            if other.name != network.name:
                raise EngineError(
                    f"{where}: namespace {network.namespace} has VirtualNetwork {other.name} already; "
                    "give each a namespace of its own."
                )
            continue
        for first, second in _pairs(network, other):
            if first.overlaps(second):
                raise EngineError(
                    f"{where}: {first} overlaps {second} of VirtualNetwork {other.name}; networks on one "
                    "machine need ranges of their own."
                )
    for member in members:
        if member.interface.network == network.namespace:
            check_member(member, lambda _: network, {})


def check_unused(namespace: str, members: Iterable[Member]) -> None:
    """Raise EngineError while pods of any namespace use the network."""
    for member in members:
        if member.interface.network == namespace:
            raise EngineError(
                f"VirtualNetwork of namespace {namespace} is in use by pod {member.pod.name} of namespace "
                f"{member.pod.namespace}; remove that pod first."
            )


def _cidr(address: IPv4Address, subnet: Subnet, where: str) -> IPv4Network:
    cidr = subnet.cidr_of(address)
    if cidr is None:
        ranges = ", ".join(str(cidr) for cidr in subnet.cidrs)
        raise EngineError(f"{where}: address {address} is not in subnet {subnet.name} ({ranges}).")
    if address in (cidr.network_address, cidr.broadcast_address, subnet.gateway_of(cidr)):
        raise EngineError(f"{where}: address {address} belongs to subnet {subnet.name} itself; take another.")
    return cidr


def _pairs(network: VirtualNetwork, other: VirtualNetwork) -> Iterable[tuple[IPv4Network, IPv4Network]]:
    for subnet in network.subnets:
        for peer in other.subnets:
            yield from ((first, second) for first in subnet.cidrs for second in peer.cidrs)


def may_connect(
    network: VirtualNetwork,
    members: Iterable[Member],
    sender: Member,
    receiver: Member,
    protocol: str,
    port: int,
) -> bool:
    """Return whether the rules of both members allow a connection between them."""
    members = [member for member in members if member.interface.network == network.namespace]
    there, back = receiver.interface.address, sender.interface.address
    return _is_allowed(network, members, sender, there, "egress", protocol, port) and _is_allowed(
        network, members, receiver, back, "ingress", protocol, port
    )


def may_leave(
    network: VirtualNetwork,
    members: Iterable[Member],
    sender: Member,
    address: IPv4Address,
    protocol: str,
    port: int,
) -> bool:
    """Return whether the rules of a member allow a connection to an address that no member has."""
    members = [member for member in members if member.interface.network == network.namespace]
    return _is_allowed(network, members, sender, address, "egress", protocol, port)


def _is_allowed(
    network: VirtualNetwork,
    members: list[Member],
    member: Member,
    peer: IPv4Address,
    direction: str,
    protocol: str,
    port: int,
) -> bool:
    """Return what the first rule that matches says; without one nothing passes."""
    for rule in network.rules_of(member.interface.security_groups, direction):
        if _fits(rule, protocol, port) and _is_meant(rule, peer, members):
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
