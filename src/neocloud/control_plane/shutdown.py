# pyright: strict
"""Stop a cloud's workloads after its server has ended, or remove every trace of them."""

from collections.abc import Sequence
from typing import Protocol

from neocloud.control_plane import state_dir
from neocloud.control_plane.gateway_supervisor import stop_gateway
from neocloud.control_plane.settings import Settings
from neocloud.core.clock import SystemClock
from neocloud.core.kind import Kind
from neocloud.core.stopping import record_stop
from neocloud.core.store import load_or_make_key, open_store


class EndingEngine(Protocol):
    """The part of an engine that ends workloads."""

    async def shutdown(self) -> None: ...

    async def destroy(self) -> None: ...

    async def close(self) -> None: ...


async def end_workloads(
    settings: Settings, engine: EndingEngine | None, kinds: Sequence[Kind], *, destroy: bool
) -> None:
    """Stop all pods, or remove every trace of them; without an engine nothing real runs.

    Raises HomeInUse while the server runs.
    """
    with state_dir.locked(settings):
        if engine is not None:
            await stop_gateway(settings.home)
            try:
                await (engine.destroy() if destroy else engine.shutdown())
            finally:
                await engine.close()
        if not destroy:
            store = await open_store(settings.database, load_or_make_key(settings.key_file), SystemClock())
            await record_stop(store, kinds)
            await store.close()
