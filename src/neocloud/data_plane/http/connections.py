"""Limits of client connections to the API and the gateway: their number, in all and for each client.

A connection counts from the moment it is accepted, also during its TLS handshake. Beyond the limits a few
spare connections are accepted so that the health page responds; the newest replaces the oldest.
"""

import asyncio
import logging
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from neocloud.data_plane.addresses import is_loopback, source_network

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 64
"""Connections beyond the limits, for the health page alone."""
CHECK_SECONDS = 1.0
OTHER_FILES = 512
"""Open files that are reserved for databases, uploads and everything else but connections."""


class Connection(Protocol):
    def check(self, seconds: float) -> None:
        """Count `seconds` since the last check; close the connection when a limit is exceeded."""
        ...

    def abort(self) -> None: ...


class ConnectionLimits(Protocol):
    @property
    def max_connections(self) -> int: ...
    @property
    def max_address_connections(self) -> int:
        """From one address (IPv6: one /64 network). Does not apply to loopback: a proxy on this machine
        stands for all its clients."""
        ...

    @property
    def head_seconds(self) -> float:
        """Time from the first byte of a request, or from connecting, to the end of its headers."""
        ...

    @property
    def body_seconds(self) -> float:
        """Time for the body of a request; one second is added for each 4 KiB received."""
        ...

    @property
    def body_quiet_seconds(self) -> float:
        """Longest pause within a body."""
        ...


@dataclass
class Refusal(Exception):
    """An error that the application does not see. The connection is closed after it."""

    status: int
    code: str
    message: str
    retry_after: int | None = None
    """Seconds."""


Answer = tuple[Mapping[str, str], bytes]
"""Headers, without Content-Length, and the body."""


class ClientConnections:
    """All connections of a server. Its limits are lowered to what open files allow.

    `answer` writes a refusal as the server's errors are written; `health_path` is open to spare connections.
    """

    def __init__(
        self, limits: ConnectionLimits, health_path: str, answer: Callable[[Refusal], Answer]
    ) -> None:
        self.limits = limits
        self.health_path = health_path
        self.answer = answer
        self._most = min(limits.max_connections, connections_allowed_by_files())
        if self._most < limits.max_connections:
            logger.warning(
                "The limit of open files allows %d connections of %d. Raise it (ulimit -Hn).",
                self._most,
                limits.max_connections,
            )
        self._ordinary: dict[Connection, str] = {}
        """The client that each connection counts for."""
        self._spare: OrderedDict[Connection, None] = OrderedDict()
        self._of_client: Counter[str] = Counter()

    def enter(self, connection: Connection, address: str) -> bool:
        """Count a connection until `leave`. Return False beyond the limits: then it may only request the
        health page."""
        client = client_of(address)
        is_one_too_many = client and self._of_client[client] >= self.limits.max_address_connections
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

    async def check_periodically(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check(CHECK_SECONDS)

    def check(self, seconds: float) -> None:
        """Check all connections; `seconds` have passed since the last time."""
        for connection in [*self._ordinary, *self._spare]:
            try:
                connection.check(seconds)
            except Exception:  # a loop's border: one connection must not end the server
                logger.exception("A connection could not be checked and is closed")
                connection.abort()


def client_of(address: str) -> str:
    """Return what counts as one client; "" for loopback, which is not limited by address."""
    return "" if is_loopback(address) else source_network(address)


def connections_allowed_by_files() -> int:
    """Raise the limit of open files as far as possible and return how many connections it allows. Each
    may need another one to a model server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return 1 << 30
    return max((hard - OTHER_FILES) // 2 - SPARE_CONNECTIONS, 1)
