"""Connections of clients: how many there may be, and which of them have taken too long.

Beyond the limits a few more are accepted, so that `/health` answers while somebody holds all the others. They
give way to the newest, so a client that opens connections and sends nothing does not block the others.
"""

import ipaddress
import logging
import resource
from collections import Counter, OrderedDict
from typing import Protocol

from neocloud.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 64
"""Beyond the limits, for `/health` alone."""
OTHER_FILES = 512
"""Open files that are left to the ledger, to uploads and to everything else but connections."""
_SITE_PREFIX = 64
"""Bits of an IPv6 address by which one client is told from another; it has all addresses below."""


class Connection(Protocol):
    def look(self, seconds: float) -> None:
        """Count `seconds` since the last look; end the connection when a limit is exceeded."""
        ...

    def abort(self) -> None: ...


class Connections:
    """All connections of a gateway. Its settings are the limits, lowered to what open files allow."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self._most = min(settings.max_connections, most_by_files())
        if self._most < settings.max_connections:
            logger.warning(
                "The limit of open files leaves room for %d connections of %d. Raise it (ulimit -Hn).",
                self._most,
                settings.max_connections,
            )
        self._ordinary: dict[Connection, str] = {}
        """The client that each connection counts for."""
        self._spare: OrderedDict[Connection, None] = OrderedDict()
        self._of_client: Counter[str] = Counter()

    def enter(self, connection: Connection, address: str) -> bool:
        """Count a connection until `leave`. Return False beyond the limits: it may ask for /health only."""
        client = client_of(address)
        is_one_too_many = client and self._of_client[client] >= self.settings.max_address_connections
        if not is_one_too_many and len(self._ordinary) < self._most:
            self._ordinary[connection] = client
            self._of_client[client] += 1
            return True
        if len(self._spare) >= SPARE_CONNECTIONS:
            oldest, _ = self._spare.popitem(last=False)
            oldest.abort()
        self._spare[connection] = None
        return False

    def leave(self, connection: Connection) -> None:
        self._spare.pop(connection, None)
        client = self._ordinary.pop(connection, None)
        if client is not None:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def look(self, seconds: float) -> None:
        """Look at all connections; `seconds` have passed since the last time."""
        for connection in [*self._ordinary, *self._spare]:
            try:
                connection.look(seconds)
            except Exception:  # a loop's border: one connection must not end the gateway
                logger.exception("A connection could not be looked at; it is ended")
                connection.abort()


def client_of(address: str) -> str:
    """What is counted as one client; "" for this machine, where a proxy may stand for all clients, and where
    anybody may take any of sixteen million addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            network = ipaddress.IPv6Network((found, _SITE_PREFIX), strict=False)
            return "" if found.is_loopback else str(network)
        found = found.ipv4_mapped
    return "" if found.is_loopback else str(found)


def most_by_files() -> int:
    """Raise the limit of open files as far as this process may, and return how many connections that allows:
    each may have another to an engine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return 1 << 30
    return max((hard - OTHER_FILES) // 2 - SPARE_CONNECTIONS, 1)
