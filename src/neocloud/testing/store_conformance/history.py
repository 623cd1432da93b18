# pyright: standard
"""Conformance of the history: every change is kept, and old versions can be removed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from neocloud.core.store import Page, Resource, Store, Transaction, entry_bytes
from neocloud.testing.store_conformance.records import NOW, PARENT, resource
from neocloud.testing.waiting import FakeClock

SEALED_KIND = "nebius.compute.v1.Instance"
DAY = timedelta(days=1)


class HistoryConformance:
    async def test_history_tells_each_change_of_state_spec_and_labels(
        self, store: Store, clock: FakeClock
    ) -> None:
        row = resource(state="CREATING", spec=b"1")
        await store.write(lambda tx: tx.insert(row))
        changes = [{"state": "READY"}, {"status": b"unseen"}, {"spec": b"2"}, {"labels": {"a": "b"}}]
        for change in changes:
            await clock.advance(60)
            row = replace(row, **change)
            await store.write(lambda tx, row=row: tx.update(row))
        await clock.advance(60)
        await store.write(lambda tx: tx.delete(row.id))
        entries = await store.read(lambda tx: tx.history(resource_id=row.id))
        assert [(e.state, e.spec, dict(e.labels), e.is_deleted) for e in entries] == [
            ("CREATING", b"1", {}, False),
            ("READY", b"1", {}, False),
            ("READY", b"2", {}, False),
            ("READY", b"2", {"a": "b"}, False),
            ("READY", b"2", {"a": "b"}, True),
        ]
        start = clock.now() - timedelta(seconds=300)
        assert entries[0].at == NOW
        assert [(e.at - start).total_seconds() for e in entries[1:]] == [60, 180, 240, 300]

    async def test_history_is_chosen_by_kind_parent_and_time(self, store: Store) -> None:
        later = NOW + timedelta(hours=1)
        await store.write(lambda tx: tx.insert(resource("r1")))
        await store.write(lambda tx: tx.insert(resource("r2", kind="Disk", created_at=later)))
        await store.write(lambda tx: tx.insert(resource("r3", parent_id="other")))

        async def ids(**wanted) -> list[str]:
            return [e.resource_id for e in await store.read(lambda tx: tx.history(**wanted))]

        assert await ids() == ["r1", "r3", "r2"]
        assert await ids(kinds=["Disk"]) == ["r2"]
        assert await ids(kinds=[]) == []
        assert await ids(parent_id=PARENT) == ["r1", "r2"]
        assert await ids(until=later) == ["r1", "r3"]

    async def test_the_last_entry_outlives_its_resource(self, store: Store, clock: FakeClock) -> None:
        await store.write(lambda tx: tx.insert(resource(name="old")))
        await clock.advance(60)
        await store.write(lambda tx: tx.update(resource(name="new", state="READY")))
        await store.write(lambda tx: tx.delete(resource().id))
        last = await store.read(lambda tx: tx.last_entry(resource().id))
        assert last is not None and (last.name, last.is_deleted) == ("new", True)
        assert await store.read(lambda tx: tx.last_entry("slurmcluster-e00nobody")) is None

    @pytest.mark.parametrize("kind", [resource().kind, SEALED_KIND])
    async def test_sizes_are_of_what_was_written_sealed_or_not(self, store: Store, kind: str) -> None:
        row = resource(kind=kind, spec=b"\n\x03abc", labels={"a": "b", "ü": "ß"})
        await store.write(lambda tx: tx.insert(row))
        await store.write(lambda tx: tx.insert(resource("r2", kind=kind, parent_id="other")))
        sizes = await store.read(lambda tx: tx.history_sizes())
        assert sizes == {PARENT: (1, entry_bytes(row)), "other": (1, 0)}

    async def test_what_was_replaced_in_time_is_forgotten_and_the_rest_is_not(
        self, store: Store, clock: FakeClock
    ) -> None:
        await changed_each_day(store, clock, resource(spec=b"0"), b"1", b"2", b"3")
        removed = await forget(store, NOW + 2 * DAY + timedelta(seconds=1))
        assert [entry.spec for entry in await entries(store)] == [b"2", b"3"]
        assert removed == {PARENT: (2, 2)}
        assert await forget(store, NOW + 2 * DAY + timedelta(seconds=1)) == {}
        assert await forget(store, NOW + 400 * DAY) == {PARENT: (1, 1)}
        assert [entry.spec for entry in await entries(store)] == [b"3"], "the current state stays"

    async def test_all_of_a_resource_that_is_gone_long_enough_is_forgotten(
        self, store: Store, clock: FakeClock
    ) -> None:
        await changed_each_day(store, clock, resource(spec=b"0"), b"1")
        await clock.advance(DAY.total_seconds())
        await store.write(lambda tx: tx.delete(resource().id))
        await forget(store, clock.now())
        assert [entry.is_deleted for entry in await entries(store)] == [False, True]
        await forget(store, clock.now() + DAY)
        assert await entries(store) == []

    async def test_a_resource_that_was_made_again_keeps_its_entry(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.write(lambda tx: tx.insert(resource(spec=b"0")))
        await store.write(lambda tx: tx.delete(resource().id))
        await store.write(lambda tx: tx.insert(resource(spec=b"1", created_at=clock.now())))
        await forget(store, NOW + DAY)
        assert [(entry.spec, entry.is_deleted) for entry in await entries(store)] == [(b"1", False)]

    async def test_the_last_entry_of_a_parent_stays_as_long_as_any_of_its_children(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.write(lambda tx: tx.insert(resource("parent")))
        await store.write(lambda tx: tx.insert(resource("child", parent_id="parent")))
        await clock.advance(60)
        await store.write(lambda tx: [tx.delete("child"), tx.delete("parent")])
        for left in (["parent"], []):
            await forget(store, clock.now() + DAY)
            found = await store.read(lambda tx: tx.history())
            assert [entry.resource_id for entry in found if entry.is_deleted] == left

    async def test_kinds_that_are_kept_lose_nothing(self, store: Store, clock: FakeClock) -> None:
        row = resource(spec=b"0")
        await changed_each_day(store, clock, row, b"1")
        assert await forget(store, NOW + 400 * DAY, keep=["Disk", row.kind]) == {}
        assert await forget(store, NOW + 400 * DAY, keep=["Disk"]) == {PARENT: (1, 1)}

    @pytest.mark.parametrize("size", [1, 2, 3, 7])
    async def test_pages_of_every_size_find_the_same(self, store: Store, clock: FakeClock, size: int) -> None:
        for number in range(3):
            row = resource(f"r{number}", name=f"n{number}", spec=b"0", created_at=clock.now())
            await changed_each_day(store, clock, row, b"1")
        removed = await forget(store, NOW + 400 * DAY, size=size)
        assert removed == {PARENT: (3, 3)}
        left = await store.read(lambda tx: tx.history())
        assert [(entry.resource_id, entry.spec) for entry in left] == [(f"r{n}", b"1") for n in range(3)]


async def changed_each_day(store: Store, clock: FakeClock, row: Resource, *specs: bytes) -> None:
    await store.write(lambda tx: tx.insert(row))
    for spec in specs:
        await clock.advance(DAY.total_seconds())
        await store.write(lambda tx, spec=spec: tx.update(replace(row, spec=spec)))


async def entries(store: Store) -> Sequence[Any]:
    return await store.read(lambda tx: tx.history(resource_id=resource().id))


async def forget(
    store: Store, before: datetime, *, keep: Sequence[str] = (), size: int = 100
) -> Mapping[str, tuple[int, int]]:
    """Return all pages of the removed versions."""
    total: dict[str, tuple[int, int]] = {}
    after, has_more = "", True
    while has_more:

        def one_page(tx: Transaction, after: str = after) -> tuple[Mapping[str, tuple[int, int]], str]:
            return tx.forget_history(before, Page(size, after), keep=keep)

        sizes, after = await store.write(one_page)
        has_more = bool(after)
        for parent_id, (count, bytes_) in sizes.items():
            old = total.get(parent_id, (0, 0))
            total[parent_id] = (old[0] + count, old[1] + bytes_)
    return total
