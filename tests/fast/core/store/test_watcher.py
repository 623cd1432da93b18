"""A watcher of the store hears of every change of a resource inside its transaction, and may refuse it."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from neocloud.core.store import Resource, Store, Transaction, open_store
from neocloud.testing.store_conformance.records import resource
from neocloud.testing.waiting import FakeClock
from tests.fast.core.store.conftest import KEY


class Refused(Exception):
    pass


@pytest.fixture
def heard() -> list[tuple[str | None, str | None]]:
    return []


@pytest.fixture
async def watched(address: str, clock: FakeClock, heard: list) -> AsyncIterator[Store]:
    def watch(tx: Transaction, old: Resource | None, new: Resource | None) -> None:
        heard.append((old and old.name, new and new.name))
        if new is not None and tx.count("all", "rows", 1) > 2:
            raise Refused

    store = await open_store(address, KEY, clock, watch=watch)
    yield store
    await store.close()


async def test_inserts_changes_and_removals_are_told(watched: Store, heard: list) -> None:
    row = resource("r1", name="a")
    await watched.write(lambda tx: tx.insert(row))
    await watched.write(lambda tx: tx.update(replace(row, name="b", spec=b"new")))
    await watched.write(lambda tx: tx.delete("r1"))
    await watched.write(lambda tx: tx.delete("r1"))
    assert heard == [(None, "a"), ("a", "b"), ("b", None)]


async def test_a_new_status_is_nobodys_business(watched: Store, heard: list) -> None:
    row = resource("r1", name="a")
    await watched.write(lambda tx: tx.insert(row))
    await watched.write(lambda tx: tx.update(replace(row, status=b"new")))
    assert heard == [(None, "a")]


async def test_a_new_state_is_told(watched: Store, heard: list) -> None:
    row = resource("r1", name="a")
    await watched.write(lambda tx: tx.insert(row))
    await watched.write(lambda tx: tx.update(replace(row, state="READY")))
    assert heard == [(None, "a"), ("a", "a")]


async def test_what_the_watcher_raises_undoes_the_transaction(watched: Store) -> None:
    def three(tx: Transaction) -> None:
        for number in range(3):
            tx.insert(resource(f"r{number}", name=str(number)))

    with pytest.raises(Refused):
        await watched.write(three)
    assert await watched.read(lambda tx: tx.get("r0")) is None
    assert await watched.read(lambda tx: dict(tx.all_counters())) == {}
