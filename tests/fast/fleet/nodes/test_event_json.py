"""Events of nodes survive being stored, and nothing else is taken for one."""

import inspect
import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import MAX_TEXT, TYPES, BadEvent, decode, encode
from neocloud.fleet.nodes.events import Status

VERDICT = e.Verdict(12.5, "w-0", "v1", "cpu", Status.FAIL, "b1", "1 vCPU", ">= 2 vCPU", "node report", "1")


def test_every_kind_of_event_is_stored() -> None:
    found = {each for _, each in inspect.getmembers(e, inspect.isclass) if issubclass(each, e.Event)}
    assert found - {e.Event} == set(TYPES.values())


@given(st.sampled_from(sorted(TYPES)).flatmap(lambda name: st.builds(TYPES[name])))
def test_an_event_is_read_back_as_it_was(event: e.Event) -> None:
    try:
        body = encode(event)
    except BadEvent:
        times = [getattr(event, each.name) for each in fields(event) if each.type in (float, "float")]
        assert any(value != value or value in (float("inf"), float("-inf")) for value in times)
        return
    assert decode(body) == event
    assert encode(decode(body)) == body


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "Healed"}, "no event has the type"),
        ({"type": None}, "no event has the type"),
        ({"status": "fine"}, "cannot be 'fine'"),
        ({"at": "12"}, "not a finite number"),
        ({"at": True}, "not a finite number"),
        ({"at": float("nan")}, "not a finite number"),
        ({"is_fatal": 0}, "not of the type bool"),
        ({"sample": 7}, "not of the type str"),
        ({"sample": "x" * (MAX_TEXT + 1)}, "longer than"),
        ({"colour": "red"}, "has no field colour"),
    ],
)
def test_what_is_no_event_is_refused(change: dict[str, object], reason: str) -> None:
    document = {**json.loads(encode(VERDICT)), **change}
    with pytest.raises(BadEvent, match=reason):
        decode(json.dumps(document).encode())


def test_a_missing_field_is_not_guessed() -> None:
    document = json.loads(encode(VERDICT))
    del document["is_fatal"]
    with pytest.raises(BadEvent, match="lacks the field is_fatal"):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff"])
def test_other_documents_are_refused(body: bytes) -> None:
    with pytest.raises(BadEvent):
        decode(body)
