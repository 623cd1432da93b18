"""/etc/hosts and /etc/resolv.conf of the pods.

A hosts file is mounted into all containers of a namespace. It is rewritten in place, as a mount holds on to
the file itself and would not see a new one under the same name.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_FIRST_LINES = ("127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback")


@dataclass(frozen=True)
class Named:
    address: IPv4Address
    manifest: Mapping[str, Any]
    domain: str = ""
    """Of its virtual network."""


def render_hosts(
    pods: Iterable[Named], services: Iterable[Mapping[str, Any]], others: Iterable[Named] = ()
) -> str:
    """A service is one more name of each pod it selects. The others come last: a name's first line counts."""
    services = list(services)
    lines = [*_FIRST_LINES]
    for pod in sorted(pods, key=lambda pod: pod.address):
        hostname, spec = hostname_of(pod.manifest), pod.manifest["spec"]
        names = _names(pod)
        if spec.get("subdomain"):
            names.append(f"{hostname}.{spec['subdomain']}")
        names += [s["metadata"]["name"] for s in services if _selects(s, pod.manifest)]
        lines.append(f"{pod.address} {' '.join(dict.fromkeys(names))}")
    for pod in sorted(others, key=lambda pod: pod.address):
        lines.append(f"{pod.address} {' '.join(_names(pod))}")
    return "\n".join(lines) + "\n"


def _names(pod: Named) -> list[str]:
    hostname = hostname_of(pod.manifest)
    return [hostname, f"{hostname}.{pod.domain}"] if pod.domain else [hostname]


def hostname_of(manifest: Mapping[str, Any]) -> str:
    return manifest["spec"].get("hostname") or manifest["metadata"]["name"].replace(".", "-")


def write_in_place(path: Path, text: str) -> None:
    """Same file, new content, in one write, so that a look-up meets no half-empty file."""
    content = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.fchmod(handle, 0o644)
        if os.pread(handle, len(content) + 1, 0) != content:
            os.pwrite(handle, content, 0)
            os.ftruncate(handle, len(content))
    finally:
        os.close(handle)


def resolver_configuration() -> tuple[str, list[str]]:
    """Content for the pods' resolv.conf and warnings; loopback resolvers cannot be reached from a pod."""
    for path in _RESOLVERS:
        lines = path.read_text().splitlines() if path.exists() else []
        usable = [line for line in lines if not _is_loopback(line)]
        if any(line.startswith("nameserver") for line in usable):
            return "\n".join(usable) + "\n", []
    return "", ["This machine has no name server that pods could reach; they resolve only each other."]


def _is_loopback(line: str) -> bool:
    fields = line.split()
    if len(fields) < 2 or fields[0] != "nameserver":
        return False
    return ip_address(fields[1].split("%")[0]).is_loopback


def _selects(service: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    selector = (service.get("spec") or {}).get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())
