"""Operations, idempotency keys, audit events and secrets."""

from dataclasses import replace
from datetime import timedelta

import pytest

from neocloud.core.store import AlreadyExists, AuditEvent, IdempotencyKey, Page, Store, StoreError
from neocloud.testing.store_conformance.samples import NOW, PARENT, operation, resource

KEY = IdempotencyKey("subject", "method", "key", "hash", b"response", NOW)


def event(number: int, parent_id: str = PARENT, resource_id: str = "r1") -> AuditEvent:
    return AuditEvent(f"audit-{number}", NOW, "subject", "method", parent_id, resource_id, "q", 7)


class RecordConformance:
    async def test_an_operation_is_read_as_it_was_written(self, store: Store) -> None:
        full = operation(request=b"\x00", request_headers={"x-resetmask": "spec"}, progress="half")
        await store.write(lambda tx: tx.insert_operation(full))
        assert await store.read(lambda tx: tx.get_operation(full.id)) == full
        ended = replace(full, finished_at=NOW, code=0, message="done", details=b"\x01")
        await store.write(lambda tx: tx.update_operation(ended))
        assert await store.read(lambda tx: tx.get_operation(full.id)) == ended

    async def test_an_unknown_operation_is_none_and_cannot_be_changed(self, store: Store) -> None:
        assert await store.read(lambda tx: tx.get_operation("operation-e00none")) is None
        with pytest.raises(StoreError, match="does not exist"):
            await store.write(lambda tx: tx.update_operation(operation("operation-e00none")))

    async def test_an_operation_id_is_given_once(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert_operation(operation()))
        with pytest.raises(AlreadyExists):
            await store.write(lambda tx: tx.insert_operation(operation()))

    async def test_operations_are_listed_newest_first_and_chosen(self, store: Store) -> None:
        rows = [
            operation("o1", code=0, finished_at=NOW),
            operation("o2"),
            operation("o3", resource_id="other", resource_kind="Disk"),
            operation("o4", parent_id="elsewhere"),
        ]
        for row in rows:
            await store.write(lambda tx, row=row: tx.insert_operation(row))

        async def ids(**wanted) -> list[str]:
            return [row.id for row in (await store.read(lambda tx: tx.list_operations(**wanted)))[0]]

        assert await ids() == ["o4", "o3", "o2", "o1"]
        assert await ids(resource_id="slurmcluster-e00a") == ["o4", "o2", "o1"]
        assert await ids(parent_id=PARENT, kind="Disk") == ["o3"]
        assert await ids(resource_id="slurmcluster-e00a", unfinished=True) == ["o4", "o2"]

    async def test_operations_page_stably_while_new_ones_come(self, store: Store) -> None:
        for number in range(4):
            await store.write(lambda tx, n=number: tx.insert_operation(operation(f"o{n}")))
        first, after = await store.read(lambda tx: tx.list_operations(page=Page(2)))
        await store.write(lambda tx: tx.insert_operation(operation("o4")))
        second, after = await store.read(lambda tx: tx.list_operations(page=Page(2, after)))
        assert [row.id for row in (*first, *second)] == ["o3", "o2", "o1", "o0"]
        assert after == ""

    async def test_operations_outlive_their_resource(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource()))
        await store.write(lambda tx: tx.insert_operation(operation()))
        await store.write(lambda tx: tx.delete(resource().id))
        assert await store.read(lambda tx: tx.get_operation(operation().id)) == operation()

    async def test_a_key_is_recalled_by_subject_method_and_key(self, store: Store) -> None:
        await store.write(lambda tx: tx.remember(KEY))
        assert await store.read(lambda tx: tx.recall("subject", "method", "key")) == KEY
        assert await store.read(lambda tx: tx.recall("other", "method", "key")) is None
        with pytest.raises(AlreadyExists):
            await store.write(lambda tx: tx.remember(KEY))

    async def test_old_keys_are_forgotten(self, store: Store) -> None:
        await store.write(lambda tx: tx.remember(KEY))
        await store.write(lambda tx: tx.remember(replace(KEY, key="new", created_at=NOW + timedelta(1))))
        assert await store.write(lambda tx: tx.forget_keys(NOW + timedelta(hours=1))) == 1
        assert await store.read(lambda tx: tx.recall("subject", "method", "key")) is None
        assert await store.read(lambda tx: tx.recall("subject", "method", "new")) is not None

    async def test_audit_events_are_listed_newest_first_and_chosen(self, store: Store) -> None:
        events = [event(1), event(2, resource_id="r2"), event(3, parent_id="elsewhere")]
        for row in events:
            await store.write(lambda tx, row=row: tx.audit(row))
        listed, after = await store.read(lambda tx: tx.list_audit())
        assert (listed, after) == (events[::-1], "")
        assert (await store.read(lambda tx: tx.list_audit(resource_id="r2")))[0] == [events[1]]
        first, after = await store.read(lambda tx: tx.list_audit(parent_id=PARENT, page=Page(1)))
        second, after = await store.read(lambda tx: tx.list_audit(parent_id=PARENT, page=Page(1, after)))
        assert ([*first, *second], after) == ([events[1], events[0]], "")

    async def test_a_secret_is_replaced_and_goes_with_its_resource(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        await store.write(lambda tx: tx.put_secret("r1", "jwt", b"old"))
        await store.write(lambda tx: tx.put_secret("r1", "jwt", b"new"))
        assert await store.read(lambda tx: tx.secret("r1", "jwt")) == b"new"
        assert await store.read(lambda tx: tx.secret("r1", "other")) is None
        await store.write(lambda tx: tx.delete("r1"))
        assert await store.read(lambda tx: tx.secret("r1", "jwt")) is None

    async def test_a_secret_needs_no_resource(self, store: Store) -> None:
        await store.write(lambda tx: tx.put_secret("server", "signing key", b"\x00secret"))
        assert await store.read(lambda tx: tx.secret("server", "signing key")) == b"\x00secret"
