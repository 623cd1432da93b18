# pyright: standard
"""Conformance of operations, idempotency keys and audit events; and the sample rows of all tests of
stores."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.core.store import (
    AlreadyExists,
    AuditEvent,
    IdempotencyKey,
    OperationRow,
    Page,
    Resource,
    Store,
    StoreError,
)
from neocloud.core.store.audit_query import AllOf, AnyOf, AuditQuery, Condition, Is, Not, Test

NOW = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
KIND = "neocloud.slurm.v1.Cluster"
PARENT = "project-e00a"
KEY = IdempotencyKey("subject", "method", "key", "hash", b"response", NOW)
TENANT = "tenant-e00a"


def resource(id: str = "slurmcluster-e00a", **values: Any) -> Resource:
    given = {"kind": KIND, "parent_id": PARENT, "name": "bank", "created_at": NOW, "updated_at": NOW}
    return Resource(id=id, **{**given, **values})


def operation(id: str = "operation-e00a", **values: Any) -> OperationRow:
    given = {
        "resource_id": "slurmcluster-e00a",
        "resource_kind": KIND,
        "parent_id": PARENT,
        "method": "neocloud.slurm.v1.ClusterService/Create",
        "description": "Create cluster bank",
        "created_by": "serviceaccount-e00a",
        "created_at": NOW,
        "resource_version": 1,
    }
    return OperationRow(id=id, **{**given, **values})


def event(number: int, parent_id: str = PARENT, resource_id: str = "r1") -> AuditEvent:
    return AuditEvent(f"audit-{number}", NOW, "subject", "method", parent_id, resource_id, "q", 7)


class RecordConformance:
    async def test_an_operation_is_read_as_it_was_written(self, store: Store) -> None:
        full = operation(
            request=b"\x00", request_headers={"x-resetmask": "spec"}, progress="half", request_id="abc"
        )
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


def audit_event(number: int, **fields: str) -> AuditEvent:
    at = NOW + timedelta(seconds=number)
    made = AuditEvent(f"e{number}", at, "subject", "method", "p", "r", "q", 0, tenant_id=TENANT)
    return replace(made, **fields)


async def _write(store: Store, *events: AuditEvent) -> None:
    await store.write(lambda tx: [tx.audit(event) for event in events])


async def _ids(store: Store, query: AuditQuery, page: Page | None = None) -> list[str]:
    found, _ = await store.read(lambda tx: tx.find_audit(query, page or Page()))
    return [event.id for event in found]


def _where(condition: Condition) -> AuditQuery:
    return AuditQuery(TENANT, condition=condition)


class AuditConformance:
    async def test_an_event_is_read_as_it_was_written(self, store: Store) -> None:
        event = audit_event(
            1, resource_kind="k", resource_name="n", service="compute", action="create", type="t",
            status="DONE", subject_kind="user", subject_name="eve", impersonator_id="i", hierarchy="[]",
            source_address="192.0.2.1", user_agent="sdk", idempotency_key="key",
        )  # fmt: skip
        await _write(store, replace(event, request=b"\x00"))
        found, after = await store.read(lambda tx: tx.find_audit(AuditQuery(TENANT), Page()))
        assert (list(found), after) == ([replace(event, request=b"\x00")], "")

    async def test_another_tenants_events_are_never_found(self, store: Store) -> None:
        await _write(store, audit_event(1), audit_event(2, tenant_id="tenant-e00b"))
        everything = AnyOf((Not(Is("id", Test.EQUALS, "")), Is("tenant_id", Test.EQUALS, "tenant-e00b")))
        assert await _ids(store, _where(everything)) == ["e1"]

    async def test_newest_come_first_unless_asked_otherwise(self, store: Store) -> None:
        await _write(store, *(audit_event(number) for number in (2, 1, 3)))
        assert await _ids(store, AuditQuery(TENANT)) == ["e3", "e2", "e1"]
        assert await _ids(store, AuditQuery(TENANT, is_ascending=True)) == ["e1", "e2", "e3"]

    async def test_a_span_has_its_start_and_not_its_end(self, store: Store) -> None:
        await _write(store, *(audit_event(number) for number in range(4)))
        start, end = NOW + timedelta(seconds=1), NOW + timedelta(seconds=3)
        assert await _ids(store, AuditQuery(TENANT, start=start, end=end)) == ["e2", "e1"]

    async def test_conditions_combine(self, store: Store) -> None:
        await _write(
            store,
            audit_event(1, service="iam", resource_name="Bank"),
            audit_event(2, service="iam", resource_name="100%_bank"),
            audit_event(3, service="compute", resource_name="bank"),
        )
        is_iam, is_compute = (Is("service", Test.EQUALS, name) for name in ("iam", "compute"))
        has_bank = Is("resource_name", Test.CONTAINS, "bank")
        assert await _ids(store, _where(AllOf((is_iam, has_bank)))) == ["e2"]
        assert await _ids(store, _where(AnyOf((is_compute, has_bank)))) == ["e3", "e2"]
        assert await _ids(store, _where(Not(is_iam))) == ["e3"]
        assert await _ids(store, _where(AnyOf(()))) == []
        assert await _ids(store, _where(Is("resource_name", Test.CONTAINS, "%_"))) == ["e2"]
        assert await _ids(store, _where(Is("service", Test.EQUALS, "' OR ''='"))) == []

    async def test_pages_are_stable_while_new_events_come(self, store: Store) -> None:
        same_time = [replace(audit_event(number), at=NOW) for number in range(5)]
        await _write(store, *same_time)
        for is_ascending in (False, True):
            query = AuditQuery(TENANT, is_ascending=is_ascending, end=NOW + timedelta(seconds=1))
            seen, after = [], ""
            while True:
                page, after = await store.read(lambda tx, a=after, q=query: tx.find_audit(q, Page(2, a)))
                seen += [event.id for event in page]
                await _write(store, audit_event(9 + len(seen)))
                if not after:
                    break
            assert seen == ["e0", "e1", "e2", "e3", "e4"][:: 1 if is_ascending else -1]

    async def test_old_events_are_forgotten_oldest_first(self, store: Store) -> None:
        await _write(store, *(audit_event(number) for number in range(5)))
        before = NOW + timedelta(seconds=3)
        assert await store.write(lambda tx: tx.forget_audit(before, 2)) == 2
        assert await store.write(lambda tx: tx.forget_audit(before, 2)) == 1
        assert await _ids(store, AuditQuery(TENANT)) == ["e4", "e3"]
