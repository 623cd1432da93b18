# pyright: strict
"""Deletion of blobs that nobody uses: those that commits left in `garbage`, and those that crashes left."""

from datetime import datetime, timedelta

from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.metadata import contents
from neocloud.object_store.metadata.transaction import Transaction

ORPHAN_AGE = timedelta(days=1)
_AT_ONCE = 256


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
