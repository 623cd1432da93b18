"""Specs of kinds that can hold secrets: sealed in the database, read back as they were written."""

from dataclasses import replace
from datetime import timedelta

from neocloud.core.store import Page, Resource, Store
from neocloud.messages.nebius.compute.v1 import InstanceSpec
from neocloud.testing.store_conformance.samples import NOW, PARENT, resource

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
