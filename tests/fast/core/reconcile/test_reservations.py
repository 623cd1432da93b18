"""A reconciler's search for a free value: it costs what it tries, not what the namespace holds."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.reconcile.context import RunContext, WorkerContext
from neocloud.core.store import Resource, Store, Transaction, open_store
from tests.fast.core.reconcile.toy_reconcilers import CLUSTER, PROJECT

NAMESPACE, OTHER_NAMESPACE = "ports", "other-ports"
ME = "slurmcluster-me"


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Store]:
    is_file = request.param == "sqlite"
    address = tmp_path / "state.db" if is_file else request.getfixturevalue("empty_database")
    store = await open_store(address, bytes(32), SystemClock())
    yield store
    await store.close()


@pytest.fixture
async def context(store: Store) -> RunContext:
    """Return the context of a pass of one resource under a lease."""
    clock = SystemClock()
    now = clock.now()
    resource = Resource(ME, CLUSTER, PROJECT, "me", now, now)

    def begin(tx: Transaction) -> Any:
        tx.insert(resource)
        tx.enqueue(ME, now)
        return tx.lease(ME, "token", now, now + timedelta(minutes=5))

    lease = await store.write(begin)
    assert lease is not None
    surroundings = WorkerContext(store, clock, {}, lambda prefix: prefix, lambda: None)
    return RunContext(surroundings, resource, lease)


async def held_by_others(store: Store, values: range) -> None:
    await store.write(lambda tx: [tx.reserve(NAMESPACE, str(value), "somebody-else") for value in values])


async def test_what_others_hold_is_not_read_while_a_few_tries_are_enough(
    store: Store, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held_by_others(store, range(30))
    original = store.write

    class Unreadable:
        """A transaction whose namespaces must not be read whole."""

        def __init__(self, tx: Transaction) -> None:
            self._tx = tx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        def reservations(self, namespace: str) -> Mapping[str, str]:
            raise AssertionError(f"all reservations of {namespace} were read")

    monkeypatch.setattr(store, "write", lambda work: original(lambda tx: work(Unreadable(tx))))
    assert await context.reserve(NAMESPACE, map(str, count())) == "30"
    assert await context.reserve(NAMESPACE, map(str, count())) == "30", "it has one already"
    await context.release(NAMESPACE, "30")


async def test_the_first_free_one_is_found_behind_many_that_are_taken(
    store: Store, context: RunContext
) -> None:
    await held_by_others(store, range(500))
    asked = []

    def candidates() -> Any:
        for number in count():
            asked.append(number)
            yield str(number)

    assert await context.reserve(NAMESPACE, candidates()) == "500"
    assert asked == list(range(501)), "made one by one, and none for nothing"


async def test_none_is_free(store: Store, context: RunContext) -> None:
    await held_by_others(store, range(100))
    assert await context.reserve(NAMESPACE, map(str, range(100))) is None


async def test_only_what_is_ones_own_is_given_back(store: Store, context: RunContext) -> None:
    await held_by_others(store, range(2))
    assert await context.reserve(OTHER_NAMESPACE, ["0"]) == "0"
    assert await context.reserve(NAMESPACE, ["0", "1", "2"]) == "2"
    await context.release(NAMESPACE, "0")
    await context.release(NAMESPACE, "2")
    assert set(await context.reservations(NAMESPACE)) == {"0", "1"}
    assert set(await context.reservations(OTHER_NAMESPACE)) == {"0"}


async def test_a_transaction_that_is_run_again_tries_the_same_candidates(
    store: Store, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rerun follows a conflict with another server: what the first run took was never written."""
    original = store.write

    async def again(work: Any) -> Any:
        async def lost() -> None:
            def take_and_fail(tx: Transaction) -> None:
                work(tx)
                raise TimeoutError

            await original(take_and_fail)

        with pytest.raises(TimeoutError):
            await lost()
        return await original(work)

    monkeypatch.setattr(store, "write", again)
    assert await context.reserve(NAMESPACE, iter(["a", "b"])) == "a"
