"""Start and stop the front door: one gRPC port and one JSON port, loopback unless told otherwise."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
import uvicorn

from neocloud.core.service import Authenticator, Authorizer, Dependencies, Service
from neocloud.server.grpc_front import OPTIONS, ContractHandler
from neocloud.server.json_front import JsonFront, StatusReport
from neocloud.server.pipeline import Pipeline
from neocloud.server.retention import forget_old_keys
from neocloud.server.routing import endpoints, kinds_of
from neocloud.server.runtime import Runtime

LOOPBACK = "127.0.0.1"


class ServerError(Exception):
    """The server cannot start; the message says what to do next."""


@dataclass(frozen=True)
class Addresses:
    """Where the server listens, each as "host:port"."""

    grpc: str
    http: str


class ApiServer:
    """Serves the bricks it is given. Knows none of them by name."""

    def __init__(
        self,
        services: Sequence[Service],
        authenticator: Authenticator,
        authorizer: Authorizer,
        dependencies: Dependencies,
        *,
        host: str = LOOPBACK,
        grpc_port: int = 0,
        http_port: int = 0,
        wake: Callable[[], None] = lambda: None,
        inventory: Callable[[], Any] = lambda: None,
        status: StatusReport | None = None,
    ) -> None:
        runtime = Runtime(dependencies, authenticator, authorizer, kinds_of(services), wake, inventory)
        self._pipeline = Pipeline(endpoints(services, runtime), runtime)
        self._json = JsonFront(self._pipeline, runtime, status)
        self._dependencies = dependencies
        self._host = host
        self._ports = (grpc_port, http_port)
        self._grpc: grpc.aio.Server | None = None
        self._http: _HttpServer | None = None
        self._forgetting: asyncio.Task[None] | None = None
        self._addresses: Addresses | None = None

    @property
    def addresses(self) -> Addresses:
        if self._addresses is None:
            raise ServerError("The server has not been started.")
        return self._addresses

    @property
    def paths(self) -> frozenset[str]:
        """The methods that are served, as "package.Service/Method"."""
        return self._pipeline.paths

    async def start(self) -> None:
        """Listen; returns when both ports answer. Raises ServerError when a port is taken."""
        grpc_port, http_port = self._ports
        listener = _listen(self._host, http_port)
        try:
            self._grpc, grpc_port = self._listen_grpc(grpc_port)
        except ServerError:
            listener.close()
            raise
        await self._grpc.start()
        self._http = _HttpServer(self._json, listener)
        await self._http.start()
        self._addresses = Addresses(f"{self._host}:{grpc_port}", f"{self._host}:{listener.getsockname()[1]}")
        store, clock = self._dependencies.store, self._dependencies.clock
        self._forgetting = asyncio.create_task(forget_old_keys(store, clock))
        self._json.is_ready = True

    async def stop(self, grace_seconds: float = 2.0) -> None:
        """Let running calls end within the grace, then close. May be repeated."""
        self._json.is_ready = False
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.gather(self._forgetting, return_exceptions=True)
        if self._grpc is not None:
            await self._grpc.stop(grace_seconds)
        if self._http is not None:
            await self._http.stop()
        self._grpc = self._http = self._forgetting = None

    def _listen_grpc(self, port: int) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((ContractHandler(self._pipeline),))
        try:
            bound = server.add_insecure_port(f"{self._host}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise _port_taken(self._host, port)
        return server, bound


class _HttpServer:
    def __init__(self, front: JsonFront, listener: socket.socket) -> None:
        config = uvicorn.Config(
            front.application(),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        self._server = _Uvicorn(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        await self._server.is_listening.wait()

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the program it runs in, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise _port_taken(host, port) from None
    listener.setblocking(False)
    return listener


def _port_taken(host: str, port: int) -> ServerError:
    return ServerError(
        f"Port {port} on {host} is taken or may not be used. "
        "Stop what listens there, or choose another port (0 takes any that is free)."
    )
