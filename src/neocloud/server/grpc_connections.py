"""Limit the gRPC connections of one client. gRPC itself counts connections in all, not by address.

Every second the server looks for gRPC's connections among the open files of its process, and shuts down the
newest ones of a client that has too many. Clients on this machine are not limited, as in
`client_connections`.
"""

import logging
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

from neocloud.core.clock import SystemClock
from neocloud.core.loops import every
from neocloud.data_plane.http.connections import client_of

logger = logging.getLogger(__name__)

MAX_ADDRESS_CONNECTIONS = 256
"""From one address, or IPv6 /64; not from loopback."""
CHECK_SECONDS = 1.0
_OPEN_FILES = "/proc/self/fd"


@dataclass(frozen=True)
class _Connection:
    descriptor: int
    socket_id: str
    """Id of the kernel: a descriptor is used again once it is closed."""
    address: str


class ConnectionShares:
    """Limits connections to these ports of this process."""

    def __init__(
        self,
        ports: Container[int],
        most: int = MAX_ADDRESS_CONNECTIONS,
        client: Callable[[str], str] = client_of,
    ) -> None:
        self._ports = ports
        self._most = most
        self._client = client
        self._known: dict[str, int] = {}
        """In which check each connection was first seen."""
        self._checks = 0

    async def check_periodically(self) -> None:
        async def check() -> None:
            self.check()

        problem = "Connections to gRPC could not be counted"
        await every(CHECK_SECONDS, check, problem, SystemClock(), is_first_now=False)

    def check(self) -> int:
        """Shut down connections beyond a client's share; return how many."""
        self._checks += 1
        if len(os.listdir(_OPEN_FILES)) <= self._most:
            return 0
        found = self.connections()
        self._known = {each.socket_id: self._known.get(each.socket_id, self._checks) for each in found}
        by_client: defaultdict[str, list[_Connection]] = defaultdict(list)
        for each in sorted(found, key=lambda each: self._known[each.socket_id]):
            by_client[self._client(each.address)].append(each)
        by_client.pop("", None)
        surplus = {client: of_client[self._most :] for client, of_client in by_client.items()}
        for client, of_client in surplus.items():
            if of_client:
                logger.warning(
                    "Closing %d connections to gRPC beyond the %d of %s", len(of_client), self._most, client
                )
            for each in of_client:
                _shut_down(each)
        return sum(map(len, surplus.values()))

    def connections(self) -> Sequence[_Connection]:
        """Return the connections of clients that are open now."""
        found: list[_Connection] = []
        for name in os.listdir(_OPEN_FILES):
            with suppress(OSError):  # it is closed meanwhile, or it is not a connection
                target = os.readlink(f"{_OPEN_FILES}/{name}")
                address = self._peer(int(name)) if target.startswith("socket:") else ""
                if address:
                    found.append(_Connection(int(name), target, address))
        return found

    def _peer(self, descriptor: int) -> str:
        """Return the client's address; "" for a socket that is not a connection to our ports."""
        shared = socket.socket(fileno=descriptor)  # gRPC's own descriptor, not a copy: epoll watches it
        try:
            is_ours = (
                shared.family in (socket.AF_INET, socket.AF_INET6) and shared.getsockname()[1] in self._ports
            )
            return str(shared.getpeername()[0]) if is_ours else ""
        finally:
            shared.detach()


def _shut_down(connection: _Connection) -> None:
    """End the connection for both sides; gRPC then closes the descriptor.

    gRPC's threads may have closed it since, and another file, such as a connection to the database, may have
    its descriptor: that one is left alone.
    """
    with suppress(OSError):
        if os.readlink(f"{_OPEN_FILES}/{connection.descriptor}") != connection.socket_id:
            return
        shared = socket.socket(fileno=connection.descriptor)
        try:
            shared.shutdown(socket.SHUT_RDWR)
        finally:
            shared.detach()
