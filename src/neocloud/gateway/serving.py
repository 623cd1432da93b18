"""Serves an application on a socket until SIGTERM, and lets answers under way finish."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from neocloud.gateway.app import GatewayApp
from neocloud.gateway.settings import GatewaySettings

BACKLOG = 2048
MOST_HEAD_BYTES = 512 * 1024
"""Before a request's body; the parser itself has no limit."""


def listen(settings: GatewaySettings) -> socket.socket:
    """Bound before anything else is done, so that two gateways do not fight over one port."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. The kernel ends those whose client takes nothing for so long; until then the
    # answer's writer is held back, and so is the engine.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.write_seconds * 1000))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((settings.host, settings.port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


class Protocol(HttpToolsProtocol):
    """Ends a connection whose request line and headers have no end."""

    _head_bytes = 0
    _is_in_head = True

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_complete()


class Server(uvicorn.Server):
    """Ends by returning: uvicorn's own dies of the signal again, before the ledger is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def server(app: GatewayApp, settings: GatewaySettings) -> Server:
    config = uvicorn.Config(
        app,
        http=Protocol,
        loop="none",  # the one that is running
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )
    return Server(config)
