"""Forget what is old, so that no table grows for ever.

Idempotency keys go after a day, since no client retries for longer; marks when they have ended; audit events
when the operator wants them no more.
"""

import logging
from datetime import timedelta

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Store, StoreError

KEEP_KEYS_FOR = timedelta(hours=24)
KEEP_EVENTS_FOR = timedelta(days=365)
EVENTS_AT_ONCE = 1000
"""A transaction that removes more would keep the writer from everybody else."""
_LOOK_EVERY_SECONDS = 3600.0
_LOG = logging.getLogger("neocloud.server")


async def forget_old_keys(store: Store, clock: Clock) -> None:
    """Runs until it is cancelled."""
    while True:
        now = clock.now()
        try:
            await store.write(lambda tx, now=now: tx.forget_keys(now - KEEP_KEYS_FOR))
            await store.write(lambda tx, now=now: tx.forget_ended_marks(now))
        except StoreError as error:
            _LOG.warning("idempotency keys and marks stay for now: %s", error)
        await clock.sleep(_LOOK_EVERY_SECONDS)


async def forget_old_events(store: Store, clock: Clock, keep_for: timedelta = KEEP_EVENTS_FOR) -> None:
    """Runs until it is cancelled."""
    while True:
        before = clock.now() - keep_for
        try:
            while await store.write(lambda tx, before=before: tx.forget_audit(before, EVENTS_AT_ONCE)):
                pass
        except StoreError as error:
            _LOG.warning("old audit events stay for now: %s", error)
        await clock.sleep(_LOOK_EVERY_SECONDS)
