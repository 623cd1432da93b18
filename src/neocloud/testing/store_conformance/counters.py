# pyright: standard
"""Conformance of reservations, counters and marks: values that many callers change simultaneously."""

import asyncio
from datetime import UTC, datetime, timedelta

from neocloud.core.store import Mark, Store, Transaction
from neocloud.testing.store_conformance.records import resource

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


NOW = datetime(2026, 11, 22, tzinfo=UTC)
SPACE = "guesses"


class MarkConformance:
    async def test_a_mark_is_there_until_its_time(self, store: Store) -> None:
        mark = Mark(3, NOW + timedelta(minutes=1))
        await store.write(lambda tx: tx.put_mark(SPACE, "alice", mark))
        assert await store.read(lambda tx: tx.mark(SPACE, "alice", NOW)) == mark
        assert await store.read(lambda tx: tx.mark(SPACE, "alice", mark.until)) is None
        assert await store.read(lambda tx: tx.mark("other", "alice", NOW)) is None
        later = Mark(1, NOW + timedelta(hours=1))
        await store.write(lambda tx: tx.put_mark(SPACE, "alice", later))
        assert await store.read(lambda tx: tx.mark(SPACE, "alice", NOW)) == later
        await store.write(lambda tx: tx.remove_mark(SPACE, "alice"))
        assert await store.read(lambda tx: tx.count_marks(SPACE)) == 0

    async def test_marks_that_ended_are_forgotten(self, store: Store) -> None:
        for number in range(4):
            mark = Mark(1, NOW + timedelta(minutes=number))
            await store.write(lambda tx, name=str(number), mark=mark: tx.put_mark(SPACE, name, mark))
        await store.write(lambda tx: tx.put_mark("other", "0", Mark(1, NOW)))
        assert await store.write(lambda tx: tx.forget_marks(SPACE, NOW + timedelta(minutes=1))) == 2
        assert await store.read(lambda tx: (tx.count_marks(SPACE), tx.count_marks("other"))) == (2, 1)
        assert await store.write(lambda tx: tx.forget_ended_marks(NOW + timedelta(minutes=2))) == 2
        assert await store.read(lambda tx: (tx.count_marks(SPACE), tx.count_marks("other"))) == (1, 0)

    async def test_small_marks_make_room_and_large_ones_stay(self, store: Store) -> None:
        for number in range(6):
            mark = Mark(5 if number < 2 else 1, NOW + timedelta(minutes=number + 1))
            await store.write(lambda tx, name=str(number), mark=mark: tx.put_mark(SPACE, name, mark))
        assert await store.write(lambda tx: tx.forget_marks(SPACE, NOW, below=5, limit=3)) == 3
        assert await store.read(lambda tx: [tx.mark(SPACE, str(n), NOW) is not None for n in range(6)]) == [
            True, True, False, False, False, True,
        ]  # fmt: skip


NAMESPACE = "vpcpool-e00a"


class ReservationConformance:
    async def test_a_claimed_value_is_its_claimers_alone(self, store: Store) -> None:
        assert await store.write(lambda tx: tx.reserve(NAMESPACE, "10.0.0.4", "r1"))
        assert await store.write(lambda tx: tx.reserve(NAMESPACE, "10.0.0.4", "r1"))
        assert not await store.write(lambda tx: tx.reserve(NAMESPACE, "10.0.0.4", "r2"))
        assert await store.write(lambda tx: tx.reserve("vpcpool-e00b", "10.0.0.4", "r2"))
        assert await store.read(lambda tx: dict(tx.reservations(NAMESPACE))) == {"10.0.0.4": "r1"}

    async def test_a_refused_claim_leaves_the_transaction_usable(self, store: Store) -> None:
        await store.write(lambda tx: tx.reserve(NAMESPACE, "a", "r1"))

        def second_best(tx: Transaction) -> list[bool]:
            return [tx.reserve(NAMESPACE, "a", "r2"), tx.reserve(NAMESPACE, "b", "r2")]

        assert await store.write(second_best) == [False, True]
        assert await store.read(lambda tx: dict(tx.reservations(NAMESPACE))) == {"a": "r1", "b": "r2"}

    async def test_a_released_value_is_free_again(self, store: Store) -> None:
        await store.write(lambda tx: tx.reserve(NAMESPACE, "a", "r1"))
        await store.write(lambda tx: tx.release(NAMESPACE, "a"))
        await store.write(lambda tx: tx.release(NAMESPACE, "never-held"))
        assert await store.write(lambda tx: tx.reserve(NAMESPACE, "a", "r2"))

    async def test_claims_go_with_their_resource(self, store: Store) -> None:
        def take(tx: Transaction) -> None:
            tx.insert(resource("r1"))
            tx.reserve(NAMESPACE, "a", "r1")
            tx.reserve("other", "a", "r1")
            tx.reserve(NAMESPACE, "b", "r2")

        await store.write(take)
        await store.write(lambda tx: tx.delete("r1"))
        assert await store.read(lambda tx: dict(tx.reservations(NAMESPACE))) == {"b": "r2"}
        assert await store.read(lambda tx: dict(tx.reservations("other"))) == {}

    async def test_what_a_resource_holds_is_told_of_all_spaces(self, store: Store) -> None:
        def take(tx: Transaction) -> None:
            tx.reserve(NAMESPACE, "a", "r1")
            tx.reserve("other", "a", "r1")
            tx.reserve(NAMESPACE, "b", "r2")

        await store.write(take)
        assert await store.read(lambda tx: tx.held_by("r1")) == {(NAMESPACE, "a"), ("other", "a")}
        assert await store.read(lambda tx: tx.held_by("r3")) == set()

    async def test_a_claim_that_is_rolled_back_never_was(self, store: Store) -> None:
        def take_and_fail(tx: Transaction) -> None:
            tx.reserve(NAMESPACE, "a", "r1")
            raise RuntimeError("no")

        await asyncio.gather(store.write(take_and_fail), return_exceptions=True)
        assert await store.write(lambda tx: tx.reserve(NAMESPACE, "a", "r2"))

    async def test_of_those_who_race_for_a_value_one_gets_it(self, store: Store) -> None:
        claims = (
            store.write(lambda tx, holder=f"r{number}": tx.reserve(NAMESPACE, "a", holder))
            for number in range(20)
        )
        assert sum(await asyncio.gather(*claims)) == 1

    async def test_racing_searches_for_a_free_value_give_each_another_one(self, store: Store) -> None:
        def first_free(tx: Transaction, holder: str) -> str | None:
            values = (f"v{number:02}" for number in range(15))
            return next((value for value in values if tx.reserve(NAMESPACE, value, holder)), None)

        searches = (
            store.write(lambda tx, holder=f"r{number}": first_free(tx, holder)) for number in range(20)
        )
        found = await asyncio.gather(*searches)
        assert found.count(None) == 5
        assert len({value for value in found if value}) == 15
