"""Audit events of objects that wait for the control plane: one tenant cannot take the room of the others."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from neocloud.messages.neocloud.storage.v1 import ObjectEvent

from neocloud.object_gateway import audit_log
from neocloud.object_gateway.audit_log import AuditLog
from neocloud.object_store.store import ObjectStore
from neocloud.testing.object_control_plane import FakeControlPlane
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import opened

MOST = 40


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MOST_ON_DISK", MOST)


def new_log(store: ObjectStore) -> AuditLog:
    control_plane = FakeControlPlane()
    control_plane.is_away = True
    return AuditLog(store, control_plane, FakeClock())


def record(log: AuditLog, tenant: str, count: int, *, bucket: str = "bucket") -> None:
    for _ in range(count):
        log.record(ObjectEvent(tenant_id=tenant, bucket_id=bucket, bucket=bucket, operation="PutObject"))


async def keep(log: AuditLog) -> None:
    """Let the log run, and stop it: it writes what is in memory."""
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def on_disk(store: ObjectStore) -> Counter[str]:
    rows = store.engine.database.reading.execute("SELECT event FROM object_event").fetchall()
    return Counter(ObjectEvent.FromString(event).tenant_id for (event,) in rows)


async def test_a_tenant_with_too_many_events_leaves_room_for_the_others(
    tmp_path: Path, metadata: Path | None
) -> None:
    async with opened(tmp_path) as store:
        log = new_log(store)
        record(log, "loud", 3 * MOST)
        record(log, "quiet", 5)
        await keep(log)
        assert on_disk(store) == {"loud": MOST // 2, "quiet": 5}
        for number in range(MOST):  # neither do the numbers of what each of its buckets has lost take it
            record(log, "loud", 2, bucket=f"bucket-{number}")
            await keep(log)
        record(log, "quiet", 3)
        record(log, "other", 3)
        await keep(log)
        assert on_disk(store) == {"loud": MOST // 2, "quiet": 8, "other": 3}


async def test_the_shares_stay_over_a_restart(tmp_path: Path, metadata: Path | None) -> None:
    async with opened(tmp_path) as store:
        log = new_log(store)
        record(log, "loud", MOST)
        await keep(log)
    async with opened(tmp_path) as store:
        log = new_log(store)
        record(log, "loud", MOST)
        record(log, "quiet", 5)
        await keep(log)
        assert on_disk(store) == {"loud": MOST // 2, "quiet": 5}
