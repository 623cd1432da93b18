"""Counters: sums that nobody loses, whoever counts at once, and that go with their scope."""

import asyncio

from neocloud.core.store import Store, Transaction
from neocloud.testing.store_conformance.samples import resource

SCOPE = "project-e00a"


class CounterConformance:
    async def test_a_counter_begins_at_zero_and_says_its_new_amount(self, store: Store) -> None:
        assert await store.write(lambda tx: tx.count(SCOPE, "disks", 2)) == 2
        assert await store.write(lambda tx: tx.count(SCOPE, "disks", -1)) == 1
        assert await store.write(lambda tx: tx.count("project-e00b", "disks", 5)) == 5
        assert await store.read(lambda tx: dict(tx.counters(SCOPE))) == {"disks": 1}

    async def test_counters_at_zero_are_not_listed(self, store: Store) -> None:
        await store.write(lambda tx: tx.count(SCOPE, "disks", 2))
        await store.write(lambda tx: tx.count(SCOPE, "disks", -2))
        assert await store.read(lambda tx: dict(tx.counters(SCOPE))) == {}
        assert await store.read(lambda tx: dict(tx.all_counters())) == {}

    async def test_large_amounts_are_kept(self, store: Store) -> None:
        await store.write(lambda tx: tx.count(SCOPE, "bytes", 1 << 60))
        assert await store.read(lambda tx: dict(tx.all_counters())) == {(SCOPE, "bytes"): 1 << 60}

    async def test_no_count_is_lost_in_a_race(self, store: Store) -> None:
        found = await asyncio.gather(*(store.write(lambda tx: tx.count(SCOPE, "n", 1)) for _ in range(30)))
        assert sorted(found) == list(range(1, 31))

    async def test_a_count_that_is_rolled_back_never_was(self, store: Store) -> None:
        def count_and_fail(tx: Transaction) -> None:
            tx.count(SCOPE, "n", 1)
            raise RuntimeError("no")

        await asyncio.gather(store.write(count_and_fail), return_exceptions=True)
        assert await store.write(lambda tx: tx.count(SCOPE, "n", 1)) == 1

    async def test_counters_go_with_the_resource_they_are_of(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        await store.write(lambda tx: (tx.count("r1", "n", 1), tx.count("r2", "n", 1)))
        await store.write(lambda tx: tx.delete("r1"))
        assert await store.read(lambda tx: dict(tx.all_counters())) == {("r2", "n"): 1}
