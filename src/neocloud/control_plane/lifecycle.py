"""Start a control plane in order, watch it while it runs, and stop it in reverse order.

Knows no concrete class: `composition` names them.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Protocol

from neocloud import __version__
from neocloud.control_plane import state_dir
from neocloud.control_plane.public_certificate.renewal import PublicCertificate
from neocloud.control_plane.tls import host_names, renew_certificate, tls_of
from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.metrics import Metrics
from neocloud.core.readers import ServiceRegistry, Subject
from neocloud.core.reconcile import Worker
from neocloud.core.reconcile.reconciler import AnyReconciler
from neocloud.core.reconcile.wakes import Wakes
from neocloud.core.service import (
    Authenticator,
    Authorizer,
    Dependencies,
    Service,
    backfill_defaults,
    register_services,
)
from neocloud.core.store import HistorySizes, Store, Transaction, Watcher, load_or_make_key, open_store
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.metrics_keys import MACHINE_PERMISSION, load_or_make_scrape_key
from neocloud.engines.base import Capabilities, Engine
from neocloud.server import ApiServer, CertificateState, Middleware, ServerCertificate, no_middleware
from neocloud.server.http_server import StatusReport
from neocloud.server.metrics_page import MetricsPage
from neocloud.server.retention import forget_old_history
from neocloud.settings.settings import Settings

logger = logging.getLogger(__name__)


class FirstTenant(Protocol):
    """The operator's tenant, which the first start creates and later ones find."""

    @property
    def tenant_id(self) -> str: ...

    @property
    def project_id(self) -> str: ...

    @property
    def credentials(self) -> Mapping[str, object]: ...


class Companion(Protocol):
    """Another process that belongs to a control plane."""

    async def start(self) -> str:
        """Return its address."""
        ...

    @property
    def public_port(self) -> int:
        """Return the port at which other machines reach it over TLS; 0: none."""
        ...

    async def watch(self) -> None:
        """Start it again whenever it ends. Never returns."""
        ...

    async def stop(self) -> None:
        """End it. Called where it must not outlive this control plane."""
        ...


@dataclass(frozen=True)
class Composition:
    """The parts of a control plane."""

    settings: Settings
    engine: Engine
    clock: Clock
    services: Sequence[Service]
    bootstrap: Callable[[Store], Awaitable[FirstTenant]]
    authenticator: Callable[[Store], Authenticator]
    authorizer: Callable[[Store], Authorizer]
    provided: ServiceRegistry = field(default_factory=ServiceRegistry)
    """Values that services find in `Dependencies.provided` instead of what they provide themselves."""
    watch: Watcher | None = None
    """Called with every change of a resource; may refuse it."""
    history_removed: Callable[[Transaction, HistorySizes], None] = lambda tx, sizes: None
    """Called when entries of the history of resources are removed, in the same transaction."""
    background_task: Callable[[Store], Coroutine[object, None, None]] | None = None
    """Runs as long as the control plane does."""
    middleware: Callable[[Store], Middleware] = lambda store: no_middleware
    """Wraps every call."""
    reconciler: Callable[[AnyReconciler], AnyReconciler] = lambda reconciler: reconciler
    """Wraps every reconciler."""
    gateway: Callable[[str], "Companion"] | None = None
    """Makes the gateway's process, from the address where the control plane listens; None: no gateway."""
    objects: Callable[[str], "Companion"] | None = None
    """Makes the object gateway's process in the same way."""
    metrics_store: Callable[[], "Companion"] | None = None
    """Makes the process of the store of metrics."""
    collectors: CertificateFiles | None = None
    """Certificates by which collectors on this machine know the control plane; None: they reach it without
    TLS alone.
    """
    collect: Callable[[Mapping[str, str]], None] = lambda addresses: None
    """Has the store collect from these addresses, by the name of the job."""
    after_run: Callable[[str], None] = lambda kind: None
    """Called with the kind of each resource after a run of its reconciler."""


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane, as long as `control_plane` is entered."""

    server: ApiServer
    store: Store
    worker: Worker
    first: FirstTenant
    gateway: str = ""
    """Where the gateway listens; "" when there is none."""
    s3: str = ""
    """Host and port of the object gateway; "" when there is none."""
    s3_tls_port: int = 0


@asynccontextmanager
async def control_plane(composition: Composition) -> AsyncGenerator[ControlPlane, None]:
    """Start everything; on exit stop it, and leave the workloads running."""
    settings, engine, clock = composition.settings, composition.engine, composition.clock
    async with AsyncExitStack() as stack:
        key = load_or_make_key(settings.key_file)
        store = await open_store(settings.database, key, clock, watch=composition.watch)
        stack.push_async_callback(store.close)
        first = await composition.bootstrap(store)
        await backfill_defaults(store, composition.services, clock.now(), settings)
        inventory = await engine.capabilities()
        provided = composition.provided.copy().add(Metrics, Metrics())
        dependencies = Dependencies(store, clock, engine, settings, provided)
        register_services(composition.services, dependencies)
        dependencies.provided.build()
        worker = _worker(composition, dependencies)
        dependencies.provided.get(Wakes).bind(worker.enqueue)
        authorizer = composition.authorizer(store)
        has_public_name = settings.acme_domains and settings.tls_port is not None
        public = PublicCertificate(settings, clock) if has_public_name else None

        async def status(subject: Subject) -> dict[str, object]:
            state = server.certificate_state()
            certificate = _certificate_report(state, clock, public) if state else None
            tenant_id = first.tenant_id
            return await _status(composition, tenant_id, authorizer, subject, certificate, dependencies)

        key = await asyncio.to_thread(load_or_make_scrape_key, settings.home)
        allowed = _only_operators(authorizer, first.tenant_id)
        metrics = MetricsPage(composition.services, dependencies, worker, key, allowed)
        server = _api_server(composition, dependencies, authorizer, worker, inventory, status, metrics)
        await server.start()
        stack.push_async_callback(server.stop)
        gateway = composition.gateway(server.addresses.grpc) if composition.gateway else None
        objects = composition.objects(server.addresses.grpc) if composition.objects else None
        if objects is not None and settings.emulator:
            stack.push_async_callback(objects.stop)  # nothing of an emulator outlives it
        store_of_metrics = composition.metrics_store() if composition.metrics_store else None
        companions = [each for each in (gateway, objects, store_of_metrics) if each is not None]
        addresses = await asyncio.gather(*(each.start() for each in companions))
        started = dict(zip(companions, addresses, strict=True))
        server.gateway_port = gateway.public_port if gateway else 0
        if store_of_metrics is not None:
            await _collect(composition, server.addresses.collectors, started[gateway] if gateway else "")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            to_watch = _background(composition, store, server, worker, public)
            to_watch += [each.watch() for each in companions]
            watching = [tasks.create_task(each) for each in to_watch]
            yield ControlPlane(
                server,
                store,
                worker,
                first,
                gateway=started[gateway] if gateway else "",
                s3=started[objects] if objects else "",
                s3_tls_port=objects.public_port if objects else 0,
            )
            for task in watching:
                task.cancel()
            await worker.stop()


async def _collect(composition: Composition, control_plane: str, gateway: str) -> None:
    """Let the store of metrics collect from these addresses."""
    known = {"control-plane": control_plane, "gateway": gateway}
    await asyncio.to_thread(composition.collect, {job: at for job, at in known.items() if at})


def _only_operators(authorizer: Authorizer, tenant_id: str) -> Callable[[Subject], Awaitable[None]]:
    """Return what raises PERMISSION_DENIED for those who are no operators."""

    async def require_operator(subject: Subject) -> None:
        try:
            await authorizer.authorize(subject, MACHINE_PERMISSION, tenant_id)
        except contract.ApiError as error:
            text = "Only an operator of this cloud can read its metrics."
            raise contract.permission_denied(MACHINE_PERMISSION, "", text) from error

    return require_operator


def _api_server(
    composition: Composition,
    dependencies: Dependencies,
    authorizer: Authorizer,
    worker: Worker,
    inventory: Capabilities,
    status: StatusReport,
    metrics: MetricsPage,
) -> ApiServer:
    settings, store = composition.settings, dependencies.store
    return ApiServer(
        services=composition.services,
        authenticator=composition.authenticator(store),
        authorizer=authorizer,
        dependencies=dependencies,
        grpc_port=settings.grpc_port,
        http_port=settings.http_port,
        tls=tls_of(settings, composition.clock.now()),
        last=state_dir.last_addresses(settings),
        host_names=host_names(settings),
        notify=worker.notify,
        inventory=lambda: inventory,
        status=status,
        middleware=composition.middleware(store),
        metrics=metrics,
        collectors=composition.collectors,
    )


def _worker(composition: Composition, dependencies: Dependencies) -> Worker:
    services = composition.services
    reconcilers = [each for service in services for each in service.reconcilers(dependencies)]
    return Worker(
        dependencies.store,
        dependencies.clock,
        [composition.reconciler(each) for each in reconcilers],
        kinds=[kind for service in services for kind in service.kinds],
        new_id=contract.new_id,
        after_run=composition.after_run,
        on_result=dependencies.provided.get(Metrics).reconciled,
    )


def _background(
    composition: Composition,
    store: Store,
    server: ApiServer,
    worker: Worker,
    public: PublicCertificate | None,
) -> list[Coroutine[object, None, None]]:
    """Return what runs beside the server until it stops."""
    running: list[Coroutine[object, None, None]] = [
        _watch(composition.engine, worker),
        _forget_history(composition, store),
    ]
    if composition.settings.tls_port is not None:
        running.append(_renew_certificate(composition, server, public))
    if composition.background_task is not None:
        running.append(composition.background_task(store))
    return running


async def serve(composition: AbstractAsyncContextManager[Composition], settings: Settings) -> None:
    """Lock the state folder and run until a stop signal. Raises errors whose texts are for the operator."""
    with state_dir.locked(settings):
        try:
            async with composition as ready, control_plane(ready) as running:
                stop = _stop_on_signal()  # before the address is announced, by which others can stop it
                addresses, first = running.server.addresses, running.first
                state_dir.announce(
                    settings,
                    grpc=addresses.grpc,
                    http=addresses.http,
                    tls=addresses.tls,
                    redirector=addresses.redirector,
                    gateway=running.gateway,
                    s3=running.s3,
                    s3_tls_port=running.s3_tls_port,
                    listen=settings.listen,
                    https_port=addresses.https_port,
                    collectors=addresses.collectors,
                    gateway_tls_port=running.server.gateway_port,
                    login_addresses=() if settings.emulator else settings.login_addresses,
                    credentials=first.credentials,
                    tenant_id=first.tenant_id,
                    project_id=first.project_id,
                )
                what = "emulator, nothing real runs" if settings.emulator else "ready"
                logger.info(
                    "%s: grpc %s, http %s, home %s", what, addresses.grpc, addresses.http, settings.home
                )
                await stop.wait()
                state_dir.note_end(settings)
                logger.info("stopping; workloads keep running")
        finally:
            state_dir.withdraw(settings)


async def _forget_history(composition: Composition, store: Store) -> None:
    metered = [kind for service in composition.services for meter in service.meters for kind in meter.kinds]
    keep_for = timedelta(days=composition.settings.history_days)
    await forget_old_history(store, composition.clock, metered, composition.history_removed, keep_for)


async def _renew_certificate(
    composition: Composition, server: ApiServer, public: PublicCertificate | None
) -> None:
    def renewed(certificate: ServerCertificate) -> None:
        server.authority = certificate.authority

    await renew_certificate(composition.settings, composition.clock, renewed, public)


async def _watch(engine: Engine, worker: Worker) -> None:
    """Enqueue a resource at each event of its pods; their namespace is named after the resource."""
    async for event in engine.events():
        worker.enqueue(event.pod.namespace)


async def _status(
    composition: Composition,
    operators_tenant: str,
    authorizer: Authorizer,
    subject: Subject,
    certificate: dict[str, object] | None,
    dependencies: Dependencies,
) -> dict[str, object]:
    """Return what every tenant may read, and for the operator details of the machine too."""
    known: dict[str, object] = {
        "version": __version__,
        "is_emulator": composition.settings.emulator,
        "services": [service.name for service in composition.services],
    }
    try:
        await authorizer.authorize(subject, MACHINE_PERMISSION, operators_tenant)
    except contract.ApiError:
        return known
    return known | {
        "home": str(composition.settings.home),
        "database": "postgresql" if composition.settings.database_url else "sqlite",
        "certificate": certificate,
        "engine": asdict(await composition.engine.capabilities()),
        "reports": {
            service.name: await service.report(dependencies)
            for service in composition.services
            if service.report is not None
        },
    }


def _certificate_report(
    state: CertificateState, clock: Clock, public: PublicCertificate | None
) -> dict[str, object]:
    problem = state.problem
    if public is not None:
        problem = public.problem() or (problem if state.is_own else "")
    return {
        "file": str(state.file),
        "ends_at": state.ends_at.isoformat(),
        "is_own": state.is_own,
        "is_expired": state.is_expired(clock.now()),
        "problem": problem,
        "is_renewed": state.is_own or public is not None,
        "acme": public.report() if public else None,
        "ends_with_authority": state.ends_with_authority,
    }


def _stop_on_signal() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
