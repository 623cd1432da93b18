# pyright: strict
"""Check the Host header of HTTP requests, so that no web page reaches a server under its own name."""

from collections.abc import Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any

MAX_KNOWN = 1000


class HostNames:
    """Names of a server: localhost, loopback addresses, the address that a request arrived at, and others.

    A web page whose name resolves to the server's address (DNS rebinding) has the same origin as the server
    for a browser, and its requests come from the machine of the person who looks at it. Their Host header
    names the host of the page.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.lower().strip("[]") for name in names}
        self._known: set[bytes] = set()
        """Headers that passed; bounded."""

    def unknown(self, scope: MutableMapping[str, Any]) -> str | None:
        """Return the name of a Host header that is not the server's; None when there is none.

        A request without the header does not come from a browser.
        """
        for key, value in scope["headers"]:
            if key == b"host" and value not in self._known:
                name = host_name(value)
                if is_loopback_name(name) or name in self._names:
                    if len(self._known) < MAX_KNOWN:
                        self._known.add(value)
                elif not name or name != (scope.get("server") or ("",))[0]:
                    return name
        return None


def host_name(header: bytes) -> str:
    """Return the host name of a Host header without port, in lower case."""
    host = header.decode("latin-1").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def is_loopback_name(name: str) -> bool:
    """Return whether the name is localhost or a loopback address."""
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
