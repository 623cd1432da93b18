# pyright: strict
"""Check the Host header, so that no web page reaches the gateway under a host name of its own.

A page whose name resolves to 127.0.0.1 (DNS rebinding) has the same origin as the gateway for a browser, and
its requests come from this machine. Their Host header names the host of the page.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import Scope

from neocloud.gateway.api.errors import OpenAiError, forbidden

MAX_KNOWN = 1000


class AllowedHosts:
    """Allows localhost, loopback addresses, the address that a request arrived at, and configured names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.lower().strip("[]") for name in names}
        self._known: set[bytes] = set()
        """Headers that passed; bounded."""

    def check(self, scope: Scope) -> None:
        """Raises OpenAiError 421. A request without the header does not come from a browser."""
        for key, value in scope["headers"]:
            if key == b"host" and value not in self._known:
                self._check(value, scope)

    def _check(self, header: bytes, scope: Scope) -> None:
        name = _name(header)
        bound = (scope.get("server") or ("",))[0]
        if not (_is_loopback(name) or name in self._names or name == bound):
            raise OpenAiError(
                421,
                f"Unknown host name {name[:80]!r}. Your administrator can allow it with"
                " `neo up --gateway-host NAME`.",
                code="unknown_host",
            )
        if len(self._known) < MAX_KNOWN:
            self._known.add(header)


def require_loopback(scope: Scope) -> None:
    """Raise OpenAiError 403 where a request names any host but the loopback of this machine."""
    if not all(_is_loopback(_name(value)) for key, value in scope["headers"] if key == b"host"):
        raise forbidden("This is available on this machine only. Read it from 127.0.0.1.")


def _name(header: bytes) -> str:
    """Return the host name without port, in lower case."""
    host = header.decode("latin-1").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
