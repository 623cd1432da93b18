"""Deletion of blobs that nobody uses: those that commits left in `garbage`, and those that crashes left."""

import asyncio
import logging
from datetime import datetime, timedelta

from neocloud.core.clock import Clock
from neocloud.object_store.blobs.driver import BlobError
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.errors import StoreFull, StoreUnavailable
from neocloud.object_store.metadata import contents
from neocloud.object_store.metadata.transaction import Transaction

logger = logging.getLogger(__name__)
ORPHAN_AGE = timedelta(days=1)
_AT_ONCE = 256
_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
"""Between attempts to delete blobs while that fails."""


async def collect_when(wake: asyncio.Event, engine: Engine, clock: Clock) -> None:
    """Delete garbage whenever `wake` is set, and again while some is left or deletion fails."""
    wait = _WAIT_SECONDS
    while True:
        await wake.wait()
        wake.clear()
        try:
            is_some_left = await collect(engine)
            wait = _WAIT_SECONDS
        except Exception as error:
            is_known = isinstance(error, BlobError | StoreFull | StoreUnavailable)
            what = "Unused blobs could not be deleted: %s"
            logger.warning(what, error, exc_info=not is_known)
            is_some_left, wait = True, min(2 * wait, _LONGEST_WAIT_SECONDS)
        if is_some_left:
            await clock.sleep(wait)
            wake.set()


async def collect(engine: Engine) -> bool:
    """Delete garbage; return whether some is left because it is being read. Raises BlobError,
    StoreUnavailable."""
    after = 0
    is_some_left = False
    while True:
        found = engine.database.reading.execute(
            "SELECT id, content, blob FROM garbage WHERE id > ? ORDER BY id LIMIT ?", (after, _AT_ONCE)
        ).fetchall()
        if not found:
            return is_some_left
        after = found[-1][0]
        deleted: list[tuple[int]] = []
        for number, content, blob in found:
            if engine.pins[content]:
                is_some_left = True
                continue
            await engine.blobs.delete(blob)
            deleted.append((number,))

        def forget(tx: Transaction, deleted: list[tuple[int]] = deleted) -> None:
            tx.connection.executemany("DELETE FROM garbage WHERE id = ?", deleted)

        await engine.database.write(forget)


async def sweep_orphans(engine: Engine, before: datetime) -> int:
    """Delete blobs written before a time that no content and no garbage names; return how many.

    A blob is written before the transaction that names it, so `before` has to be longer ago than any body
    takes: `ORPHAN_AGE`. Raises BlobError.
    """
    swept = 0
    async for stat in engine.blobs.list():
        if stat.written_at < before and not contents.is_known(engine.database.reading, stat.name):
            await engine.blobs.delete(stat.name)
            swept += 1
    return swept
