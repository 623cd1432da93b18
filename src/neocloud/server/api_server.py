# pyright: strict

"""Start and stop the front door: gRPC and JSON in plain text on loopback, and gRPC over TLS where asked.

Plain text never leaves the machine: only the TLS port may listen on another address.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc.aio
import uvicorn

from neocloud.core.defaults import defaults_of
from neocloud.core.rates import Rate
from neocloud.core.service import Authenticator, Authorizer, Dependencies, Service
from neocloud.engines.base import Capabilities
from neocloud.server.certificates import ServerCertificate
from neocloud.server.grpc_server import MAX_CONCURRENT_CALLS, ContractHandler, options
from neocloud.server.http_server import JsonFront, StatusReport
from neocloud.server.pipeline import Middleware, Pipeline, Rates, no_middleware
from neocloud.server.redirector import Redirector
from neocloud.server.request import Runtime
from neocloud.server.retention import KEEP_EVENTS_FOR, forget_old_events, forget_old_keys
from neocloud.server.routing import endpoints, kinds_of

LOOPBACK = "127.0.0.1"
ANY_ADDRESS = ("0.0.0.0", "::")  # compared with  # nosec B104


class ServerError(Exception):
    """The server cannot start; the message says what to do next."""


@dataclass(frozen=True)
class Addresses:
    """Where the server listens, each as "host:port"."""

    grpc: str
    http: str
    tls: str = ""
    """gRPC over TLS; "" when it is off."""
    redirector: str = ""
    """The CONNECT proxy for clients that cannot be told a domain; "" when it is off."""


@dataclass(frozen=True)
class Tls:
    """gRPC over TLS, and beside it, on loopback, the redirector."""

    certificate: ServerCertificate
    host: str
    port: int
    redirector_port: int
    redirected_names: frozenset[str]


class ApiServer:
    """Serves the services it is given. Knows none of them by name."""

    def __init__(
        self,
        services: Sequence[Service],
        authenticator: Authenticator,
        authorizer: Authorizer,
        dependencies: Dependencies,
        *,
        grpc_port: int = 0,
        http_port: int = 0,
        tls: Tls | None = None,
        notify: Callable[[], None] = lambda: None,
        inventory: Callable[[], Capabilities | None] = lambda: None,
        status: StatusReport | None = None,
        middleware: Middleware = no_middleware,
    ) -> None:
        kinds, defaults = kinds_of(services), defaults_of(services)
        runtime = Runtime(dependencies, authenticator, authorizer, kinds, notify, inventory, defaults)
        self._pipeline = Pipeline(endpoints(services, runtime), runtime, _rates(dependencies), middleware)
        self._json = JsonFront(self._pipeline, status)
        self._dependencies = dependencies
        self._ports = (grpc_port, http_port)
        self._tls = tls
        self._redirector: Redirector | None = None
        self._grpc: grpc.aio.Server | None = None
        self._http: _HttpServer | None = None
        self._forgetting: asyncio.Future[Any] | None = None
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

    def max_bytes(self, path: str) -> int:
        """Return how many bytes a request of this method may have."""
        return self._pipeline.max_bytes(path)

    async def start(self) -> None:
        """Listen; returns when all ports answer. Raises ServerError when a port is taken."""
        grpc_port, http_port = self._ports
        listener = _listen(LOOPBACK, http_port)
        try:
            server = _grpc_server(self._pipeline)
            grpc_port = _bind(server, LOOPBACK, grpc_port, None)
            tls_address, redirector_address = await self._start_tls(server)
        except ServerError:
            listener.close()
            raise
        self._grpc = server
        await self._grpc.start()
        self._http = _HttpServer(self._json, listener)
        await self._http.start()
        http_port = listener.getsockname()[1]
        self._addresses = Addresses(
            f"{LOOPBACK}:{grpc_port}", f"{LOOPBACK}:{http_port}", tls_address, redirector_address
        )
        store, clock = self._dependencies.store, self._dependencies.clock
        days = getattr(self._dependencies.settings, "audit_days", KEEP_EVENTS_FOR.days)
        self._forgetting = asyncio.gather(
            forget_old_keys(store, clock), forget_old_events(store, clock, timedelta(days=days))
        )
        self._json.is_ready = True

    async def _start_tls(self, server: grpc.aio.Server) -> tuple[str, str]:
        """The addresses of the TLS port and of the redirector."""
        tls = self._tls
        if tls is None:
            return "", ""
        port = _bind(server, tls.host, tls.port, tls.certificate)
        near = tls.host if tls.host not in ANY_ADDRESS else LOOPBACK
        self._redirector = Redirector(tls.redirected_names, (near, port))
        try:
            await self._redirector.start(LOOPBACK, tls.redirector_port)
        except OSError:
            raise _port_taken(LOOPBACK, tls.redirector_port) from None
        return f"{tls.host}:{port}", self._redirector.address

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
        if self._redirector is not None:
            await self._redirector.stop()
        self._redirector = None
        self._grpc = self._http = self._forgetting = None


def _rates(dependencies: Dependencies) -> Rates:
    """As the operator chose; a server without settings has no limits."""
    settings = dependencies.settings
    subjects = Rate(getattr(settings, "calls_per_second", 0.0))
    strangers = Rate(getattr(settings, "sign_ins_per_second", 0.0))
    return Rates(subjects, strangers, dependencies.clock.monotonic)


def _grpc_server(pipeline: Pipeline) -> grpc.aio.Server:
    server = grpc.aio.server(options=options(pipeline), maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS)
    server.add_generic_rpc_handlers((ContractHandler(pipeline),))
    return server


def _bind(server: grpc.aio.Server, host: str, port: int, certificate: ServerCertificate | None) -> int:
    """Listen, over TLS when there is a certificate; returns the port."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if certificate is None:
            bound = server.add_insecure_port(address)
        else:
            pair = (certificate.key, certificate.chain)
            bound = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        bound = 0
    if not bound:
        raise _port_taken(host, port)
    return bound


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
        self._server.end()
        if self._task is not None:
            await self._task
        self._listener.close()


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the program it runs in, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()
        self._is_ending = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._is_ending.set()

    async def main_loop(self) -> None:
        """Uvicorn's own looks only ten times a second whether to end."""
        ticking = asyncio.ensure_future(super().main_loop())
        ending = asyncio.ensure_future(self._is_ending.wait())
        await asyncio.wait((ticking, ending), return_when=asyncio.FIRST_COMPLETED)
        for each in (ticking, ending):
            each.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without, the end of each answer waits 40 ms for the client's kernel.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
