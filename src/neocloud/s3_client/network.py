"""Connections to endpoints that tenants name: to checked addresses alone.

A name is resolved for each connection, every address that it has is checked, and the connection goes to an
address that was checked, so that a name that changes meanwhile leads nowhere else. Redirects are not
followed, and no proxy of the environment is used. Private addresses, and http on this machine, need a
setting.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

import httpcore

from neocloud.core.destinations import PRIVATE_NETWORKS, is_allowed_destination, is_loopback

MAX_CONNECTIONS = 16
"""The most connections to one endpoint of a transfer."""
RESOLVE_SECONDS = 10.0
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class DestinationRefused(Exception):
    """The address is not one that the cloud connects to for tenants."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, the preferred one first."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to public addresses, and to those that the operator allows."""

    def __init__(self, *, is_plain: bool, allow_private: bool, resolve: Resolve = resolve) -> None:
        self._is_plain = is_plain
        self._opened = PRIVATE_NETWORKS if allow_private else ()
        self._resolve = resolve
        self._inner = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (its interface)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._addresses(host.strip("[]"), port)
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """Return all addresses of the host. Raises DestinationRefused unless every one is allowed."""
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self._resolve(host, port)
        except (OSError, UnicodeError, TimeoutError):
            raise httpcore.ConnectError("its name leads to no address") from None
        if not found:
            raise httpcore.ConnectError("its name leads to no address")
        for address in found:
            if not is_allowed_destination(address, self._opened):
                raise DestinationRefused(
                    "The endpoint is not on the public internet. The operator of the cloud can allow private"
                    " addresses: neo config set allow-private-transfers true"
                )
            if self._is_plain and not is_loopback(address):
                raise DestinationRefused("The endpoint is not https.")
        return found


def checked_pool(
    scheme: str, *, allow_private: bool, resolve: Resolve = resolve, trusted: ssl.SSLContext | None = None
) -> httpcore.AsyncConnectionPool:
    """Return connections to an endpoint that a tenant names. `trusted` has the authorities of certificates;
    None: those of the machine."""
    backend = CheckedBackend(is_plain=scheme != "https", allow_private=allow_private, resolve=resolve)
    return httpcore.AsyncConnectionPool(
        ssl_context=trusted or ssl.create_default_context(),
        max_connections=MAX_CONNECTIONS,
        network_backend=backend,
    )


def trusted_pool(scheme: str, max_connections: int = MAX_CONNECTIONS) -> httpcore.AsyncConnectionPool:
    """Return connections to an endpoint of the operator's: this object gateway itself, or the engine of its
    blobs."""
    tls = ssl.create_default_context() if scheme == "https" else None
    return httpcore.AsyncConnectionPool(ssl_context=tls, max_connections=max_connections)
