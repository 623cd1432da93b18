"""Two servers on one PostgreSQL that search for a free value at once never get the same one."""

import asyncio
from collections.abc import Awaitable
from itertools import count

import pytest

from neocloud.core.store import Store, Transaction, open_store
from neocloud.testing.waiting import FakeClock
from tests.fast.core.store.conftest import KEY

NAMESPACE = "vpcsubnet-e00a/addresses"
VALUES = [f"10.0.0.{number}" for number in range(20)]


@pytest.fixture
async def servers(empty_database: str):
    opened = [await open_store(empty_database, KEY, FakeClock()) for _ in range(2)]
    yield opened
    for store in opened:
        await store.close()


def first_free(tx: Transaction, holder: str) -> str | None:
    """Look first, then claim: the way that goes wrong where nothing tells racers apart."""
    held = tx.reservations(NAMESPACE)
    value = next((each for each in VALUES if each not in held), None)
    return value if value is not None and tx.reserve(NAMESPACE, value, holder) else None


async def test_no_value_is_given_twice(servers: list[Store]) -> None:
    numbers = count()

    def search(server: Store) -> Awaitable[str | None]:
        holder = f"r{next(numbers)}"
        return server.write(lambda tx: first_free(tx, holder))

    found: list[str | None] = []
    while len([value for value in found if value]) < len(VALUES):
        rounds = [search(server) for server in servers for _ in range(3)]
        found += await asyncio.gather(*rounds)
    given = [value for value in found if value]
    assert sorted(given) == sorted(VALUES)
    held = await servers[0].read(lambda tx: tx.reservations(NAMESPACE))
    assert sorted(held) == sorted(VALUES)


async def test_of_two_racers_for_one_value_one_gets_it(servers: list[Store]) -> None:
    for number in range(10):
        claims = [
            server.write(
                lambda tx, holder=f"r{index}", value=f"v{number}": tx.reserve(NAMESPACE, value, holder)
            )
            for index, server in enumerate(servers)
        ]
        assert sorted(await asyncio.gather(*claims)) == [False, True]
