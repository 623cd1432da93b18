"""Background work of the object store: lifecycle rules, orphans, settled hours, and the removal of old
records.

Each round is safe to be killed in and to be run again.
"""

import asyncio
import logging
from datetime import timedelta

from neocloud.core.clock import Clock
from neocloud.core.loops import every
from neocloud.object_store import garbage
from neocloud.object_store.blobs.driver import BlobError
from neocloud.object_store.errors import NoSuchBucket, StoreFull, StoreUnavailable
from neocloud.object_store.images.images import UNUSED_KEPT
from neocloud.object_store.lifecycle import apply_lifecycle
from neocloud.object_store.metadata import transaction
from neocloud.object_store.metadata.transaction import Transaction, to_ms
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import BucketState

logger = logging.getLogger(__name__)
_EXPECTED = (BlobError, StoreFull, StoreUnavailable)
COMPLETED_KEPT = timedelta(days=1)
"""A client that missed the answer to its completion of an upload may ask again for so long."""


STALE_UPLOAD = timedelta(days=7)
"""An upload of a blob of an image that is not finished by then is given up."""


async def run_workers(store: ObjectStore, clock: Clock) -> None:
    """Run a round now and every hour, and tidy registries every ten minutes, until cancelled."""
    async with asyncio.TaskGroup() as group:
        problem = "A round of the workers of the object store failed"
        group.create_task(every(3600.0, lambda: run_round(store, clock), problem, clock, expected=_EXPECTED))
        problem = "Registries could not be tidied"
        group.create_task(
            every(600.0, lambda: tidy_registries(store, clock), problem, clock, expected=_EXPECTED)
        )


async def tidy_registries(store: ObjectStore, clock: Clock) -> None:
    """Remove images by the rules of registries, blobs that no manifest names, and abandoned uploads. Pushes
    and pulls continue.
    """
    now = clock.now()
    for bucket in store.buckets():
        if bucket.state is BucketState.ACTIVE and bucket.image_rules.is_any:
            await _apply_image_rules(store, bucket.id)
    collected = await store.collect_blobs(now - UNUSED_KEPT)
    aborted = await store.abort_stale_blobs(now - STALE_UPLOAD)
    if collected or aborted:
        logger.info("Removed %d unused blobs and %d uploads of registries", collected, aborted)


async def _apply_image_rules(store: ObjectStore, registry_id: str) -> None:
    try:
        removed = await store.apply_image_rules(registry_id)
    except NoSuchBucket:
        return  # scheduled for deletion meanwhile
    if removed:
        logger.info("Rules of the registry %s removed %d manifests", registry_id, removed)


async def run_round(store: ObjectStore, clock: Clock) -> None:
    """Do all that is due. Raises BlobError, StoreFull, StoreUnavailable; the next round does the rest."""
    now = clock.now()

    def tidy(tx: Transaction) -> None:
        transaction.settle_all(tx.connection, tx.now_ms)
        oldest = to_ms(now - COMPLETED_KEPT)
        tx.connection.execute("DELETE FROM completed WHERE completed_ms < ?", (oldest,))

    await store.engine.database.write(tidy)
    for bucket in store.buckets():
        if bucket.state is BucketState.ACTIVE and bucket.lifecycle:
            await _apply(store, bucket.id, clock)
    swept = await garbage.sweep_orphans(store.engine, now - garbage.ORPHAN_AGE)
    if swept:
        logger.info("Deleted %d blobs that crashes had left", swept)


async def _apply(store: ObjectStore, bucket_id: str, clock: Clock) -> None:
    try:
        done = await apply_lifecycle(store.engine, bucket_id, clock.now())
    except NoSuchBucket:
        return  # scheduled for deletion meanwhile
    if done:
        what = ", ".join(f"{action}: {number}" for action, number in done.items())
        logger.info("Lifecycle rules of %s: %s", bucket_id, what)
