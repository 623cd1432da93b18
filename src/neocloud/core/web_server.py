# pyright: strict
"""An HTTP server on bound sockets, for the API and the gateway: uvicorn without its signals and timers."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from socket import socket
from types import FrameType
from typing import cast

import uvicorn

TICK_SECONDS = 1.0
HANDSHAKE_SECONDS = 10.0
"""A client has this long for its TLS handshake; asyncio gives it a minute."""


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
