"""The filter language: what it says, what it refuses, and that the database's share never hides a match."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocloud.core.store import AuditEvent, Page, open_store
from neocloud.core.store.audit_query import AuditQuery
from neocloud.services.audit.rules import FIELDS, FilterError, condition, matches, parse
from neocloud.testing.waiting import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = "tenant-e00a"


def event(number: int = 0, **fields: Any) -> AuditEvent:
    usual: dict[str, Any] = {
        "service": "iam", "action": "create", "type": "ai.nebius.iam.group.create", "status": "DONE",
        "resource_id": "group-e00x", "resource_name": 'my "test", [x]', "resource_kind": "group",
        "subject": "serviceaccount-e00s", "subject_kind": "service_account", "subject_name": "operator",
        "hierarchy": json.dumps([[TENANT, "bank", "container"], ["group-e00x", 'my "test", [x]', "group"]]),
    }  # fmt: skip
    given = {"parent_id": "", "resource_id": "r", "subject": "s", **usual, **fields}
    return AuditEvent(id=f"e{number}", at=NOW, method="m", request_id="q", code=0, tenant_id=TENANT, **given)


@pytest.mark.parametrize(
    ("text", "is_match"),
    [
        ("", True),
        ("service.name = 'iam'", True),
        ('service.name="compute"', False),
        ("service.name != 'compute'", True),
        ("resource.hierarchy.id:'tenant-e0' AND regex(resource.metadata.name, '^.*test.*$')", True),
        ("resource.hierarchy.id = 'tenant-e00a'", True),
        ("resource.hierarchy.id = 'tenant-e00'", False),
        ("resource.hierarchy.name = 'bank'", True),
        ("resource.hierarchy.name = 'my \\\"test\\\", [x]'", True),
        ("authentication.subject.service_account_id = 'serviceaccount-e00s'", True),
        ("authentication.subject.tenant_user_id = 'serviceaccount-e00s'", False),
        ("authentication.subject.tenant_user_id != 'x'", True),
        ("authentication.token_credential.masked_token:'a'", False),
        ("status = 'ERROR' OR action = 'create' AND type:'group'", True),
        ("(status = 'ERROR' OR action = 'create') AND type:'disk'", False),
        ("NOT (status = 'ERROR') AND NOT action = 'delete'", True),
        ("resource.metadata.type = 'group'", True),
        ("action = 'AND'", False),
    ],
)
def test_a_filter_says_what_it_means(text: str, is_match: bool) -> None:
    assert matches(parse(text), event()) is is_match


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("service = 'iam'", "at character 1, where a field: action"),
        ("service.name 'iam'", "where =, != or : must be"),
        ("service.name = iam", "where a value in quotes must be"),
        ("service.name = 'iam", "where a value in quotes must be"),
        ("service.name = 'iam' status = 'DONE'", "where AND, OR or the end must be"),
        ("service.name = 'iam' AND", "ends at character 25"),
        ("NOT action = 'a' )", "has ')' at character 18, where AND, OR or the end must be"),
        ("(action = 'a'", "where ) must be"),
        ("regex(action 'a')", "where , must be"),
        ("regex(action, '(')", "is not a pattern of RE2: missing )"),
        ("__import__('os')", "where a field"),
        ("action = 'a'; DROP TABLE audit", "has ';'"),
        ("(" * 100 + "action = 'a'" + ")" * 100, "nested more than 32 deep"),
        ("action = '" + "a" * 5000 + "'", "longer than 4096"),
    ],
)
def test_what_is_no_filter_is_told_where(text: str, told: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert told in str(caught.value)


def test_no_pattern_is_slow() -> None:
    """(a+)+$ takes most engines longer than anybody waits."""
    node = parse("regex(resource.metadata.name, '(a+)+$')")
    assert not matches(node, event(resource_name="a" * 50_000 + "!"))


_values = st.sampled_from(
    ["iam", "compute", "create", "DONE", "bank", TENANT, "group-e00x", "a", "%", "'", '", "']
)
_compares = st.builds(
    lambda field, sign, value: f"{field} {sign} '" + value.replace("'", r"\'") + "'",
    st.sampled_from(sorted(FIELDS)), st.sampled_from(["=", "!=", ":"]), _values,
)  # fmt: skip
_filters = st.recursive(
    _compares,
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(text=_filters)
async def test_what_the_database_leaves_out_matches_nothing(text: str) -> None:
    events = [
        event(1),
        event(2, service="compute", status="ERROR", subject_kind="user", subject="tenantuseraccount-e00u"),
        event(3, hierarchy="", resource_name="", resource_id="", subject_name="'"),
        event(4, hierarchy=json.dumps([[TENANT, "%", "container"]]), resource_name="bank"),
    ]
    store = await open_store(":memory:", b"k" * 32, FakeClock())
    await store.write(lambda tx: [tx.audit(each) for each in events])
    node = parse(text)
    query = AuditQuery(TENANT, condition=condition(node))
    found, _ = await store.read(lambda tx: tx.find_audit(query, Page()))
    await store.close()
    wanted = {each.id for each in events if matches(node, each)}
    assert wanted == {each.id for each in found if matches(node, each)}
