"""Where a pod says its interface is: the annotation `neocloud.dev/interface`.

Pure. A pod without it stays on the bridge of its namespace. The annotation is the only record of the address.
Whether the network has room for the pod is decided in `membership.py`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from neocloud.engines.base import EngineError, KubernetesObject, Reference
from neocloud.engines.manifests import check_name, fingerprint
from neocloud.engines.virtual_network import parse_address

ANNOTATION = "neocloud.dev/interface"
_FIELDS = {"network", "subnet", "address", "mac", "securityGroups", "publicAddress"}
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True)
class Interface:
    network: str
    """The namespace of its VirtualNetwork."""
    subnet: str
    address: IPv4Address
    mac: str
    security_groups: tuple[str, ...] = ()
    public_address: IPv4Address | None = None


@dataclass(frozen=True)
class Member:
    """A pod on a virtual network."""

    pod: Reference
    interface: Interface
    hostname: str

    @property
    def holdings(self) -> tuple[str, ...]:
        """What no other pod may have at the same time."""
        mine = self.interface
        held = (f"address {mine.address}", f"mac {mine.mac} of {mine.network}")
        return (*held, f"publicAddress {mine.public_address}") if mine.public_address else held


def annotation_of(
    *,
    network: str,
    subnet: str,
    address: str,
    mac: str,
    security_groups: Sequence[str],
    public_address: str = "",
) -> dict[str, str]:
    """The annotation for a pod to be made, as `interface_of` reads it."""
    fields: dict[str, Any] = {
        "network": network,
        "subnet": subnet,
        "address": address,
        "mac": mac,
        "securityGroups": list(security_groups),
    }
    if public_address:
        fields["publicAddress"] = public_address
    return {ANNOTATION: json.dumps(fields, sort_keys=True)}


def mac_of(resource_id: str) -> str:
    """The same for good, and another for each id; 52:54 begins cards that no maker numbers."""
    digest = hashlib.sha256(resource_id.encode()).digest()
    return ":".join(["52", "54", *(f"{byte:02x}" for byte in digest[:4])])


def interface_of(manifest: KubernetesObject) -> Interface | None:
    """Raise EngineError naming the first field of the annotation that is wrong."""
    text = (manifest["metadata"].get("annotations") or {}).get(ANNOTATION)
    if text is None:
        return None
    where = f"Pod {manifest['metadata']['name']}: annotation {ANNOTATION}"
    fields = _fields(text, where)
    check_name(fields.get("network"), f"network of {where}", label=True)
    check_name(fields.get("subnet"), f"subnet of {where}", label=True)
    mac = fields.get("mac")
    if not isinstance(mac, str) or not _MAC.fullmatch(mac.lower()):
        raise EngineError(f"{where}: mac is {mac!r}; write it like 52:54:00:ab:cd:ef.")
    if int(mac[:2], 16) & 1 or set(mac) <= set("0:"):
        raise EngineError(f"{where}: mac {mac} is not that of one card; its first byte must be even.")
    groups = fields.get("securityGroups") or []
    if not isinstance(groups, list):
        raise EngineError(f"{where}: securityGroups must be a list of names, not {groups!r}.")
    for group in groups:
        check_name(group, f"security group of {where}", label=True)
    public = fields.get("publicAddress")
    return Interface(
        network=fields["network"],
        subnet=fields["subnet"],
        address=parse_address(fields.get("address"), f"{where}: address"),
        mac=mac.lower(),
        security_groups=tuple(dict.fromkeys(groups)),
        public_address=_public_address(public, where) if public else None,
    )


def pod_fingerprint(manifest: KubernetesObject) -> str:
    """Another one means another pod: its spec, and what cannot change of its interface."""
    interface = interface_of(manifest)
    if interface is None:
        return fingerprint(manifest["spec"])
    fixed = [interface.network, interface.subnet, str(interface.address), interface.mac]
    return fingerprint({"spec": manifest["spec"], "interface": fixed})


def member_of(manifest: KubernetesObject) -> Member | None:
    interface = interface_of(manifest)
    if interface is None:
        return None
    metadata = manifest["metadata"]
    hostname = manifest["spec"].get("hostname") or metadata["name"].replace(".", "-")
    return Member(Reference.of(manifest), interface, hostname)


def _public_address(value: object, where: str) -> IPv4Address:
    address = parse_address(value, f"{where}: publicAddress")
    if address.is_loopback or address.is_multicast or address.is_link_local or address.is_unspecified:
        raise EngineError(f"{where}: publicAddress {address} cannot be given to one pod; take another.")
    return address


def _fields(text: object, where: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text) if isinstance(text, str) else None
    except ValueError as error:
        raise EngineError(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(fields, Mapping):
        raise EngineError(f"{where} must be a JSON object as text.")
    for field in fields:
        if field not in _FIELDS:
            raise EngineError(f"{where}: field {field!r} is not supported; use {', '.join(sorted(_FIELDS))}.")
    return fields
