"""Serves an application on a socket until SIGTERM, and lets answers under way finish."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from neocloud.gateway.app import GatewayApp
from neocloud.gateway.connections import Connections
from neocloud.gateway.protocol import ClientProtocol
from neocloud.gateway.settings import GatewaySettings

BACKLOG = 2048
LOOK_TICKS = 10
"""Ticks of a tenth of a second between two looks at all connections."""


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


class Server(uvicorn.Server):
    """Ends by returning: uvicorn's own dies of the signal again, before the ledger is closed."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOK_TICKS == 0:
            self._connections.look(LOOK_TICKS / 10)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def server(app: GatewayApp, settings: GatewaySettings) -> Server:
    connections = Connections(settings)
    config = uvicorn.Config(
        app,
        http=partial(ClientProtocol, connections),  # type: ignore[arg-type]
        loop="none",  # the one that is running
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )
    return Server(config, connections)
