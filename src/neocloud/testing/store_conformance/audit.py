"""Audit events: asked for by tenant, time and condition, in pages, and forgotten when they are old."""

from dataclasses import replace
from datetime import timedelta

from neocloud.core.store import AuditEvent, Page, Store
from neocloud.core.store.audit_query import AllOf, AnyOf, AuditQuery, Condition, Is, Not, Test
from neocloud.testing.store_conformance.samples import NOW

TENANT = "tenant-e00a"


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
