"""Names the concrete parts of the control plane and runs it. The only file that does; `running` starts them.

    python -m neocloud.app --home /var/lib/neocloud

Runs in the foreground until SIGTERM or SIGINT. Workloads go on when it stops; `--stop-workloads` and
`--destroy-workloads` (what `neo down` and `neo destroy` call) end them.

A new service is one line in SERVICES; what bricks hand to each other is one line in `extras`.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from neocloud import emulator, home, running
from neocloud.container_images import follow_images, load_images
from neocloud.core.clock import Clock, SystemClock
from neocloud.core.service import Service
from neocloud.core.stopping import record_stop
from neocloud.core.store import Store, StoreError, load_or_make_key, open_store
from neocloud.engines.base import Engine, EngineError
from neocloud.engines.podman import PodmanEngine
from neocloud.running import ControlPlane, Parts
from neocloud.server import ServerError
from neocloud.services import audit, billing, compute, iam, quotas, slurm, vpc
from neocloud.settings import Settings, parse_arguments

log = logging.getLogger("neocloud")

SERVICES: tuple[Service, ...] = (
    iam.SERVICE,
    compute.SERVICE,
    vpc.SERVICE,
    slurm.SERVICE,
    billing.SERVICE,
    quotas.SERVICE,
    audit.SERVICE,
)


def extras(settings: Settings) -> dict[str, Any]:
    """What bricks find in `Dependencies.extras`."""
    return {
        billing.METERS: tuple(meter for service in SERVICES for meter in service.meters),
        billing.PRICES: billing.load_price_list(settings.price_file),
        quotas.QUOTAS: quotas.load_quotas(settings.quota_file),
    }


def parts(settings: Settings, engine: Engine, clock: Clock, more: Mapping[str, Any]) -> Parts:
    """All of them around this engine; `more` goes over the usual extras."""
    found = {**extras(settings), **more}
    ledger = quotas.ledger(SERVICES, found[quotas.QUOTAS])

    async def bootstrap(store: Store) -> iam.Bootstrap:
        await ledger.recount(store)
        await compute.seed_images(store, settings, clock)
        return await iam.bootstrap(
            store,
            clock,
            tenant_name=settings.tenant_name,
            region=settings.region,
            held_credentials=home.held_credentials(settings),
        )

    return Parts(
        settings=settings,
        engine=engine,
        clock=clock,
        services=SERVICES,
        bootstrap=bootstrap,
        authenticator=lambda store: iam.StoreAuthenticator(store, clock),
        authorizer=lambda store: iam.StoreAuthorizer(store, clock),
        extras=found,
        extras_of=lambda store: iam.extras(store, clock, host=settings.host),
        watch=ledger.watch,
    )


def control_plane(
    settings: Settings, engine: Engine, *, clock: Clock, extras: Mapping[str, Any]
) -> AbstractAsyncContextManager[ControlPlane]:
    """For tests: a control plane in this process, around an engine of theirs."""
    return running.control_plane(parts(settings, engine, clock, extras))


@asynccontextmanager
async def on_podman(settings: Settings) -> AsyncIterator[Parts]:
    engine = PodmanEngine(settings.home)
    try:
        await load_images(settings.home, engine)
        clock = SystemClock()

        def follow(store: Store) -> Coroutine[Any, Any, None]:
            return follow_images(settings.home, engine, lambda: compute.seed_images(store, settings, clock))

        yield replace(parts(settings, engine, clock, {}), beside=follow)
    finally:
        await engine.close()


@asynccontextmanager
async def on_emulator(settings: Settings) -> AsyncIterator[Parts]:
    clock = SystemClock()
    async with emulator.emulated_machine(settings, clock) as machine:
        yield emulator.emulated(parts(settings, machine.engine, clock, {}), machine)


async def end_workloads(settings: Settings, *, destroy: bool) -> None:
    """Stop all pods, or remove every trace of them. The server must not run."""
    with home.locked(settings):
        if not settings.emulator:
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
            machine = on_emulator(settings) if settings.emulator else on_podman(settings)
            asyncio.run(running.serve(machine, settings))
        else:
            asyncio.run(end_workloads(settings, destroy=action == "destroy"))
    except (
        StoreError,
        EngineError,
        ServerError,
        billing.PriceListError,
        quotas.QuotaFileError,
        emulator.UnknownGpus,
        home.HomeInUse,
        OSError,
    ) as error:
        print(f"neocloud: {error}", file=sys.stderr)  # noqa: T201  the last word goes to the operator
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
