"""Name the services and the engine that make up a control plane; `lifecycle` starts them.

`end_workloads` ends what they run. A new service is one name in SERVICE_MODULES; what it offers to other
services is in its `provides`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from neocloud import emulator
from neocloud.control_plane import lifecycle, state_dir
from neocloud.control_plane.address_ranges import HostRegistry, with_own_ranges
from neocloud.control_plane.gateway_supervisor import (
    MODEL_GATEWAY,
    OBJECT_GATEWAY,
    GatewayKind,
    GatewayProcess,
    PublicGateway,
    public_port,
    stop_gateway,
)
from neocloud.control_plane.host_agent import LocalHost, stop_host_agent
from neocloud.control_plane.image_sync import follow_images, load_images
from neocloud.control_plane.lifecycle import Composition, ControlPlane
from neocloud.control_plane.metrics_store import (
    collectors_certificate,
    metrics_store,
    stop_metrics_store,
    write_scrape_file,
)
from neocloud.control_plane.settings_file import BadSettings
from neocloud.control_plane.tls import certificate_files, gateway_names, keep_certificate
from neocloud.control_plane.workload_storage import (
    WorkloadStorage,
    workload_storage,
)
from neocloud.core import wire
from neocloud.core.clock import Clock, SystemClock
from neocloud.core.kind import Kind
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import Service, waking
from neocloud.core.store import Store, load_or_make_key, open_store, watched_by
from neocloud.core.store.protocol import Transaction
from neocloud.core.usage import CallerSource, UsageSource, all_usage
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.gateway_keys import object_gateway_folder
from neocloud.engines.base import Engine
from neocloud.engines.gpu_ledger import GpuLedger
from neocloud.engines.podman import PodmanEngine
from neocloud.engines.podman.network.namespace_networks import host_subnets
from neocloud.model_gateway.metering.ledger_tables import ledger_reader
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.object_gateway.oci.upstream_registries import upstream_of
from neocloud.object_gateway.work.scan.reports import ReportReader
from neocloud.object_store.artifacts import ArtifactReader
from neocloud.object_store.blobs.location_record import problem_with
from neocloud.object_store.blobs.s3.location import S3Location, s3_place
from neocloud.object_store.blobs.s3.location import arguments as blobs_arguments
from neocloud.object_store.errors import StoreUnavailable
from neocloud.object_store.metadata.location import problem_with as metadata_problem
from neocloud.object_store.metadata.location import read_address
from neocloud.object_store.metering import bucket_usage
from neocloud.server import expanded
from neocloud.services import (
    ai,
    audit,
    billing,
    compute,
    export,
    fleet,
    iam,
    inference,
    monitoring,
    operator,
    quotas,
    registry,
    search,
    slurm,
    storage,
    tuning,
    vpc,
)
from neocloud.settings.settings import Settings

SERVICE_MODULES = (
    iam,
    compute,
    vpc,
    slurm,
    fleet,
    inference,
    tuning,
    ai,
    storage,
    registry,
    billing,
    quotas,
    audit,
    export,
    monitoring,
    operator,
    search,
)
SERVICES: tuple[Service, ...] = tuple(module.SERVICE for module in SERVICE_MODULES)


def compose(
    settings: Settings,
    engine: Engine,
    clock: Clock,
    overrides: ServiceRegistry | None = None,
    *,
    make_key: Callable[[], RSAPrivateKey] = iam.make_rsa_key,
) -> Composition:
    """Compose a control plane around this engine; `overrides` replace what services provide, and `make_key`
    makes the key of the first service account."""
    tokens, found_quotas = ledger_reader(settings.home), quotas.load_quotas(settings.quota_file)
    ledger, routes = quotas.ledger(SERVICES, found_quotas), inference.RouteChanges(clock)
    buckets, access = storage.BucketChanges(clock, (registry.REGISTRY,)), storage.AccessChanges(clock)
    transfers, inventories = storage.TransferChanges(clock), storage.InventoryChanges(clock)
    provided = (
        ServiceRegistry()
        .add(billing.PriceList, billing.load_price_list(settings.price_file))
        .add(CallerSource, tokens)
        .add(UsageSource, all_usage(tokens, bucket_usage(settings.home, clock)))
        .add(inference.MonthlySpending, tokens.monthly_spending)
        .add(inference.RouteChanges, routes)
        .add(storage.BucketChanges, buckets)
        .add(storage.AccessChanges, access)
        .add(storage.TransferChanges, transfers)
        .add(storage.InventoryChanges, inventories)
        .add(registry.Artifacts, ArtifactReader(settings.home))
        .add(registry.VulnerabilityReports, ReportReader(settings.home))
        .add(tuning.Files, FileStore(settings.home))
        .add(quotas.Quotas, found_quotas)
        .update(overrides or ServiceRegistry())
    )

    return Composition(
        settings=settings,
        engine=engine,
        clock=clock,
        services=SERVICES,
        bootstrap=_bootstrap(settings, clock, ledger, make_key),
        authenticator=lambda store: iam.StoreAuthenticator(store, clock),
        authorizer=lambda store: iam.StoreAuthorizer(store, clock),
        provided=provided,
        watch=watched_by(
            ledger.watch,
            routes.watch,
            *(each.watch for each in (buckets, access, transfers, inventories)),
            waking(SERVICES, clock),
        ),
        history_removed=ledger.forgotten,
        after_run=routes.after_run,
    )


def _bootstrap(
    settings: Settings, clock: Clock, ledger: quotas.Ledger, make_key: Callable[[], RSAPrivateKey]
) -> Callable[[Store], Awaitable[iam.Bootstrap]]:
    async def bootstrap(store: Store) -> iam.Bootstrap:
        await ledger.recount(store)
        await compute.sync_public_images(store, settings, clock)
        return await iam.bootstrap(
            store,
            clock,
            tenant_name=settings.tenant_name,
            region=settings.region,
            held_credentials=state_dir.held_credentials(settings),
            make_key=make_key,
        )

    return bootstrap


def control_plane(
    settings: Settings, engine: Engine, *, clock: Clock, overrides: ServiceRegistry | None = None
) -> AbstractAsyncContextManager[ControlPlane]:
    """Run a control plane in this process around the given engine, for tests."""
    return lifecycle.control_plane(compose(settings, engine, clock, overrides))


@asynccontextmanager
async def on_podman(settings: Settings) -> AsyncGenerator[Composition, None]:
    clock = SystemClock()
    settings = await asyncio.to_thread(with_own_ranges, settings, host_subnets())
    storage_access = await asyncio.to_thread(workload_storage, settings, clock)
    settings = replace(settings, storage_authority_file=storage_access.certificate.authority)
    engine = PodmanEngine(
        settings.home,
        opened_ranges=settings.opened_ranges,
        public_interface=settings.public_interface,
        platform_services=[storage_access.service],
        other_homes=partial(HostRegistry().others, settings.home),
    )
    host = LocalHost(settings.home, clock)
    try:
        await load_images(settings.home, engine)
        ensure_storage = partial(storage_access.ensure_certificate, clock)

        def ensure_collectors() -> CertificateFiles:
            return collectors_certificate(settings.home, clock.now())

        async def follow(store: Store) -> None:
            def sync() -> Coroutine[object, None, None]:
                return compute.sync_public_images(store, settings, clock)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(host.run())
                tasks.create_task(follow_images(settings.home, engine, sync))
                tasks.create_task(keep_certificate(ensure_storage, "object storage for workloads", clock))
                tasks.create_task(keep_certificate(ensure_collectors, "/metrics for collectors", clock))

        store_of_metrics = metrics_store(settings) if settings.metrics else None
        if store_of_metrics is None:
            await stop_metrics_store(settings.home)
        composition = compose(settings, engine, clock, ServiceRegistry().add(fleet.HostNodes, host))

        async def bootstrap(store: Store) -> lifecycle.FirstTenant:
            await engine.keep_gpus_in(GpuLedger(store.write))
            first = await composition.bootstrap(store)
            await fleet.ensure_host_pool(store, clock)
            return first

        yield replace(
            composition,
            bootstrap=bootstrap,
            background_task=follow,
            gateway=_model_gateway(settings),
            objects=_objects(settings, storage_access),
            metrics_store=store_of_metrics,
            collectors=await asyncio.to_thread(ensure_collectors),
            collect=partial(write_scrape_file, settings.home),
        )
    finally:
        await engine.close()


def _model_gateway(settings: Settings) -> Callable[[str], GatewayProcess]:
    """Return what makes the model gateway, from the address of the gRPC API."""

    def gateway(api: str) -> GatewayProcess:
        return GatewayProcess.of(
            *(settings.home, settings.gateway_port, api),
            [
                *(f"--known-host={host}" for host in gateway_names(settings)),
                *(f"--media-domain={domain}" for domain in settings.media_domains),
            ],
            public=_public_gateway(settings, MODEL_GATEWAY, settings.gateway_tls_port),
            log_level=settings.log_level,
            log_format=settings.log_format,
        )

    return gateway


def _objects(settings: Settings, workloads: WorkloadStorage | None = None) -> Callable[[str], GatewayProcess]:
    """Return what makes the object gateway, from the address of the gRPC API. Raises BadSettings."""

    port, tls_port = settings.s3_ports
    place = _blobs_place(settings)
    folder = object_gateway_folder(settings.home)
    metadata = Path(settings.object_metadata) if settings.object_metadata else None
    try:
        if metadata is not None:
            read_address(metadata)
    except StoreUnavailable as error:
        raise BadSettings(f"The setting object-metadata: {error}") from error
    if problem := metadata_problem(folder, metadata) or problem_with(folder, place):
        raise BadSettings(problem)
    for each in settings.registry_mirrors:
        try:
            upstream_of(each)
        except ValueError as error:
            raise BadSettings(f"The setting registry-mirror cannot be {each!r}: write {error}.") from error

    def objects(api: str) -> GatewayProcess:
        return GatewayProcess.of(
            *(settings.home, port, api),
            [
                f"--region={settings.region}",
                *(f"--domain={host}" for host in gateway_names(settings)),
                *(["--allow-private-transfers"] if settings.allow_private_transfers else []),
                *(f"--registry-mirror={each}" for each in settings.registry_mirrors),
                *(blobs_arguments(place) if place else []),
                *([f"--metadata={metadata}"] if metadata else []),
                *(workloads.arguments() if workloads else []),
            ],
            workload_port=workloads.service.target_port if workloads else 0,
            kind=OBJECT_GATEWAY,
            public=_public_gateway(settings, OBJECT_GATEWAY, tls_port),
            log_level=settings.log_level,
            log_format=settings.log_format,
        )

    return objects


def _blobs_place(settings: Settings) -> S3Location | None:
    """Return where another engine keeps the bodies of objects; None: nowhere. Raises BadSettings."""
    if not settings.object_blobs:
        return None
    endpoint, file = settings.object_blobs_endpoint, settings.object_blobs_credentials
    if not endpoint or file is None:
        missing = "object-blobs-credentials FILE" if endpoint else "object-blobs-endpoint URL"
        raise BadSettings(
            "The setting object-blobs needs object-blobs-endpoint and object-blobs-credentials."
            f" Add what is missing: `neo config set {missing}`."
        )
    try:
        place = s3_place(settings.object_blobs, endpoint, settings.object_blobs_region, file)
        place.connection()
    except ValueError as error:
        raise BadSettings(f"The setting object-blobs: {error}.") from error
    except OSError as error:
        raise BadSettings(f"The setting object-blobs-credentials: {file}: {error.strerror}.") from error
    return place


def _public_gateway(settings: Settings, kind: GatewayKind, port: int) -> PublicGateway | None:
    """Return where a gateway listens for other machines; its certificate is the API's."""
    if not settings.listen:
        return None
    addresses = tuple(expanded(settings.listen))
    port = public_port(settings.home, addresses, port, kind)
    return PublicGateway(addresses, port, *certificate_files(settings))


@asynccontextmanager
async def on_emulator(settings: Settings) -> AsyncGenerator[Composition, None]:
    if settings.metrics:
        raise BadSettings("--metrics: the emulator has nothing to measure. Leave it out.")
    clock = SystemClock()
    async with emulator.emulated_machine(settings, clock) as machine:
        composition = emulator.emulated(compose(settings, machine.engine, clock), machine)
        yield replace(composition, objects=_objects(settings))


async def end_workloads(settings: Settings, *, destroy: bool) -> None:
    """Stop all pods, or remove every trace of them; without an engine nothing real runs.

    Raises HomeInUse while the server runs.
    """
    interface = settings.public_interface
    engine = None if settings.emulator else PodmanEngine(settings.home, public_interface=interface)
    with state_dir.locked(settings):
        await stop_gateway(settings.home, OBJECT_GATEWAY)
        await stop_metrics_store(settings.home)
        await stop_host_agent(settings.home)
        if engine is not None:
            await stop_gateway(settings.home)
            try:
                await (engine.destroy() if destroy else engine.shutdown())
            finally:
                await engine.close()
        has_database = settings.database_url or await asyncio.to_thread(Path(settings.database).exists)
        if not destroy and has_database:
            store = await open_store(settings.database, load_or_make_key(settings.key_file), SystemClock())
            await record_stop(store, [kind for service in SERVICES for kind in service.kinds])
            await store.close()
    if destroy and engine is not None:
        await asyncio.to_thread(HostRegistry().remove, settings.home)


async def record_stop(store: Store, kinds: Sequence[Kind]) -> int:
    """Write into the history that workloads were stopped on purpose, so that nobody pays for them meanwhile.

    Every live resource of kinds that can stop gets its stopped state; the next server starts it again. Return
    how many there were.
    """

    def work(tx: Transaction) -> int:
        stopped = 0
        for kind in kinds:
            rows = tx.list(kind.message)[0] if kind.stopped_state else ()
            for row in rows:
                is_idle = bool(kind.working_states) and row.state not in kind.working_states
                if row.deleted_at or is_idle or row.state == kind.stopped_state:
                    continue
                status = wire.with_state(row.kind, row.status, kind.stopped_state)
                tx.update(replace(row, state=kind.stopped_state, status=status))
                stopped += 1
        return stopped

    return await store.write(work)
