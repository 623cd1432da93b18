# pyright: standard
"""Conformance of the queue: one holder at a time, no lost notification, leases of dead workers end."""

from datetime import timedelta
from typing import Any

import pytest

from neocloud.core.store import Lease, LeaseLost, Store, Transaction
from neocloud.testing.store_conformance.records import KIND, NOW, resource

SOON = NOW + timedelta(seconds=10)
LATER = NOW + timedelta(seconds=60)


def settle(tx: Transaction, lease: Lease, **values: Any) -> None:
    nothing = dict.fromkeys(("status", "state", "observed_version", "finalizers", "due_at"))
    tx.commit_result(lease, **{**nothing, "attempts": 0, "now": NOW, **values})


async def take(store: Store, token: str = "t1", now=NOW, until=SOON) -> Lease | None:
    return await store.write(lambda tx: tx.lease("r1", token, now, until))


async def due(store: Store, now=NOW) -> list[str]:
    return list(await store.read(lambda tx: tx.due([KIND], now, 10)))


class QueueConformance:
    @pytest.fixture
    async def leased(self, store: Store) -> Lease:
        await store.write(lambda tx: tx.insert(resource("r1", state="CREATING", finalizers=("reconcile",))))
        lease = await take(store)
        assert lease is not None
        return lease

    async def test_a_new_resource_is_due_at_once_for_its_kind_only(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        assert await due(store) == ["r1"]
        assert await store.read(lambda tx: tx.due(["Disk"], NOW, 10)) == []
        assert await store.read(lambda tx: tx.next_due([KIND])) == NOW
        assert await store.read(lambda tx: tx.next_due(["Disk"])) is None

    async def test_the_longest_due_come_first_and_no_more_than_asked_for(self, store: Store) -> None:
        for seconds, id in enumerate(("r1", "r2", "r3")):
            at = NOW - timedelta(seconds=seconds)
            await store.write(
                lambda tx, id=id, at=at: tx.insert(resource(id, name=id, created_at=at, updated_at=at))
            )
        assert await store.read(lambda tx: tx.due([KIND], NOW, 2)) == ["r3", "r2"]

    async def test_only_one_gets_the_lease(self, store: Store, leased: Lease) -> None:
        assert leased == Lease("r1", "t1", SOON, 0)
        assert await due(store) == []
        assert await take(store, "t2") is None

    async def test_a_lease_that_ran_out_can_be_taken_and_its_old_holder_is_refused(
        self, store: Store, leased: Lease
    ) -> None:
        assert await store.read(lambda tx: tx.next_due([KIND])) == SOON
        assert await due(store, SOON) == ["r1"]
        successor = await take(store, "t2", SOON, LATER)
        assert successor is not None
        for late in (
            lambda tx: settle(tx, leased, state="READY"),
            lambda tx: tx.renew(leased, LATER),
            lambda tx: tx.check_lease(leased),
        ):
            with pytest.raises(LeaseLost):
                await store.write(late)
        assert (await store.read(lambda tx: tx.get("r1"))).state == "CREATING"  # type: ignore[union-attr]
        await store.write(lambda tx: tx.check_lease(successor))

    async def test_a_renewed_lease_holds_longer(self, store: Store, leased: Lease) -> None:
        renewed = await store.write(lambda tx: tx.renew(leased, LATER))
        assert renewed == Lease("r1", "t1", LATER, 0)
        assert await take(store, "t2", SOON, LATER) is None
        await store.write(lambda tx: settle(tx, renewed))

    async def test_settling_writes_the_result_and_gives_the_lease_back(
        self, store: Store, leased: Lease
    ) -> None:
        await store.write(
            lambda tx: settle(
                tx, leased, status=b"fact", state="READY", observed_version=1, finalizers=(), due_at=LATER
            )
        )
        assert await store.read(lambda tx: tx.get("r1")) == resource(
            "r1", status=b"fact", state="READY", observed_version=1
        )
        assert await due(store, SOON) == []
        assert await due(store, LATER) == ["r1"]
        history = await store.read(lambda tx: tx.history(resource_id="r1"))
        assert [entry.state for entry in history] == ["CREATING", "READY"]

    async def test_settling_without_a_state_leaves_the_row_as_it_is(
        self, store: Store, leased: Lease
    ) -> None:
        before = await store.read(lambda tx: tx.get("r1"))
        await store.write(lambda tx: settle(tx, leased))
        assert await store.read(lambda tx: tx.get("r1")) == before
        assert len(await store.read(lambda tx: tx.history(resource_id="r1"))) == 1
        assert await store.read(lambda tx: tx.next_due([KIND])) is None

    async def test_a_wake_during_the_lease_wins(self, store: Store, leased: Lease) -> None:
        await store.write(lambda tx: tx.enqueue("r1", NOW))
        assert await due(store) == []
        await store.write(lambda tx: settle(tx, leased, due_at=LATER))
        assert await due(store) == ["r1"]

    async def test_an_update_during_the_lease_makes_it_due_again(self, store: Store, leased: Lease) -> None:
        await store.write(lambda tx: tx.update(resource("r1", resource_version=2, spec=b"new")))
        await store.write(lambda tx: settle(tx, leased, state="READY", observed_version=1))
        assert await due(store, SOON) == ["r1"]
        row = await store.read(lambda tx: tx.get("r1"))
        assert row is not None
        assert (row.spec, row.resource_version, row.observed_version) == (b"new", 2, 1)

    async def test_a_wake_never_delays(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        await store.write(lambda tx: tx.enqueue("r1", LATER))
        assert await due(store) == ["r1"]
        await store.write(lambda tx: tx.enqueue("slurmcluster-e00none", NOW))

    async def test_attempts_are_remembered(self, store: Store, leased: Lease) -> None:
        await store.write(lambda tx: settle(tx, leased, attempts=3, due_at=NOW))
        again = await take(store, "t2")
        assert again is not None and again.attempts == 3

    async def test_nothing_is_leased_before_it_is_due(self, store: Store, leased: Lease) -> None:
        await store.write(lambda tx: settle(tx, leased, due_at=LATER))
        assert await take(store, "t2") is None

    async def test_a_taken_over_store_has_no_leases_and_everything_is_due(
        self, store: Store, leased: Lease
    ) -> None:
        await store.write(lambda tx: tx.insert(resource("r2", name="other")))
        other = await store.write(lambda tx: tx.lease("r2", "t2", NOW, SOON))
        assert other is not None
        await store.write(lambda tx: settle(tx, other))
        assert await store.write(lambda tx: tx.clear_leases([KIND])) == 1
        await store.write(lambda tx: tx.enqueue_all([KIND], NOW))
        assert sorted(await due(store)) == ["r1", "r2"]
        with pytest.raises(LeaseLost):
            await store.write(lambda tx: settle(tx, leased))

    async def test_a_removed_resource_is_not_due(self, store: Store, leased: Lease) -> None:
        await store.write(lambda tx: tx.delete("r1"))
        assert await due(store, LATER) == []
        with pytest.raises(LeaseLost):
            await store.write(lambda tx: settle(tx, leased))
