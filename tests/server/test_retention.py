"""Audit events are kept as long as the operator says, and no longer. IAM-09."""

import asyncio
from datetime import timedelta

from neocloud.core.store import AuditEvent, Transaction, open_store
from neocloud.server.retention import EVENTS_AT_ONCE, forget_old_events
from neocloud.testing.clock import FakeClock


async def test_old_audit_events_are_forgotten_in_small_steps() -> None:
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    old, new = clock.now() - timedelta(days=31), clock.now() - timedelta(days=29)

    def write(tx: Transaction) -> None:
        for number in range(2 * EVENTS_AT_ONCE + 1):
            tx.audit(AuditEvent(f"o{number}", old, "s", "m", "", "", "q", 0, tenant_id="t"))
        tx.audit(AuditEvent("n", new, "s", "m", "", "", "q", 0, tenant_id="t"))

    await store.write(write)
    forgetting = asyncio.create_task(forget_old_events(store, clock, timedelta(days=30)))
    await clock.advance(1)
    forgetting.cancel()
    await asyncio.gather(forgetting, return_exceptions=True)
    left, _ = await store.read(lambda tx: tx.list_audit())
    assert [event.id for event in left] == ["n"]
    await store.close()
