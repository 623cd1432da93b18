"""Forget idempotency keys after a day: no client retries for longer, and the table must not grow for ever."""

import logging
from datetime import timedelta

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Store, StoreError

KEEP_KEYS_FOR = timedelta(hours=24)
_LOOK_EVERY_SECONDS = 3600.0
_LOG = logging.getLogger("neocloud.server")


async def forget_old_keys(store: Store, clock: Clock) -> None:
    """Runs until it is cancelled."""
    while True:
        before = clock.now() - KEEP_KEYS_FOR
        try:
            await store.write(lambda tx, before=before: tx.forget_keys(before))
        except StoreError as error:
            _LOG.warning("idempotency keys stay for now: %s", error)
        await clock.sleep(_LOOK_EVERY_SECONDS)
