"""A VirtualNetwork as engines read it: subnets, routes, security groups.

Pure. Every field is checked here, as engines turn them into bridges and firewall rules: what parses holds
nothing but addresses, numbers and DNS names. What a pod says of its own interface is in `interface.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations, pairwise
from typing import Any

from neocloud.engines.base import EngineError, KubernetesObject
from neocloud.engines.manifests import check_name

EGRESS = "egress"
DIRECTIONS = ("ingress", "egress")
PROTOCOLS = ("any", "tcp", "udp", "icmp")
_ACCESS = ("allow", "deny")
_DEFAULT_PRIORITY = 500
_SPEC = {"subnets", "securityGroups", "domain"}
_SUBNET = {"name", "cidrs", "gateway", "routes"}
_ROUTE = {"destination", "nextHop"}
_GROUP = {"name", "rules"}
_RULE = {"direction", "access", "protocol", "ports", "cidrs", "groups", "stateful", "priority"}
_LONGEST_PREFIX = 29
"""A subnet holds its own two addresses, the gateway, and somebody to talk to."""


@dataclass(frozen=True)
class Route:
    destination: IPv4Network
    next_hop: IPv4Address | None
    """None: out of the machine, by address translation."""


@dataclass(frozen=True)
class Subnet:
    name: str
    cidrs: tuple[IPv4Network, ...]
    gateway: IPv4Address
    routes: tuple[Route, ...] = ()

    def cidr_of(self, address: IPv4Address) -> IPv4Network | None:
        return next((cidr for cidr in self.cidrs if address in cidr), None)

    def gateway_of(self, cidr: IPv4Network) -> IPv4Address:
        """The named one where it fits, else the first address."""
        return self.gateway if self.gateway in cidr else cidr[1]


@dataclass(frozen=True)
class SecurityRule:
    direction: str
    access: str
    protocol: str
    ports: tuple[int, ...] = ()
    """Destination ports; none: all."""
    cidrs: tuple[IPv4Network, ...] = ()
    groups: tuple[str, ...] = ()
    """The other side: in any of these ranges or groups; neither given: anybody."""
    stateful: bool = True
    priority: int = _DEFAULT_PRIORITY


@dataclass(frozen=True)
class SecurityGroup:
    name: str
    rules: tuple[SecurityRule, ...] = ()


@dataclass(frozen=True)
class VirtualNetwork:
    namespace: str
    """What interfaces call it by."""
    name: str
    subnets: tuple[Subnet, ...] = ()
    groups: tuple[SecurityGroup, ...] = ()
    domain: str = ""

    def subnet(self, name: str) -> Subnet | None:
        return next((subnet for subnet in self.subnets if subnet.name == name), None)

    def rules_of(self, groups: Iterable[str], direction: str) -> tuple[SecurityRule, ...]:
        """One list for an interface in several groups, by priority, else in the order of its groups."""
        by_name = {group.name: group for group in self.groups}
        found = [rule for name in groups if name in by_name for rule in by_name[name].rules]
        return tuple(sorted((r for r in found if r.direction == direction), key=lambda r: r.priority))


def parse_virtual_network(manifest: KubernetesObject) -> VirtualNetwork:
    """Raise EngineError naming the first field that is wrong or not understood."""
    metadata = manifest["metadata"]
    where = f"VirtualNetwork {metadata['name']}"
    spec = _mapping(manifest.get("spec"), f"{where}: spec", _SPEC)
    subnets = tuple(_subnet(entry, where) for entry in _list(spec, "subnets", where))
    groups = tuple(_group(entry, where) for entry in _list(spec, "securityGroups", where))
    _unique([subnet.name for subnet in subnets], f"{where}: subnet")
    _unique([group.name for group in groups], f"{where}: security group")
    cidrs = [cidr for subnet in subnets for cidr in subnet.cidrs]
    for first, second in combinations(cidrs, 2):
        if first.overlaps(second):
            raise EngineError(f"{where}: {first} and {second} overlap; each subnet needs a range of its own.")
    domain = spec.get("domain") or ""
    if domain:
        check_name(domain, f"domain of {where}")
    return VirtualNetwork(metadata["namespace"], metadata["name"], subnets, groups, domain)


def parse_address(value: object, what: str) -> IPv4Address:
    try:
        return IPv4Address(value if isinstance(value, str) else "")
    except ValueError as error:
        raise EngineError(f"{what} is {value!r}, which is no IPv4 address such as 10.128.0.5.") from error


def _subnet(entry: object, where: str) -> Subnet:
    fields = _mapping(entry, f"{where}: subnet", _SUBNET)
    check_name(fields.get("name"), f"subnet name in {where}", label=True)
    where = f"{where}, subnet {fields['name']}"
    cidrs = tuple(_cidr(text, f"{where}: cidr") for text in _list(fields, "cidrs", where))
    if not cidrs:
        raise EngineError(f"{where} has no cidrs; give it at least one range such as 10.128.0.0/24.")
    for cidr in cidrs:
        if cidr.prefixlen > _LONGEST_PREFIX:
            raise EngineError(f"{where}: {cidr} is too small; /{_LONGEST_PREFIX} is the smallest range.")
    gateway = parse_address(fields.get("gateway"), f"{where}: gateway")
    within = next((cidr for cidr in cidrs if gateway in cidr), None)
    if within is None or gateway in (within.network_address, within.broadcast_address):
        raise EngineError(f"{where}: gateway {gateway} must be an address inside the subnet.")
    routes = tuple(_route(entry, where) for entry in _list(fields, "routes", where))
    _unique([route.destination for route in routes], f"{where}: route to")
    return Subnet(fields["name"], cidrs, gateway, routes)


def _route(entry: object, where: str) -> Route:
    fields = _mapping(entry, f"{where}: route", _ROUTE)
    destination = _cidr(fields.get("destination"), f"{where}: route destination")
    if fields.get("nextHop") == EGRESS:
        return Route(destination, None)
    return Route(destination, parse_address(fields.get("nextHop"), f"{where}: nextHop (or {EGRESS!r})"))


def _group(entry: object, where: str) -> SecurityGroup:
    fields = _mapping(entry, f"{where}: security group", _GROUP)
    check_name(fields.get("name"), f"security group name in {where}", label=True)
    where = f"{where}, security group {fields['name']}"
    rules = tuple(_rule(entry, where) for entry in _list(fields, "rules", where))
    for first, second in pairwise(rules):
        if first.priority > second.priority:
            raise EngineError(f"{where}: rules must come in order of priority, lowest number first.")
    return SecurityGroup(fields["name"], rules)


def _rule(entry: object, where: str) -> SecurityRule:
    where = f"{where}: rule"
    fields = _mapping(entry, where, _RULE)
    ports = tuple(_list(fields, "ports", where))
    for port in ports:
        if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
            raise EngineError(f"{where}: port is {port!r}; a port is a number from 1 to 65535.")
    protocol = _one_of(PROTOCOLS, fields.get("protocol"), f"{where}: protocol")
    if ports and protocol == "icmp":
        raise EngineError(f"{where}: protocol icmp has no ports; leave them out.")
    groups = tuple(_list(fields, "groups", where))
    for group in groups:
        check_name(group, f"security group in a rule of {where}", label=True)
    stateful, priority = fields.get("stateful", True), fields.get("priority", _DEFAULT_PRIORITY)
    if not isinstance(stateful, bool):
        raise EngineError(f"{where}: stateful must be true or false, not {stateful!r}.")
    if not isinstance(priority, int) or isinstance(priority, bool) or priority < 0:
        raise EngineError(f"{where}: priority must be a number from 0, not {priority!r}.")
    return SecurityRule(
        direction=_one_of(DIRECTIONS, fields.get("direction"), f"{where}: direction"),
        access=_one_of(_ACCESS, fields.get("access"), f"{where}: access"),
        protocol=protocol,
        ports=ports,
        cidrs=tuple(_cidr(text, f"{where}: cidr") for text in _list(fields, "cidrs", where)),
        groups=groups,
        stateful=stateful,
        priority=priority,
    )


def _cidr(value: object, what: str) -> IPv4Network:
    try:
        return IPv4Network(value if isinstance(value, str) else "")
    except ValueError as error:
        raise EngineError(f"{what} is {value!r}, which is no IPv4 range such as 10.128.0.0/24.") from error


def _one_of(known: tuple[str, ...], value: object, what: str) -> str:
    if value not in known:
        raise EngineError(f"{what} is {value!r}; use one of {', '.join(known)}.")
    return str(value)


def _mapping(value: object, where: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise EngineError(f"{where} must be a mapping, not {value!r}.")
    for field in value:
        if field not in known:
            raise EngineError(f"{where}: field {field!r} is not supported; use {', '.join(sorted(known))}.")
    return value


def _list(fields: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = [] if fields.get(name) is None else fields[name]
    if not isinstance(value, list):
        raise EngineError(f"{where}: {name} must be a list, not {value!r}.")
    return value


def _unique(values: list[Any], what: str) -> None:
    for number, value in enumerate(values):
        if value in values[:number]:
            raise EngineError(f"{what} {value} is given twice.")
