"""Wires the control plane together and runs it. The only file that names concrete classes.

    python -m neocloud.app --home /var/lib/neocloud

Runs in the foreground until SIGTERM or SIGINT. Workloads go on when it stops; `--stop-workloads` and
`--destroy-workloads` (what `neo down` and `neo destroy` call) end them.
"""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from neocloud import __version__, home
from neocloud.core import contract
from neocloud.core.clock import Clock, SystemClock
from neocloud.core.reconcile import Worker
from neocloud.core.service import Dependencies, Service
from neocloud.core.stopping import record_stop
from neocloud.core.store import Store, StoreError, load_or_make_key, open_store
from neocloud.engines.base import Engine, EngineError
from neocloud.engines.podman import PodmanEngine
from neocloud.server import ApiServer, ServerError
from neocloud.services import billing, compute, iam, slurm
from neocloud.settings import Settings, parse_arguments

log = logging.getLogger("neocloud")

SERVICES: tuple[Service, ...] = (iam.SERVICE, compute.SERVICE, slurm.SERVICE, billing.SERVICE)


@dataclass(frozen=True)
class ControlPlane:
    """A running one, for as long as `control_plane` is entered."""

    server: ApiServer
    store: Store
    worker: Worker
    first: iam.Bootstrap


@asynccontextmanager
async def control_plane(
    settings: Settings, engine: Engine, *, clock: Clock, extras: Mapping[str, Any]
) -> AsyncIterator[ControlPlane]:
    """Start all parts around this engine; on the way out stop them and leave the workloads alone."""
    async with AsyncExitStack() as stack:
        store = await open_store(settings.database, load_or_make_key(settings.key_file), clock)
        stack.push_async_callback(store.close)
        first = await iam.bootstrap(
            store,
            clock,
            tenant_name=settings.tenant_name,
            region=settings.region,
            held_credentials=home.held_credentials(settings),
        )
        inventory = await engine.capabilities()
        parts = {
            billing.METERS: tuple(meter for service in SERVICES for meter in service.meters),
            billing.PRICES: billing.load_price_list(settings.price_file),
            **extras,
        }
        dependencies = Dependencies(store, clock, engine, settings, parts)
        worker = Worker(
            store,
            clock,
            [r for service in SERVICES for r in service.reconcilers(dependencies)],
            kinds=[kind for service in SERVICES for kind in service.kinds],
            new_id=contract.new_id,
        )
        server = ApiServer(
            services=SERVICES,
            authenticator=iam.StoreAuthenticator(store, clock),
            authorizer=iam.StoreAuthorizer(store, clock),
            dependencies=dependencies,
            host=settings.host,
            grpc_port=settings.grpc_port,
            http_port=settings.http_port,
            wake=worker.wake,
            inventory=lambda: inventory,
            status=lambda: _status(settings, engine),
        )
        await server.start()
        stack.push_async_callback(server.stop)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            watching = tasks.create_task(_watch(engine, worker))
            yield ControlPlane(server, store, worker, first)
            watching.cancel()
            await worker.stop()


async def serve(settings: Settings) -> None:
    """Run until told to stop. Raises an error whose text is meant for the operator."""
    with home.locked(settings):
        engine = PodmanEngine(settings.home)
        try:
            await _load_images(settings, engine)
            async with control_plane(settings, engine, clock=SystemClock(), extras={}) as running:
                addresses, first = running.server.addresses, running.first
                home.announce(
                    settings,
                    grpc=addresses.grpc,
                    http=addresses.http,
                    credentials=first.credentials,
                    tenant_id=first.tenant_id,
                    project_id=first.project_id,
                )
                log.info("ready: grpc %s, http %s, home %s", addresses.grpc, addresses.http, settings.home)
                await _stop_signal()
        finally:
            await engine.close()
            settings.server_file.unlink(missing_ok=True)


async def _load_images(settings: Settings, engine: PodmanEngine) -> None:
    """Hand the engine the container images that were built since it last looked."""
    for record in sorted(settings.home.glob("images/*/image.json")):
        image = json.loads(record.read_text())
        if "archive" in image and not await engine.image_exists(image["name"]):
            log.info("loading image %s", image["name"])
            await engine.load_image(record.parent / image["archive"])


async def _watch(engine: Engine, worker: Worker) -> None:
    """A namespace is named after the resource whose pods it holds: an event there is a reason to look."""
    async for event in engine.events():
        worker.wake(event.pod.namespace)


async def _status(settings: Settings, engine: Engine) -> dict:
    return {
        "version": __version__,
        "home": str(settings.home),
        "database": "postgresql" if settings.database_url else "sqlite",
        "engine": asdict(await engine.capabilities()),
        "services": [service.name for service in SERVICES],
    }


async def _stop_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    log.info("stopping; workloads go on")


async def end_workloads(settings: Settings, *, destroy: bool) -> None:
    """Stop all pods, or remove every trace of them. The server must not run."""
    with home.locked(settings):
        engine = PodmanEngine(settings.home)
        try:
            await (engine.destroy() if destroy else engine.shutdown())
        finally:
            await engine.close()
        if not destroy:
            store = await open_store(settings.database, load_or_make_key(settings.key_file), SystemClock())
            await record_stop(store, [kind for service in SERVICES for kind in service.kinds])
            await store.close()


def main() -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    action, settings = parse_arguments()
    try:
        if action == "serve":
            asyncio.run(serve(settings))
        else:
            asyncio.run(end_workloads(settings, destroy=action == "destroy"))
    except (
        StoreError,
        EngineError,
        ServerError,
        billing.PriceListError,
        home.HomeInUse,
        OSError,
    ) as error:
        print(f"neocloud: {error}", file=sys.stderr)  # noqa: T201  the last word goes to the operator
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
