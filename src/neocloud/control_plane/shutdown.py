# pyright: strict
"""Stop a cloud's workloads after its server has ended, or remove every trace of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from neocloud.control_plane import state_dir
from neocloud.control_plane.gateway_supervisor import stop_gateway
from neocloud.control_plane.settings import Settings
from neocloud.core import wire
from neocloud.core.clock import SystemClock
from neocloud.core.kind import Kind
from neocloud.core.store import load_or_make_key, open_store
from neocloud.core.store.protocol import Store, Transaction


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


async def record_stop(store: Store, kinds: Sequence[Kind]) -> int:
    """Give every live resource of kinds that can stop their stopped state; says how many there were."""

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
