"""Usage of buckets, on the bill of their project."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from neocloud.messages.neocloud.billing.v1 import GetReportRequest

from neocloud.core.clock import Clock
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import Call
from neocloud.core.store import open_store
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import Meters, UsageSource, all_usage
from neocloud.object_store.metering import bucket_usage
from neocloud.object_store.types import RequestClass
from neocloud.services.billing.api import get_report
from neocloud.services.iam.types import CONTAINER
from neocloud.testing.waiting import FakeClock
from tests.control_plane import plain_dependencies
from tests.fast.object_store.stores import make_bucket, opened, put

GIB, MIB = 1 << 30, 1 << 20
HOUR = 3600


@asynccontextmanager
async def biller(home: Path, clock: Clock) -> AsyncIterator[Call]:
    """A call of the billing API in a cloud with one project."""
    store = await open_store(":memory:", b"k" * 32, clock)
    usage = all_usage(bucket_usage(home, clock), bucket_usage(home / "none", clock))
    provided = ServiceRegistry().add(Meters, Meters()).add(UsageSource, usage)
    for container, parent in (("tenant-a", ""), ("project-a", "tenant-a"), ("project-b", "tenant-a")):
        row = Resource(container, CONTAINER, parent, container, clock.now(), clock.now())
        await store.write(lambda tx, row=row: tx.insert(row))
    yield Call(None, "r", {}, plain_dependencies(store, clock, provided))
    await store.close()


async def report(call: Call, **window: Any) -> dict[str, tuple[str, str, str]]:
    """Return quantity, unit and cost by SKU of the one bucket."""
    found = await get_report(call, GetReportRequest(parent_id="project-a", **window))
    assert {line.resource_name for line in found.lines} <= {"bucket"}
    return {line.sku: (line.quantity, line.unit, line.cost) for line in found.lines}


async def test_a_gib_for_a_month_costs_what_the_list_says(tmp_path: Path) -> None:
    """S3-08: $0.0147 for a GiB and month; a month is 730 hours."""
    clock = FakeClock()
    async with opened(tmp_path / "objects", clock) as store, biller(tmp_path, clock) as call:
        start = clock.now()
        bucket = await make_bucket(store)
        for number in range(4):
            await put(store, bucket, f"k{number}", b"x" * MIB)
        store.count(bucket.id, RequestClass.READ, egress_bytes=GIB // 2)
        store.count(bucket.id, None, egress_bytes=2 * GIB, is_private=True)
        await clock.advance(73 * HOUR + 120)
        await store.delete(bucket.id, "k0")
        lines = (await get_report(call, GetReportRequest(parent_id="project-a", start=start))).lines
        stored = [line for line in lines if line.sku == "object-storage.standard"]
        assert len({line.day for line in stored}) == 4
        quantity = sum(float(line.quantity) for line in stored)
        assert abs(quantity - 4 * MIB / GIB / 10) < 1e-6 * len(stored)
        assert all(line.unit_price == "0.0147" and not line.is_unpriced for line in stored)
        found = await report(call, start=start, end=start + timedelta(hours=1))
        assert found["object-storage.requests.modify"] == ("0.004000", "thousand-requests", "0.000020")
        assert found["object-storage.egress"] == ("0.500000", "gib", "0.007500")
        assert found["object-storage.egress-private"] == ("2.000000", "gib", "0.000000")


async def test_windows_add_up_and_other_projects_see_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path / "objects", clock) as store:
        start = clock.now()
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"x" * 1000)
        await clock.advance(5 * HOUR + 120)
        usage = bucket_usage(tmp_path, clock)
        ends = [start + timedelta(minutes=minutes) for minutes in (0, 50, 60, 130, 300, 500)]

        def bytes_in(first: Any, last: Any) -> int:
            found = usage(["project-a"], first, last)
            return sum(each.count for each in found if each.sku == "object-storage.standard")

        parts = [bytes_in(first, last) for first, last in zip(ends, ends[1:], strict=False)]
        assert sum(parts) == bytes_in(ends[0], ends[-1]) > 0
        assert list(usage(["project-b"], ends[0], ends[-1])) == []
