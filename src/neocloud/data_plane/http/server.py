"""The HTTP server of the API and the gateway: uvicorn on bound sockets, and the check of the Host header.

The check keeps a web page from reaching a server under a name of its own.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable, Generator, Iterable, MutableMapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from socket import socket
from types import FrameType
from typing import Any, cast

import uvicorn

from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.http.protocol import ClientProtocol

TICK_SECONDS = 1.0
HANDSHAKE_SECONDS = 10.0
"""A client has this long for its TLS handshake; asyncio gives it a minute."""
CLOSE_SECONDS = 5.0
"""A client has this long to close TLS in its turn; asyncio gives it 30 seconds."""
MAX_KNOWN = 1000


class WebServer(uvicorn.Server):
    """Leaves signals to the program it runs in, and says when it listens.

    The `http` of its configuration makes a ClientProtocol.
    """

    def __init__(self, config: uvicorn.Config, certificate: CertificateFiles | None = None) -> None:
        """Serve over TLS if there is a certificate. Raises CertificateUnusable."""
        super().__init__(config)
        self._certificate = certificate
        if certificate is not None:
            certificate.load()
        config.load()
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
        if self._certificate is None:
            await super().startup(sockets)
        else:
            self._start_tls(sockets or [], self._certificate)
        self.is_listening.set()

    def _start_tls(self, sockets: list[socket], certificate: CertificateFiles) -> None:
        """Do what uvicorn's `startup` does for sockets, and count connections before the handshake."""
        make = cast("Callable[..., ClientProtocol]", self.config.http_protocol_class)

        def protocol() -> ClientProtocol:
            return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        # Uvicorn closes them.
        self.servers = [TlsListener(each, certificate, protocol) for each in sockets]  # type: ignore[misc]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before others are served."""
PAUSE_SECONDS = 1.0
"""How long none is accepted when the process may open no more files."""
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TlsListener:
    """Accepts TLS connections on a listening socket until it is closed, each with the newest certificate."""

    def __init__(
        self, listener: socket, certificate: CertificateFiles, protocol: Callable[[], ClientProtocol]
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        for each in tuple(self._handshakes):
            each.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(PAUSE_SECONDS, self._listen)
                return  # none waits, or it has gone again
            accepted.setblocking(False)
            handshake = _Handshake(accepted, self._certificate.load().context, self._protocol())
            task = self._loop.create_task(handshake.run())
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            task.add_done_callback(handshake.ended)
            handshake.protocol.begin_handshake(address[0], task.cancel)


class _Handshake:
    def __init__(self, accepted: socket, context: ssl.SSLContext, protocol: ClientProtocol) -> None:
        self._accepted = accepted
        self._context = context
        self.protocol = protocol
        self._has_begun = self._is_done = False

    async def run(self) -> None:
        self._has_begun = True
        with suppress(OSError):  # also ssl.SSLError and TimeoutError: the client's fault
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self.protocol,
                self._accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
            self._is_done = True

    def ended(self, task: asyncio.Task[None]) -> None:
        if not self._is_done:
            self.protocol.handshake_failed()
        if not self._has_begun:
            self._accepted.close()  # no transport does


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
