"""Start and stop the API server: gRPC and JSON in plain text on loopback, and over TLS where configured.

Plain text never leaves the machine: only the TLS ports may listen on other addresses.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import grpc.aio

from neocloud.core.service import Authenticator, Authorizer, Dependencies, Service, defaults_of
from neocloud.data_plane.certificate_files import CertificateFiles, CertificateUnusable, LoadedCertificate
from neocloud.data_plane.rate_limits import Rate
from neocloud.engines.base import Capabilities
from neocloud.server.certificate_state import UNUSABLE_AT_START, CertificateState, certificate_state
from neocloud.server.certificates import ServerCertificate, read_certificate
from neocloud.server.grpc_connections import ConnectionShares
from neocloud.server.grpc_server import MAX_CONCURRENT_CALLS, ContractHandler, options
from neocloud.server.http_server import Discovery, JsonFront, StatusReport
from neocloud.server.listening import (
    EVERY_ADDRESS,
    LOOPBACK,
    HttpServer,
    ServerError,
    close_all,
    host_and_port,
    listen,
    listen_on,
    not_bound,
)
from neocloud.server.metrics_page import MetricsPage
from neocloud.server.pipeline import Middleware, Pipeline, Rates, no_middleware
from neocloud.server.redirector import Redirector
from neocloud.server.request import Runtime
from neocloud.server.retention import (
    KEEP_EVENTS_FOR,
    archive_old_logs,
    forget_old_events,
    forget_old_keys,
)
from neocloud.server.routing import endpoints, kinds_of

_T = TypeVar("_T")
ANY_ADDRESS = ("0.0.0.0", "::")  # compared with  # nosec B104


@dataclass(frozen=True)
class Addresses:
    """The addresses at which the server listens, each as "host:port"."""

    grpc: str
    http: str
    tls: str = ""
    """gRPC over TLS; "" when it is off."""
    redirector: str = ""
    """The CONNECT proxy for clients without an option for a domain; "" when it is off."""
    https_port: int = 0
    """JSON over TLS, on the addresses for other machines; 0 when there are none."""
    collectors: str = ""
    """`/metrics` over TLS on this machine; "" where nobody collects."""


@dataclass(frozen=True)
class Tls:
    """gRPC over TLS, and beside it, on loopback, the redirector."""

    certificate: ServerCertificate
    host: str
    port: int
    redirector_port: int
    redirected_names: frozenset[str]
    public: "Public | None" = None


@dataclass(frozen=True)
class Public:
    """The addresses at which other machines reach gRPC and JSON, over TLS."""

    addresses: tuple[str, ...]
    """Addresses of this host; "all" stands for each."""
    https_port: int


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
        last: "Addresses | None" = None,
        host_names: Sequence[str] = (),
        notify: Callable[[], None] = lambda: None,
        inventory: Callable[[], Capabilities | None] = lambda: None,
        status: StatusReport | None = None,
        middleware: Middleware = no_middleware,
        metrics: MetricsPage | None = None,
        collectors: CertificateFiles | None = None,
    ) -> None:
        """`collectors`: the certificate by which collectors on this machine know the server before they show
        it their key."""
        kinds, defaults = kinds_of(services), defaults_of(services)
        made_with = {kind: find for service in services for kind, find in service.made_with.items()}
        runtime = Runtime(
            dependencies, authenticator, authorizer, kinds, notify, inventory, defaults, made_with
        )
        self._pipeline = Pipeline(endpoints(services, runtime), runtime, _rates(dependencies), middleware)
        routes = [route for service in services for route in service.http_routes]
        self._json = JsonFront(self._pipeline, status, host_names, routes, metrics)
        self._dependencies = dependencies
        self._ports = (grpc_port, http_port)
        self._tls = tls
        self._files: CertificateFiles | None = None
        if tls is not None:
            self._files = CertificateFiles(tls.certificate.chain_file, tls.certificate.key_file)
        self._collectors = collectors
        self._last = last or Addresses("", "")
        """Where a server of this cloud listened before: its ports are preferred where any will do."""
        self._redirector: Redirector | None = None
        self._grpc: grpc.aio.Server | None = None
        self._http: list[HttpServer] = []
        self.authority = tls.certificate.authority if tls else b""
        """The certificate that clients have to trust, in PEM form; empty for a certificate that somebody else
        issued.
        """
        self.gateway_port = 0
        """Port of the OpenAI-compatible API over TLS, for other machines; 0: none."""
        self._background: asyncio.Future[Any] | None = None
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

    def certificate_state(self) -> CertificateState | None:
        """Return the state of the certificate that new connections get; None without TLS."""
        if self._files is None:
            return None
        chain, now = self._files.load().chain, self._dependencies.clock.now()
        state = certificate_state(chain, self._files.chain, now, authority=self.authority)
        if state.is_own or state.is_expired(now):
            return state
        try:
            read_certificate(self._files.chain, self._files.key, now)
        except ServerError as error:
            return replace(state, problem=f"{UNUSABLE_AT_START}{error} {state.problem}".rstrip())
        return state

    def max_bytes(self, path: str) -> int:
        """Return how many bytes a request of this method may have."""
        return self._pipeline.max_bytes(path)

    async def start(self) -> None:
        """Listen; returns when all ports answer. Raises ServerError when a port is taken."""
        grpc_port, http_port = self._ports
        opened: list[socket.socket] = []
        try:
            near = _take_port(http_port, self._last.http, lambda port: listen(LOOPBACK, port))
            opened.append(near)
            far = self._listen_beyond_loopback()
            opened += far
            collected = self._listen_for_collectors()
            opened += collected
            server = _grpc_server(self._pipeline)
            grpc_port = _take_port(
                grpc_port, self._last.grpc, lambda port: _bind(server, LOOPBACK, port, None)
            )
            tls_address, redirector_address = await self._start_tls(server)
        except ServerError:
            close_all(opened)
            raise
        self._grpc = server
        await self._grpc.start()
        self._http = [HttpServer(self._json.application(), [near], None)]
        try:
            if far:
                self._http.append(HttpServer(self._json.application(self._discovery), far, self._files))
            if collected:
                page = self._json.collectors_application()
                self._http.append(HttpServer(page, collected, self._collectors))
            for each in self._http:
                await each.start()
        except ServerError:
            await self.stop(0)
            close_all([*far, *collected])  # `stop` does not know them if no HttpServer could be made
            raise
        self._addresses = Addresses(
            f"{LOOPBACK}:{grpc_port}",
            f"{LOOPBACK}:{near.getsockname()[1]}",
            tls_address,
            redirector_address,
            far[0].getsockname()[1] if far else 0,
            f"{LOOPBACK}:{collected[0].getsockname()[1]}" if collected else "",
        )
        store, clock = self._dependencies.store, self._dependencies.clock
        days = getattr(self._dependencies.settings, "audit_days", KEEP_EVENTS_FOR.days)
        self._background = asyncio.gather(
            forget_old_keys(store, clock),
            forget_old_events(store, clock, timedelta(days=days)),
            archive_old_logs(store, clock),
            *self._limit_connections(tls_address),
        )
        self._json.is_ready = True

    def _listen_beyond_loopback(self) -> list[socket.socket]:
        public = self._tls and self._tls.public
        if public is None:
            return []
        last = f":{self._last.https_port}"
        return _take_port(public.https_port, last, lambda port: listen_on(public.addresses, port))

    def _listen_for_collectors(self) -> list[socket.socket]:
        if self._collectors is None:
            return []
        return [_take_port(0, self._last.collectors, lambda port: listen(LOOPBACK, port))]

    def _limit_connections(self, tls_address: str) -> Sequence[Coroutine[object, None, None]]:
        """Return what limits connections of other machines to gRPC; plain text is for this machine alone."""
        if not tls_address:
            return ()
        return (ConnectionShares({int(tls_address.rpartition(":")[2])}).check_periodically(),)

    def _discovery(self) -> Discovery:
        """Return what a client needs before it signs in."""
        assert self._tls is not None, "Only the TLS side is asked."
        port = self.addresses.tls.rpartition(":")[2]
        return Discovery(self.authority, int(port), self.gateway_port)

    async def _start_tls(self, server: grpc.aio.Server) -> tuple[str, str]:
        """Return the addresses of the TLS port, as this machine reaches it, and of the redirector."""
        tls, files = self._tls, self._files
        if tls is None or files is None:
            return "", ""
        try:
            files.load()
        except CertificateUnusable as error:
            raise ServerError(str(error)) from error
        first, *others = _tls_hosts(tls)
        if first in ANY_ADDRESS and tls.port:
            # gRPC is content with one family, and another program may have the port on the other.
            close_all(listen_on((EVERY_ADDRESS,), tls.port))
        port = _take_port(tls.port, self._last.tls, lambda port: _bind(server, first, port, files))
        for host in others:
            _bind(server, host, port, files)
        near = first if first not in ANY_ADDRESS else LOOPBACK
        self._redirector = Redirector(tls.redirected_names, (near, port))
        await self._start_redirector(self._redirector, tls.redirector_port)
        return host_and_port(first if not tls.public else near, port), self._redirector.address

    async def _start_redirector(self, redirector: Redirector, chosen: int) -> None:
        *preferred, final = _ports_to_try(chosen, self._last.redirector)
        for port in preferred:
            with contextlib.suppress(OSError):
                return await redirector.start(LOOPBACK, port)
        try:
            return await redirector.start(LOOPBACK, final)
        except OSError as error:
            raise not_bound(LOOPBACK, final, error) from None

    async def stop(self, grace_seconds: float = 2.0) -> None:
        """Let running calls end within the grace, then close. May be repeated."""
        self._json.is_ready = False
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)
        if self._grpc is not None:
            await self._grpc.stop(grace_seconds)
        for each in self._http:
            await each.stop()
        if self._redirector is not None:
            await self._redirector.stop()
        self._redirector = None
        self._http = []
        self._grpc = self._background = None


def _rates(dependencies: Dependencies) -> Rates:
    """Return the rates that the operator chose; a server without settings has no limits."""
    settings = dependencies.settings
    subjects = Rate(getattr(settings, "calls_per_second", 0.0))
    unauthenticated = Rate(getattr(settings, "sign_ins_per_second", 0.0))
    return Rates(subjects, unauthenticated, dependencies.clock.monotonic)


def _take_port(port: int, last: str, take: Callable[[int], _T]) -> _T:
    """Take the port, or for 0 that of the last address or any other. Raises ServerError when it is taken."""
    *preferred, final = _ports_to_try(port, last)
    for each in preferred:
        with contextlib.suppress(ServerError):
            return take(each)
    return take(final)


def _ports_to_try(port: int, last: str) -> Sequence[int]:
    before = int(last.rpartition(":")[2] or 0)
    return (port,) if port or not before else (before, 0)


def _grpc_server(pipeline: Pipeline) -> grpc.aio.Server:
    server = grpc.aio.server(options=options(pipeline), maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS)
    server.add_generic_rpc_handlers((ContractHandler(pipeline),))
    return server


def _tls_hosts(tls: Tls) -> list[str]:
    """Return what gRPC binds over TLS. It takes the address 0.0.0.0 for every address of each family."""
    hosts = (tls.host, *(tls.public.addresses if tls.public else ()))
    if EVERY_ADDRESS in hosts or any(host in ANY_ADDRESS for host in hosts):
        return [ANY_ADDRESS[0]]
    return list(dict.fromkeys(hosts))


def _bind(server: grpc.aio.Server, host: str, port: int, certificate: CertificateFiles | None) -> int:
    """Listen, over TLS when there is a certificate; returns the port."""
    address = host_and_port(host, port)
    try:
        if certificate is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _credentials(certificate))
    except RuntimeError:
        bound = 0
    if not bound:
        listen(host, port).close()  # it says why, which gRPC does not
        raise not_bound(host, port)
    return bound


def _credentials(certificate: CertificateFiles) -> grpc.ServerCredentials:
    """Return credentials that follow the files: gRPC calls `changed` before each handshake, in its thread."""
    last = certificate.load()

    def changed() -> Any:
        nonlocal last
        newest = certificate.load()
        if newest is last:
            return None
        last = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(_configuration(last), changed)


def _configuration(loaded: LoadedCertificate) -> Any:
    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.chain)])
