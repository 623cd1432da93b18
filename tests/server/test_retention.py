"""Audit events and versions of resources are kept as long as the operator says, and no longer."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

from neocloud.core.store import AuditEvent, HistorySizes, Resource, Transaction, open_store
from neocloud.core.usage import kept_from
from neocloud.server.retention import (
    EVENTS_AT_ONCE,
    VERSIONS_AT_ONCE,
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
