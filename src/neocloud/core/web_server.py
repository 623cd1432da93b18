# pyright: strict
"""The HTTP server of the API and the gateway: uvicorn on bound sockets, and the check of the Host header.

The check keeps a web page from reaching a server under a name of its own.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, MutableMapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from socket import socket
from types import FrameType
from typing import Any, cast

import uvicorn

TICK_SECONDS = 1.0
HANDSHAKE_SECONDS = 10.0
"""A client has this long for its TLS handshake; asyncio gives it a minute."""
MAX_KNOWN = 1000


class WebServer(uvicorn.Server):
    """Leaves signals to the program it runs in, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()
        self._is_ending = asyncio.Event()

    def end(self) -> None:
        """Accept no more connections, let calls end, and return from `serve`."""
        self.should_exit = True
        self._is_ending.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._is_ending.set()

    async def main_loop(self) -> None:
        """Tick once a second, for the Date header, and return after `end`. Uvicorn's own ticks ten times a
        second, also while nothing happens."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._is_ending.wait()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        if self.config.ssl is None:
            await super().startup(sockets)
        else:
            await self._start_tls(sockets or [])
        self.is_listening.set()

    async def _start_tls(self, sockets: list[socket]) -> None:
        """Do what uvicorn's `startup` does for sockets, with a shorter handshake."""
        config = self.config
        make = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)

        def protocol() -> asyncio.Protocol:
            return make(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
            for each in sockets
        ]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


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
