"""Virtual networks: subnets, routes, security groups, and the interfaces of pods on them.

Pure. Engines turn them into bridges and firewall rules, so they hold nothing but addresses, numbers and DNS
names. `network_rules.py` decides whether a pod fits its network.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations, pairwise
from typing import ClassVar, Self

from neocloud.core.json_values import is_list, is_object
from neocloud.engines.base import Reference
from neocloud.engines.manifest.base import (
    Document,
    ManifestError,
    Metadata,
    Namespaced,
    as_mapping,
    check_choice,
    check_name,
    check_platform_services,
    check_port,
    check_unique,
    decode,
    encode,
    parse_address,
    platform_services_annotation,
    read_platform_services,
)

EGRESS = "egress"
DIRECTIONS = ("ingress", "egress")
PROTOCOLS = ("any", "tcp", "udp", "icmp")
_ACCESS = ("allow", "deny")
_DEFAULT_PRIORITY = 500
_LONGEST_PREFIX = 29
"""A subnet holds its own two addresses, the gateway, and one more."""
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True)
class Route:
    destination: IPv4Network
    next_hop: IPv4Address | None
    """None: out of the machine, by address translation."""

    def to_dict(self) -> Mapping[str, str]:
        return {"destination": str(self.destination), "nextHop": str(self.next_hop or EGRESS)}


@dataclass(frozen=True)
class Subnet:
    name: str
    cidrs: tuple[IPv4Network, ...]
    gateway: IPv4Address
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "name", label=True)
        if not self.cidrs:
            raise ManifestError("is empty; give at least one range such as 10.128.0.0/24.", field="cidrs")
        for cidr in self.cidrs:
            if cidr.prefixlen > _LONGEST_PREFIX:
                raise ManifestError(
                    f"{cidr} is too small; /{_LONGEST_PREFIX} is the smallest range.", field="cidrs"
                )
        within = self.cidr_of(self.gateway)
        if within is None or self.gateway in (within.network_address, within.broadcast_address):
            raise ManifestError(f"{self.gateway} must be an address inside the subnet.", field="gateway")
        check_unique([route.destination for route in self.routes], "routes to")

    def cidr_of(self, address: IPv4Address) -> IPv4Network | None:
        return next((cidr for cidr in self.cidrs if address in cidr), None)

    def gateway_of(self, cidr: IPv4Network) -> IPv4Address:
        """The named one where it fits, else the first address."""
        return self.gateway if self.gateway in cidr else cidr[1]

    def to_dict(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "cidrs": encode(self.cidrs),
            "gateway": str(self.gateway),
            "routes": [route.to_dict() for route in self.routes],
        }


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

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.access, _ACCESS, "access")
        check_choice(self.protocol, PROTOCOLS, "protocol")
        for port in self.ports:
            check_port(port, "ports")
        if self.ports and self.protocol == "icmp":
            raise ManifestError("is icmp, which has no ports; leave them out.", field="protocol")
        for group in self.groups:
            check_name(group, "groups", label=True)
        if self.priority < 0:
            raise ManifestError(f"must be a number from 0, not {self.priority!r}.", field="priority")

    def to_dict(self) -> Mapping[str, object]:
        return {name: encode(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class SecurityGroup:
    name: str
    rules: tuple[SecurityRule, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "name", label=True)
        for first, second in pairwise(self.rules):
            if first.priority > second.priority:
                raise ManifestError("must come in order of priority, lowest number first.", field="rules")

    def to_dict(self) -> Mapping[str, object]:
        return {"name": self.name, "rules": [rule.to_dict() for rule in self.rules]}


@dataclass(frozen=True, kw_only=True)
class VirtualNetwork(Namespaced):
    """A network whose members are pods of many namespaces. Interfaces call it by its namespace."""

    kind: ClassVar[str] = "VirtualNetwork"
    api_version: ClassVar[str] = "neocloud.dev/v1"

    subnets: tuple[Subnet, ...] = ()
    groups: tuple[SecurityGroup, ...] = ()
    domain: str = ""
    platform_services: tuple[str, ...] = ()
    """Services that members may reach, subject to their security groups."""

    def _check(self) -> None:
        check_platform_services(self.platform_services)
        check_unique([subnet.name for subnet in self.subnets], "subnets")
        check_unique([group.name for group in self.groups], "securityGroups")
        cidrs = [cidr for subnet in self.subnets for cidr in subnet.cidrs]
        for first, second in combinations(cidrs, 2):
            if first.overlaps(second):
                raise ManifestError(
                    f"{first} and {second} overlap; each subnet needs a range of its own.", field="subnets"
                )
        if self.domain:
            check_name(self.domain, "domain")

    def subnet(self, name: str) -> Subnet | None:
        return next((subnet for subnet in self.subnets if subnet.name == name), None)

    def rules_of(self, groups: Iterable[str], direction: str) -> tuple[SecurityRule, ...]:
        """One list for an interface in several groups, by priority, else in the order of its groups."""
        by_name = {group.name: group for group in self.groups}
        found = [rule for name in groups if name in by_name for rule in by_name[name].rules]
        return tuple(sorted((r for r in found if r.direction == direction), key=lambda r: r.priority))

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        spec = decode(_NetworkFields, as_mapping(body.get("spec"), "spec"))
        return cls(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            subnets=tuple(subnet.read(f"subnets[{n}]") for n, subnet in enumerate(spec.subnets)),
            groups=spec.security_groups,
            domain=spec.domain,
            platform_services=read_platform_services(metadata.annotations),
        )

    def _annotations(self) -> Mapping[str, str]:
        return platform_services_annotation(self.platform_services)

    def _body(self) -> Mapping[str, object]:
        return {
            "spec": {
                "subnets": [subnet.to_dict() for subnet in self.subnets],
                "securityGroups": [group.to_dict() for group in self.groups],
                "domain": self.domain,
            }
        }


@dataclass(frozen=True)
class _RouteFields:
    destination: IPv4Network
    next_hop: str

    def read(self) -> Route:
        if self.next_hop == EGRESS:
            return Route(self.destination, None)
        return Route(self.destination, parse_address(IPv4Address, self.next_hop, f"nextHop (or {EGRESS!r})"))


@dataclass(frozen=True)
class _SubnetFields:
    name: str
    gateway: IPv4Address
    cidrs: tuple[IPv4Network, ...] = ()
    routes: tuple[_RouteFields, ...] = ()

    def read(self, field: str) -> Subnet:
        try:
            return Subnet(self.name, self.cidrs, self.gateway, tuple(route.read() for route in self.routes))
        except ManifestError as error:
            raise error.within(field) from error


@dataclass(frozen=True)
class _NetworkFields:
    subnets: tuple[_SubnetFields, ...] = ()
    security_groups: tuple[SecurityGroup, ...] = ()
    domain: str = ""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """The interface of a pod on a virtual network. A pod without one is on the bridge of its namespace."""

    network: str
    """The namespace of its VirtualNetwork."""
    subnet: str
    address: IPv4Address
    mac: str
    security_groups: tuple[str, ...] = ()
    public_address: IPv4Address | None = None

    def __post_init__(self) -> None:
        check_name(self.network, "network", label=True)
        check_name(self.subnet, "subnet", label=True)
        if not _MAC.fullmatch(self.mac):
            raise ManifestError(f"is {self.mac!r}; write it like 52:54:00:ab:cd:ef.", field="mac")
        if int(self.mac[:2], 16) & 1 or set(self.mac) <= set("0:"):
            raise ManifestError(
                f"{self.mac} is not that of one card; its first byte must be even.", field="mac"
            )
        for group in self.security_groups:
            check_name(group, "securityGroups", label=True)
        public = self.public_address
        if public and (
            public.is_loopback or public.is_multicast or public.is_link_local or public.is_unspecified
        ):
            raise ManifestError(f"{public} cannot be given to one pod; take another.", field="publicAddress")

    def to_json(self) -> str:
        """Return the text of the pod's annotation `neocloud.dev/interface`."""
        fields = {"securityGroups": list(self.security_groups), **encode(self)}
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            fields: object = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"is not valid JSON: {error}.") from error
        if not is_object(fields):
            raise ManifestError("must be a JSON object as text.")
        given = {key: value for key, value in as_mapping(fields, "").items() if value != ""}
        groups, mac = given.get("securityGroups"), given.get("mac")
        if is_list(groups):
            given["securityGroups"] = list(dict.fromkeys(groups))
        if isinstance(mac, str):
            given["mac"] = mac.lower()
        return decode(cls, given)


@dataclass(frozen=True)
class Member:
    """A pod on a virtual network."""

    pod: Reference
    interface: Interface
    hostname: str

    @property
    def holdings(self) -> tuple[str, ...]:
        """Return the values that no other pod may have at the same time."""
        mine = self.interface
        unique = (f"address {mine.address}", f"mac {mine.mac} of {mine.network}")
        return (*unique, f"publicAddress {mine.public_address}") if mine.public_address else unique


def mac_of(resource_id: str) -> str:
    """Return the stable MAC of an id; other ids have others. 52:54 begins cards that no maker numbers."""
    digest = hashlib.sha256(resource_id.encode()).digest()
    return ":".join(["52", "54", *(f"{byte:02x}" for byte in digest[:4])])
