"""Hostile documents of a host: the reader takes what the agent writes, refuses the rest. HEALTH-13."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.fleet.agent.document import (
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_BYTES,
    MOST_NOT_RUN,
    MOST_VERDICTS,
    Document,
    DocumentError,
    NotRun,
    decode,
    encode,
    to_json,
)
from neocloud.fleet.nodes.events import CheckScope, Status, Verdict
from neocloud.fleet.policy.actions import Action

VERDICT = Verdict(
    at=1795776532.5, node="node-1", id="1", check="disk_used", status=Status.FAIL, boot="boot-1",
    sample="91 %", threshold="over 85 %", source="gcm", version="2026", action=Action.NONE,
    scope=CheckScope.NODE,
)  # fmt: skip
DOCUMENT = Document("node-1", "boot-1", 1795776532.5, 100.0, [VERDICT], [NotRun("gpu_lost", "No GPU")])


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = to_json(DOCUMENT)
    change(document)
    return json.dumps(document).encode()


def of_verdict(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["verdicts"][0].update(fields)


def of_document(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update(fields)


def test_what_is_written_is_read() -> None:
    assert decode(encode(DOCUMENT), host="node-1") == DOCUMENT


def test_a_receiver_may_go_by_its_own_clock() -> None:
    from_later = encode(replace(DOCUMENT, at=4e9))
    document = decode(from_later, host="node-1", at=1795776540.0)
    assert document.at == 4e9 and [each.at for each in document.verdicts] == [1795776540.0]


def test_a_large_document_is_shortened_until_it_is_read() -> None:
    verdicts = [
        replace(VERDICT, id=str(each), check=str(each), sample="\U0001f525" * 512) for each in range(500)
    ]
    document = decode(encode(replace(DOCUMENT, verdicts=verdicts)))
    assert len(document.verdicts) == 500 and document.verdicts[0].sample.startswith("\U0001f525" * 20)


HOSTILE = {
    "another host": (of_document(host="node-2"), "it is of host 'node-2', and 'node-1' sent it"),
    "no host": (of_document(host=""), "node-1' sent it|not empty"),
    "no boot": (of_document(boot=""), "not empty"),
    "a format of later": (of_document(format=2), "its format is not 1"),
    "a list of hosts": (of_document(host=["node-1"]), "host of the document is not a text"),
    "an endless time": (of_document(at=1e300), "at of the document is not a number"),
    "a time before 1970": (of_document(at=-1), "not a number from 0"),
    "a time that is true": (of_document(at=True), "not a number"),
    "a field that is not known": (of_document(colour="red"), "'colour', which is not known"),
    "a missing field": (lambda document: document.pop("verdicts"), "has no field 'verdicts'"),
    "verdicts that are no list": (of_document(verdicts={"0": 1}), "is not a list"),
    "a verdict that is no object": (of_document(verdicts=["pass"]), r"verdicts\[0\] is not an object"),
    "more verdicts than any host has": (of_document(verdicts=[0] * (MOST_VERDICTS + 1)), "more than"),
    "more left out than any host has": (of_document(not_run=[0] * (MOST_NOT_RUN + 1)), "more than"),
    "a status of its own": (of_verdict(status="great"), "status .* is 'great', which is none of pass, fail"),
    "an action of its own": (of_verdict(action="rm -rf /"), "which is none of none, restart_app"),
    "an action that is no text": (of_verdict(action={"a": 1}), "is not a text"),
    "a scope of its own": (of_verdict(scope="fleet"), "which is none of node"),
    "a flag that is a text": (of_verdict(is_fatal="true"), "neither true nor false"),
    "a text without end": (of_verdict(sample="x" * (LONGEST_TEXT + 1)), "more than 512 characters"),
    "a name without end": (of_verdict(check="x" * (LONGEST_NAME + 1)), "more than 128 characters"),
    "a sequence for terminals": (of_verdict(sample="\x1b[2J"), "cannot be printed"),
    "text that runs backwards": (of_verdict(sample="\u202etxt.exe"), "cannot be printed"),
    "a line more": (of_verdict(sample="fine\nnode-2 failed"), "cannot be printed"),
    "half a character": (of_verdict(sample="\ud800"), "cannot be printed"),
    "no check": (of_verdict(check=""), "an id and a check"),
    "the node of another": (of_verdict(node="node-2"), "'node', which is not known"),
    "a check twice": (lambda document: document["verdicts"].append(document["verdicts"][0]), "two verdicts"),
    "run and not run": (of_document(not_run=[{"check": "disk_used", "why": ""}]), "and was not run"),
}


@pytest.mark.parametrize(("change", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_document_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(DocumentError, match=reason):
        decode(changed(change), host="node-1")


BYTES = {
    "no JSON": (b"hello", "it is not JSON"),
    "nothing": (b"", "it is not JSON"),
    "not UTF-8": (b'{"host": "\xff\xfe"}', "it is not JSON"),
    "a list": (b"[]", "the document is not an object"),
    "too large": (b" " * (MOST_BYTES + 1), "more than 262,144 bytes"),
    "nested without end": (b"[" * 200_000, "nested too deeply"),
    "objects nested without end": (b'{"a":' * 50_000, "nested too deeply"),
    "no number": (encode(DOCUMENT).replace(b"100.0", b"NaN"), "NaN is not a number"),
    "infinity": (encode(DOCUMENT).replace(b"100.0", b"-Infinity"), "Infinity is not a number"),
    "a number that overflows": (encode(DOCUMENT).replace(b"100.0", b"1e999"), "not a number from 0"),
    "a number of many digits": (encode(DOCUMENT).replace(b"100.0", b"1" * 10_000), "not JSON|not a number"),
    "a field twice": (encode(DOCUMENT).replace(b'"host"', b'"host": "other", "host"'), "twice"),
}


@pytest.mark.parametrize(("data", "reason"), BYTES.values(), ids=BYTES)
def test_hostile_bytes_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        decode(data, host="node-1")


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(sorted(to_json(DOCUMENT))), _JSON)
def test_any_value_of_a_field_is_read_or_refused(name: str, value: Any) -> None:
    document = {**to_json(DOCUMENT), name: value}
    try:
        decode(json.dumps(document).encode())
    except DocumentError as error:
        assert str(error)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(DocumentError):
        decode(data)
