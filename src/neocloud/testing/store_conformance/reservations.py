"""Reservations: one holder for each value, whoever races for it, until the holder goes."""

import asyncio

from neocloud.core.store import Store, Transaction
from neocloud.testing.store_conformance.samples import resource

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
