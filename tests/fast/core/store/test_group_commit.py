"""The writer commits what waits together; a conflict runs the group again; the dead end in words."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from neocloud.core.store import Store, StoreError, Transaction, open_store
from neocloud.testing.store_conformance.records import resource
from neocloud.testing.waiting import FakeClock
from tests.fast.core.store.conftest import KEY


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock):
    opened = await open_store(tmp_path / "state.db", KEY, clock)
    yield opened
    await opened.close()


async def test_works_that_wait_together_are_committed_together(store: Store, tmp_path: Path) -> None:
    may_go_on, has_begun = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        has_begun.set()
        may_go_on.wait(timeout=60)

    commits: list[str] = []
    store._database.engine.dialect.do_commit = _counting(store._database.engine.dialect.do_commit, commits)  # type: ignore[attr-defined]
    first = asyncio.create_task(store.write(hold))
    await asyncio.to_thread(has_begun.wait, 60)
    rest = [
        asyncio.create_task(store.write(lambda tx, n=n: tx.insert(resource(f"r{n}", name=str(n)))))
        for n in range(50)
    ]
    await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(first, *rest)
    assert len(commits) == 2


async def test_a_caller_that_gave_up_does_not_stop_the_writer(store: Store) -> None:
    given_up = asyncio.create_task(store.write(lambda tx: tx.insert(resource("r1"))))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await store.write(lambda tx: tx.insert(resource("r2", name="other")))
    assert await store.read(lambda tx: tx.get("r2")) is not None


async def test_closing_waits_for_what_was_submitted(tmp_path: Path, clock: FakeClock) -> None:
    store = await open_store(tmp_path / "other.db", KEY, clock)
    write = asyncio.create_task(store.write(lambda tx: tx.insert(resource())))
    await asyncio.sleep(0)
    await store.close()
    await write
    again = await open_store(tmp_path / "other.db", KEY, clock)
    assert await again.read(lambda tx: tx.get(resource().id)) == resource()
    await again.close()


async def test_a_closed_store_says_so(tmp_path: Path, clock: FakeClock) -> None:
    store = await open_store(tmp_path / "other.db", KEY, clock)
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.write(lambda tx: None)


async def test_two_servers_on_postgresql_lose_no_update(shared_database: str, clock: FakeClock) -> None:
    stores = [await open_store(shared_database, KEY, clock) for _ in range(2)]
    await stores[0].write(lambda tx: tx.delete("counter"))
    await stores[0].write(lambda tx: tx.insert(resource("counter", name="counter")))

    def increment(tx: Transaction) -> None:
        row = tx.get("counter")
        assert row is not None
        tx.update(replace(row, observed_version=row.observed_version + 1))

    async def count(store: Store) -> None:
        for _ in range(25):
            await store.write(increment)

    await asyncio.gather(*(count(store) for store in stores))
    row = await stores[1].read(lambda tx: tx.get("counter"))
    assert row is not None and row.observed_version == 50
    for store in stores:
        await store.close()


async def test_a_lost_connection_to_postgresql_is_made_again(empty_database: str, clock: FakeClock) -> None:
    store = await open_store(empty_database, KEY, clock)
    await store.write(lambda tx: tx.insert(resource("r1")))
    with psycopg.connect(empty_database) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert await store.read(lambda tx: tx.get("r1")) == resource("r1")
    await store.write(lambda tx: tx.insert(resource("r2", name="other")))
    await store.close()


async def test_a_connection_lost_during_a_work_is_said_and_nothing_is_kept(
    empty_database: str, clock: FakeClock
) -> None:
    store = await open_store(empty_database, KEY, clock)

    def lose(tx: Transaction) -> None:
        tx.insert(resource("r1"))
        with psycopg.connect(empty_database) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        tx.get("r1")

    with pytest.raises(StoreError, match="does not answer"):
        await store.write(lose)
    assert await store.read(lambda tx: tx.get("r1")) is None
    await store.close()


def _counting(do_commit, commits: list[str]):
    def commit(connection) -> None:
        commits.append("commit")
        do_commit(connection)

    return commit
