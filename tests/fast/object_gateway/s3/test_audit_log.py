"""Audit events of objects on their way: kept while nobody takes them, sent again, counted if too many."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.object_gateway import audit_log
from neocloud.testing.waiting import wait_until
from tests.fast.object_gateway.s3.served import Served, serving

ALL = 3


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEEP_SECONDS", "FIRST_WAIT_SECONDS", "LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(audit_log, name, 0.01)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


def audited_bucket(s3: Served) -> str:
    bucket = s3.make_bucket()
    put(s3, bucket, "before")  # so that key and rights are remembered while the control plane is away
    s3.call(s3.control_plane.change(bucket, lambda found: setattr(found.spec, "object_audit_logging", ALL)))
    return bucket


def put(s3: Served, bucket: str, *keys: str) -> None:
    for key in keys:
        s3.client().put_object(Bucket=bucket, Key=key, Body=b"x")


def keys(s3: Served) -> list[str]:
    return [event.key for request in s3.control_plane.object_events for event in request.events]


def test_events_come_within_seconds_and_are_forgotten_here(s3: Served) -> None:
    bucket = audited_bucket(s3)
    put(s3, bucket, "a", "b")
    wait_until(lambda: keys(s3), holds=lambda found: found == ["a", "b"])
    (first, *_) = s3.control_plane.object_events[0].events
    assert (first.operation, first.status, first.bucket) == ("PutObject", 200, bucket)
    assert first.id == f"auditevent-{first.request_id.lower()}" and first.tenant_id
    wait_until(lambda: kept(s3), holds=lambda found: found == 0)


def test_they_wait_on_the_disk_while_the_control_plane_is_away(s3: Served, tmp_path: Path) -> None:
    bucket = audited_bucket(s3)
    s3.control_plane.is_away = True
    put(s3, bucket, "a", "b")
    wait_until(lambda: kept(s3), holds=lambda found: found == 2)
    assert not keys(s3)
    s3.control_plane.is_away = False
    wait_until(lambda: keys(s3), holds=lambda found: found == ["a", "b"])
    assert s3.control_plane.object_events[0].is_repeated


def test_a_gateway_that_starts_again_sends_what_the_last_one_has_left(tmp_path: Path) -> None:
    with serving(tmp_path) as s3:
        bucket = audited_bucket(s3)
        s3.control_plane.is_away = True
        put(s3, bucket, "a")
    control_plane = s3.control_plane
    assert not control_plane.object_events
    control_plane.is_away = False
    with serving(tmp_path, control_plane=control_plane) as s3:
        wait_until(lambda: keys(s3), holds=lambda found: found == ["a"])
        assert control_plane.object_events[0].is_repeated


def test_what_is_too_much_is_counted(s3: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = audited_bucket(s3)
    monkeypatch.setattr(audit_log, "MOST_ON_DISK", 4)  # a tenant has half
    s3.control_plane.is_away = True
    put(s3, bucket, "a", "b")
    wait_until(lambda: kept(s3), holds=lambda found: found == 2)
    put(s3, bucket, "c", "d", "e")
    s3.control_plane.is_away = False
    wait_until(lambda: keys(s3), holds=lambda found: found == ["a", "b", ""])
    lost = s3.control_plane.object_events[-1].events[-1]
    assert (lost.operation, lost.lost_count, lost.bucket) == ("LostEvents", 3, bucket)


def kept(s3: Served) -> int:
    reading = s3.store.engine.database.reading

    async def count() -> int:
        return reading.execute("SELECT COUNT(*) FROM object_event").fetchone()[0]

    return s3.call(count())
