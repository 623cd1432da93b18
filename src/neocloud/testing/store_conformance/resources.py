"""Resources: what is written is read, names are unique, lists page stably."""

import pytest

from neocloud.core.store import AlreadyExists, Page, StaleVersion, Store
from neocloud.testing.store_conformance.samples import KIND, NOW, PARENT, resource


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
