# pyright: standard, reportMissingModuleSource=false
"""Conformance of resources, of their secrets, and of transactions."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from neocloud.core.store import AlreadyExists, Page, Resource, StaleVersion, Store, Transaction
from neocloud.messages.nebius.compute.v1 import InstanceSpec
from neocloud.testing.store_conformance.records import KIND, NOW, PARENT, operation, resource


class ResourceConformance:
    async def test_a_resource_is_read_as_it_was_written(self, store: Store) -> None:
        full = resource(
            resource_version=3,
            labels={"team": "fraud", "note": "naïve ünïcode ✓"},
            spec=bytes(range(256)),
            status=b"\x00\xff",
            state="READY",
            owner_id="slurmcluster-e00owner",
            finalizers=("reconcile", "other"),
            deleted_at=NOW,
            observed_version=2,
        )
        await store.write(lambda tx: tx.insert(full))
        assert await store.read(lambda tx: tx.get(full.id)) == full

    async def test_what_was_never_written_is_none(self, store: Store) -> None:
        assert await store.read(lambda tx: tx.get("slurmcluster-e00none")) is None
        assert await store.read(lambda tx: tx.find(KIND, PARENT, "none")) is None

    async def test_a_name_is_taken_while_its_row_exists(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1", deleted_at=NOW)))
        with pytest.raises(AlreadyExists, match="r1"):
            await store.write(lambda tx: tx.insert(resource("r2")))
        await store.write(lambda tx: tx.delete("r1"))
        await store.write(lambda tx: tx.insert(resource("r2")))
        assert (await store.read(lambda tx: tx.find(KIND, PARENT, "bank"))) == resource("r2")

    async def test_a_name_is_free_under_another_parent_and_kind(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        await store.write(lambda tx: tx.insert(resource("r2", parent_id="project-e00b")))
        await store.write(lambda tx: tx.insert(resource("r3", kind="nebius.compute.v1.Disk")))
        found = await store.read(lambda tx: tx.find(KIND, "project-e00b", "bank"))
        assert found and found.id == "r2"

    async def test_resources_without_a_name_do_not_collide(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1", name="")))
        await store.write(lambda tx: tx.insert(resource("r2", name="")))
        assert len((await store.read(lambda tx: tx.list(KIND)))[0]) == 2

    async def test_an_id_is_given_once(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        with pytest.raises(AlreadyExists, match="r1"):
            await store.write(lambda tx: tx.insert(resource("r1", name="other")))

    async def test_a_transaction_goes_on_after_a_taken_name(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))

        def take_another_name(tx) -> None:
            with pytest.raises(AlreadyExists):
                tx.insert(resource("r2"))
            tx.insert(resource("r2", name="second choice"))

        await store.write(take_another_name)
        assert (await store.read(lambda tx: tx.get("r2"))).name == "second choice"  # type: ignore[union-attr]

    async def test_a_rename_to_a_taken_name_is_refused(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        await store.write(lambda tx: tx.insert(resource("r2", name="other")))
        with pytest.raises(AlreadyExists, match="r1"):
            await store.write(lambda tx: tx.update(resource("r2")))

    async def test_an_update_of_another_version_is_refused(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource()))
        changed = resource(resource_version=2, spec=b"new")
        await store.write(lambda tx: tx.update(changed, expected_version=1))
        with pytest.raises(StaleVersion):
            await store.write(lambda tx: tx.update(changed, expected_version=1))
        assert await store.read(lambda tx: tx.get(changed.id)) == changed

    async def test_an_update_of_a_removed_resource_is_refused(self, store: Store) -> None:
        with pytest.raises(StaleVersion):
            await store.write(lambda tx: tx.update(resource()))

    async def test_lists_come_in_order_of_creation(self, store: Store) -> None:
        for name in ("c", "a", "b"):
            await store.write(lambda tx, name=name: tx.insert(resource(f"r-{name}", name=name)))
        listed, after = await store.read(lambda tx: tx.list(KIND, parent_id=PARENT))
        assert [found.name for found in listed] == ["c", "a", "b"]
        assert after == ""

    async def test_pages_neither_repeat_nor_lose_rows_while_others_come_and_go(self, store: Store) -> None:
        for number in range(5):
            await store.write(lambda tx, n=number: tx.insert(resource(f"r{n}", name=f"n{n}")))
        first, after = await store.read(lambda tx: tx.list(KIND, parent_id=PARENT, page=Page(2)))
        await store.write(lambda tx: tx.insert(resource("r5", name="n5")))
        await store.write(lambda tx: tx.delete("r0"))
        second, after = await store.read(lambda tx: tx.list(KIND, parent_id=PARENT, page=Page(2, after)))
        third, after = await store.read(lambda tx: tx.list(KIND, parent_id=PARENT, page=Page(2, after)))
        assert [row.id for row in (*first, *second, *third)] == ["r0", "r1", "r2", "r3", "r4", "r5"]
        assert after == ""

    async def test_a_last_full_page_has_no_next(self, store: Store) -> None:
        for number in range(2):
            await store.write(lambda tx, n=number: tx.insert(resource(f"r{n}", name=f"n{n}")))
        assert (await store.read(lambda tx: tx.list(KIND, page=Page(2))))[1] == ""

    async def test_children_and_owned_are_found_whatever_their_kind(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("cluster")))
        child = resource("node", kind="neocloud.slurm.v1.Node", parent_id="cluster", owner_id="cluster")
        await store.write(lambda tx: tx.insert(child))
        assert await store.read(lambda tx: tx.children("cluster")) == [child]
        assert await store.read(lambda tx: tx.owned("cluster")) == [child]
        assert await store.read(lambda tx: tx.owned("")) == []


INSTANCE = "nebius.compute.v1.Instance"


def instance(user_data: str, id: str = "computeinstance-e00a") -> Resource:
    spec = InstanceSpec(cloud_init_user_data=user_data).SerializeToString()
    return resource(id, kind=INSTANCE, name=id, spec=spec, status=b"\x08\x01", owner_id="owner")


class SecretConformance:
    async def test_a_spec_with_secrets_is_read_as_it_was_written(self, store: Store) -> None:
        row = instance("first")
        await store.write(lambda tx: tx.insert(row))
        assert await store.read(lambda tx: tx.get(row.id)) == row
        assert await store.read(lambda tx: tx.find(INSTANCE, PARENT, row.name)) == row
        assert await store.read(lambda tx: tx.list(INSTANCE, page=Page(size=1))[0]) == [row]
        assert await store.read(lambda tx: tx.children(PARENT)) == [row]
        assert await store.read(lambda tx: tx.owned("owner")) == [row]

    async def test_the_history_of_specs_with_secrets_is_read_as_it_was(self, store: Store) -> None:
        first, second = instance("first"), replace(instance("second"), resource_version=2)
        await store.write(lambda tx: tx.insert(first))
        await store.write(lambda tx: tx.update(second))
        await store.write(lambda tx: tx.delete(first.id))
        entries = await store.read(lambda tx: tx.history(resource_id=first.id))
        assert sorted(entry.spec for entry in entries) == [first.spec, second.spec, second.spec]

    async def test_a_changed_status_alone_adds_nothing_to_the_history(self, store: Store) -> None:
        row = instance("first")
        await store.write(lambda tx: tx.insert(row))
        lease = await store.write(lambda tx: tx.lease(row.id, "t", NOW, NOW + timedelta(seconds=10)))
        assert lease is not None
        await store.write(
            lambda tx: tx.commit_result(
                lease,
                status=b"\x08\x02",
                state=None,
                observed_version=None,
                finalizers=None,
                due_at=None,
                attempts=0,
                now=NOW,
            )
        )
        assert await store.read(lambda tx: tx.get(row.id)) == replace(row, status=b"\x08\x02")
        assert len(await store.read(lambda tx: tx.history(resource_id=row.id))) == 1


class RefusedChange(Exception):
    pass


class TransactionConformance:
    async def test_a_work_that_raises_leaves_nothing_behind(self, store: Store) -> None:
        def work(tx: Transaction) -> None:
            tx.insert(resource("r1"))
            tx.insert_operation(operation())
            tx.put_secret("r1", "a", b"b")
            raise RefusedChange("no")

        with pytest.raises(RefusedChange):
            await store.write(work)
        assert await store.read(lambda tx: tx.get("r1")) is None
        assert await store.read(lambda tx: tx.get_operation(operation().id)) is None
        assert await store.read(lambda tx: tx.secret("r1", "a")) is None
        assert await store.read(lambda tx: tx.history()) == []

    async def test_a_work_that_raises_does_not_hurt_those_beside_it(self, store: Store) -> None:
        def work(tx: Transaction, number: int) -> int:
            tx.insert(resource(f"r{number}", name=f"n{number}"))
            if number % 3 == 0:
                raise RefusedChange(str(number))
            return number

        writes = (store.write(lambda tx, n=number: work(tx, n)) for number in range(30))
        results = await asyncio.gather(*writes, return_exceptions=True)
        for number, result in enumerate(results):
            if number % 3 == 0:
                assert isinstance(result, RefusedChange)
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
