"""Reports of a node are read strictly: its root may send anything."""

import json
from typing import Any

import pytest

from neocloud.fleet.active.judge import CheckMeasurement
from neocloud.fleet.active.report import MOST_MEASURED, MOST_REPORT_BYTES, Report, decode, encode
from neocloud.fleet.agent.document import Document, DocumentError

ROW = {"check": "gpu_gemm", "device": "gpu0", "value": 700.0, "unit": "TFLOP/s", "note": ""}


def given(**changes: Any) -> bytes:
    document = Document("n", "b", 1.0, 2.0)
    return json.dumps(json.loads(encode(Report(document, [CheckMeasurement(**ROW)], 3.0))) | changes).encode()


def test_what_is_encoded_is_read_again() -> None:
    report = decode(given(), host="n", at=9.0)
    assert (
        report.measured == [CheckMeasurement(**ROW)] and report.seconds == 3.0 and report.document.host == "n"
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (MOST_REPORT_BYTES + 1), "more than"),
        (b"[]", "does not have the fields"),
        (given(more=1), "does not have the fields"),
        (given(format=2), "its format"),
        (given(document=[]), "is not an object"),
        (given(measured={}), "not a list"),
        (given(measured=[ROW] * (MOST_MEASURED + 1)), "not a list of at most"),
        (given(measured=[ROW | {"value": "700"}]), "not a number"),
        (given(measured=[ROW | {"value": True}]), "not a number"),
        (given(measured=[ROW | {"value": 1e300}]), "not a number"),
        (given(measured=[ROW | {"value": 10**400}]), "not a number"),
        (given(measured=[ROW | {"check": "a\nb"}]), "cannot be printed"),
        (given(measured=[ROW | {"note": "x" * 201}]), "more than 200"),
        (given(measured=[{**ROW, "more": 1}]), "other fields"),
        (given(measured=["x"]), "other fields"),
        (given(seconds=-1), "duration"),
        (given(seconds=1e9), "duration"),
        (given(preempted=7), "text"),
        (given().replace(b"700.0", b"NaN"), "not a number"),
        (given().replace(b"700.0", b"1e999"), "not a number"),
    ],
)
def test_what_is_no_report_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        decode(data)


def test_a_report_of_another_node_is_refused() -> None:
    with pytest.raises(DocumentError, match="of host 'n'"):
        decode(given(), host="other")
