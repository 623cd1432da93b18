"""Forget what is old, so that no table grows for ever.

Idempotency keys go after a day, since no client retries for longer; marks when they have ended; audit events
when the operator wants them no more. Versions of resources go some time after a newer one replaced them or
their resource was deleted: later where bills are computed from them. Events of logs, such as those of nodes,
are never thrown away while their resource is known: old ones are compressed.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from neocloud.core.clock import Clock
from neocloud.core.loops import every
from neocloud.core.store import (
    Archive,
    HistorySizes,
    LogEvent,
    Page,
    Store,
    StoreError,
    Transaction,
)
from neocloud.core.usage import set_kept_from

KEEP_KEYS_FOR = timedelta(hours=24)
KEEP_EVENTS_FOR = timedelta(days=365)
EVENTS_AT_ONCE = 1000
"""A transaction that removes more would keep the writer from everybody else."""
KEEP_VERSIONS_FOR = timedelta(days=30)
"""How long versions are kept of kinds that no meter reads."""
VERSIONS_AT_ONCE = 200
"""Versions of up to 256 KiB each, looked at in one transaction."""
ARCHIVE_AFTER = timedelta(days=35)
"""People ask for the evidence of the bills and incidents of this month and the last: it is read fast."""
ARCHIVED_AT_ONCE = 500
ARCHIVED_BYTES = 1 << 20
"""Bytes of events that are compressed together."""


async def forget_old_keys(store: Store, clock: Clock) -> None:
    """Runs until it is cancelled."""

    async def forget() -> None:
        now = clock.now()
        await store.write(lambda tx: tx.forget_keys(now - KEEP_KEYS_FOR))
        await store.write(lambda tx: tx.forget_ended_marks(now))

    await _every_hour(forget, "idempotency keys and marks stay for now", clock)


async def forget_old_events(store: Store, clock: Clock, keep_for: timedelta = KEEP_EVENTS_FOR) -> None:
    """Runs until it is cancelled."""

    async def forget() -> None:
        before = clock.now() - keep_for
        while await store.write(lambda tx: tx.forget_audit(before, EVENTS_AT_ONCE)):
            pass

    await _every_hour(forget, "old audit events stay for now", clock)


async def archive_old_logs(store: Store, clock: Clock) -> None:
    """Runs until it is cancelled."""

    async def archive() -> None:
        log = await store.read(lambda tx: tx.event_log_after(""))
        while log is not None:
            await _archive_or_forget(store, log, clock.now() - ARCHIVE_AFTER)
            log = await store.read(lambda tx, log=log: tx.event_log_after(log))

    await _every_hour(archive, "old events of logs stay as they are for now", clock)


async def _every_hour(work: Callable[[], Awaitable[object]], problem: str, clock: Clock) -> None:
    await every(3600.0, work, problem, clock, expected=(StoreError,))


async def _archive_or_forget(store: Store, log: str, before: datetime) -> None:
    """Archive old events. Remove the log of a resource that no bill can name any more."""

    def forget(tx: Transaction) -> bool:
        owner = log.partition("/")[0]
        is_unknown = tx.get(owner) is None and tx.last_entry(owner) is None
        if is_unknown:
            tx.forget_log(log)
        return is_unknown

    if await store.read(lambda tx: tx.last_entry(log.partition("/")[0])) is None and await store.write(
        forget
    ):
        return
    await archive_log(store, log, before)


async def archive_log(store: Store, log: str, before: datetime) -> None:
    """Archive the events of before this time, as many as fill whole archives."""
    while batch := _batch(await store.read(lambda tx: tx.oldest_events(log, before, ARCHIVED_AT_ONCE))):
        archive = Archive.of(batch)
        await store.write(lambda tx, archive=archive: tx.archive_events(log, archive))


def _batch(old: Sequence[LogEvent]) -> Sequence[LogEvent]:
    """Return as many events as are compressed together; none while they are few."""
    size = 0
    for number, each in enumerate(old, 1):
        size += len(each.body)
        if size >= ARCHIVED_BYTES:
            return old[:number]
    return old if len(old) == ARCHIVED_AT_ONCE else ()


async def forget_old_history(
    store: Store,
    clock: Clock,
    metered: Sequence[str],
    forgotten: Callable[[Transaction, HistorySizes], None],
    keep_metered_for: timedelta,
) -> None:
    """Runs until it is cancelled. `metered` are the kinds that bills are computed from; `forgotten` is called
    with what goes, in the transaction that removes it.
    """

    async def forget() -> None:
        now = clock.now()
        await _forget_versions(store, now - KEEP_VERSIONS_FOR, forgotten, keep=metered)
        await _forget_versions(store, now - keep_metered_for, forgotten)

    await _every_hour(forget, "old versions of resources stay for now", clock)


async def _forget_versions(
    store: Store,
    before: datetime,
    forgotten: Callable[[Transaction, HistorySizes], None],
    *,
    keep: Sequence[str] = (),
) -> None:
    def one_page(tx: Transaction) -> str:
        sizes, following = tx.forget_history(before, Page(VERSIONS_AT_ONCE, after), keep=keep)
        forgotten(tx, sizes)
        if sizes and not keep:
            set_kept_from(tx, before)
        return following

    after, has_more = "", True
    while has_more:
        after = await store.write(one_page)
        has_more = bool(after)
