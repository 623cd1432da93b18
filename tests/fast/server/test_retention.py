"""Audit events and versions of resources are kept as long as the operator says, and no longer."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from neocloud.core.store import (
    AuditEvent,
    HistorySizes,
    LogEvent,
    Resource,
    Snapshot,
    Store,
    Transaction,
    open_store,
)
from neocloud.core.usage import kept_from
from neocloud.server.retention import (
    ARCHIVED_AT_ONCE,
    ARCHIVED_BYTES,
    EVENTS_AT_ONCE,
    VERSIONS_AT_ONCE,
    archive_old_logs,
    forget_old_events,
    forget_old_history,
)
from neocloud.testing.waiting import FakeClock


async def test_old_audit_events_are_forgotten_in_small_steps() -> None:
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    old, new = clock.now() - timedelta(days=31), clock.now() - timedelta(days=29)

    def write(tx: Transaction) -> None:
        for number in range(2 * EVENTS_AT_ONCE + 1):
            tx.audit(AuditEvent(f"o{number}", old, "s", "m", "", "", "q", 0, tenant_id="t"))
        tx.audit(AuditEvent("n", new, "s", "m", "", "", "q", 0, tenant_id="t"))

    await store.write(write)
    await one_pass(forget_old_events(store, clock, timedelta(days=30)), clock)
    left, _ = await store.read(lambda tx: tx.list_audit())
    assert [event.id for event in left] == ["n"]
    await store.close()


DISK, NETWORK = "nebius.compute.v1.Disk", "nebius.vpc.v1.Network"


async def test_old_versions_go_sooner_where_no_bill_needs_them() -> None:
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    gone: Counter[str] = Counter()

    def count(tx: Transaction, sizes: HistorySizes) -> None:
        gone.update({parent_id: entries for parent_id, (entries, _) in sizes.items()})

    async def left_after(days: int) -> list[tuple[str, str]]:
        await clock.advance(days * 86400)
        await one_pass(forget_old_history(store, clock, [DISK], count, keep_for), clock)
        entries = await store.read(lambda tx: tx.history())
        return [(entry.kind, entry.state) for entry in entries]

    for kind in (DISK, NETWORK):
        row = Resource(f"{kind}-1", kind, kind, "", clock.now(), clock.now(), state="OLD")
        await store.write(lambda tx, row=row: tx.insert(row))
        await store.write(lambda tx, row=row: tx.update(replace(row, state="NEW")))
    keep_for = timedelta(days=400)
    assert len(await left_after(29)) == 4
    assert await left_after(2) == [(DISK, "OLD"), (DISK, "NEW"), (NETWORK, "NEW")]
    assert await store.read(kept_from) is None, "no bill is touched"
    assert await left_after(370) == [(DISK, "NEW"), (NETWORK, "NEW")]
    assert gone == {DISK: 1, NETWORK: 1}
    kept = await store.read(kept_from)
    assert kept is not None and clock.now() - kept <= keep_for + timedelta(seconds=1)
    await store.close()


async def test_a_long_history_is_forgotten_in_small_steps() -> None:
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    pages: list[int] = []
    row = Resource("r", NETWORK, "p", "", clock.now(), clock.now())

    def change(tx: Transaction) -> None:
        tx.insert(row)
        for number in range(2 * VERSIONS_AT_ONCE):
            tx.update(replace(row, state=f"S{number}"))

    def count(tx: Transaction, sizes: HistorySizes) -> None:
        pages.extend(entries for entries, _ in sizes.values())

    await store.write(change)
    await clock.advance(31 * 86400)
    await one_pass(forget_old_history(store, clock, [], count, timedelta(days=31)), clock)
    assert pages == [VERSIONS_AT_ONCE, VERSIONS_AT_ONCE]
    assert len(await store.read(lambda tx: tx.history())) == 1
    await store.close()


async def one_pass(forgetting: Coroutine[Any, Any, None], clock: FakeClock) -> None:
    task = asyncio.create_task(forgetting)
    await clock.advance(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


POOL = "neocloud.fleet.v1.NodePool"


async def test_old_events_of_a_log_are_archived_in_full_batches_and_read_as_before() -> None:
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    old, new = clock.now() - timedelta(days=36), clock.now() - timedelta(days=34)

    def write(tx: Transaction) -> None:
        tx.insert(Resource("pool-1", POOL, "", "", old, old))
        for number in range(2 * ARCHIVED_AT_ONCE + 7):
            tx.append_event("pool-1", LogEvent("n", old, b"%d" % number))
        tx.append_event("pool-1", LogEvent("n", new, b"new"))
        for log in ("pool-1/checks", "pool-1"):  # reports are large
            for _ in range(3):
                tx.append_event(log, LogEvent("n", old, b"0123456789abcdef" * (ARCHIVED_BYTES // 32)))

    await store.write(write)
    before = await events_of(store, "pool-1"), await events_of(store, "pool-1/checks")
    await one_pass(archive_old_logs(store, clock), clock)
    assert (await events_of(store, "pool-1"), await events_of(store, "pool-1/checks")) == before
    far = clock.now() + timedelta(days=99)
    left = await store.read(
        lambda tx: [tx.oldest_events(log, far, 9999) for log in ("pool-1", "pool-1/checks")]
    )
    assert [len(each) for each in left] == [10, 0], "too few to archive; the last of a log stays anyway"


async def test_a_log_goes_once_nothing_is_known_of_its_resource() -> None:
    """Bills of deleted clusters are computed from it for as long as there are bills of then."""
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    now = clock.now()

    def write(tx: Transaction) -> None:
        for name in ("gone", "there"):
            tx.insert(Resource(name, POOL, "", "", now, now))
            for log in (name, f"{name}/checks"):
                tx.append_event(log, LogEvent("n", now, b"{}"))
                tx.put_snapshot(log, Snapshot(1, "v", b"s"))
        tx.delete("gone")

    async def known_after(days: int) -> list[int]:
        await clock.advance(days * 86400)
        nothing: Callable[[Transaction, HistorySizes], None] = lambda tx, sizes: None  # noqa: E731
        await one_pass(forget_old_history(store, clock, [POOL], nothing, timedelta(days=400)), clock)
        await one_pass(archive_old_logs(store, clock), clock)
        logs = ("gone", "gone/checks", "there", "there/checks")
        return [len(await events_of(store, log)) for log in logs]

    await store.write(write)
    assert await known_after(399) == [1, 1, 1, 1]
    assert await known_after(2) == [0, 0, 1, 1]
    assert await store.read(lambda tx: (tx.snapshot("gone"), tx.snapshot("there"))) == (
        None,
        Snapshot(1, "v", b"s"),
    )


async def events_of(store: Store, log: str) -> Sequence[LogEvent]:
    return await store.read(lambda tx: tx.events(log, limit=9999))
