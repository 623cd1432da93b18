"""Transactions: all or nothing, alone with their failure, and serial in effect."""

import asyncio
from dataclasses import replace

import pytest

from neocloud.core.store import Store, Transaction
from neocloud.testing.store_conformance.samples import operation, resource


class Refused(Exception):
    pass


class TransactionConformance:
    async def test_a_work_that_raises_leaves_nothing_behind(self, store: Store) -> None:
        def work(tx: Transaction) -> None:
            tx.insert(resource("r1"))
            tx.insert_operation(operation())
            tx.put_secret("r1", "a", b"b")
            raise Refused("no")

        with pytest.raises(Refused):
            await store.write(work)
        assert await store.read(lambda tx: tx.get("r1")) is None
        assert await store.read(lambda tx: tx.get_operation(operation().id)) is None
        assert await store.read(lambda tx: tx.secret("r1", "a")) is None
        assert await store.read(lambda tx: tx.history()) == []

    async def test_a_work_that_raises_does_not_hurt_those_beside_it(self, store: Store) -> None:
        def work(tx: Transaction, number: int) -> int:
            tx.insert(resource(f"r{number}", name=f"n{number}"))
            if number % 3 == 0:
                raise Refused(str(number))
            return number

        writes = (store.write(lambda tx, n=number: work(tx, n)) for number in range(30))
        results = await asyncio.gather(*writes, return_exceptions=True)
        for number, result in enumerate(results):
            if number % 3 == 0:
                assert isinstance(result, Refused)
            else:
                assert result == number
        kept, _ = await store.read(lambda tx: tx.list(resource().kind))
        assert sorted(row.id for row in kept) == sorted(f"r{n}" for n in range(30) if n % 3)

    async def test_a_transaction_sees_what_it_wrote(self, store: Store) -> None:
        def work(tx: Transaction) -> bool:
            tx.insert(resource("r1"))
            return tx.get("r1") == resource("r1")

        assert await store.write(work)

    async def test_what_was_answered_is_read_by_the_next_reader(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        for version in range(2, 12):
            changed = resource("r1", resource_version=version)
            await store.write(lambda tx, row=changed: tx.update(row))
            assert await store.read(lambda tx: tx.get("r1")) == changed

    async def test_writers_side_by_side_lose_no_update(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))

        def increment(tx: Transaction) -> None:
            row = tx.get("r1")
            assert row is not None
            tx.update(replace(row, observed_version=row.observed_version + 1))

        await asyncio.gather(*(store.write(increment) for _ in range(40)))
        row = await store.read(lambda tx: tx.get("r1"))
        assert row is not None and row.observed_version == 40
