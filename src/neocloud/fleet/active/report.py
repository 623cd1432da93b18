"""The report of one run of a suite: the document of the agent's form, and the values behind its verdicts.

The reader is for what a node sent, which may be anything; it bounds everything and refuses with the reason.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core.json_values import is_list, is_number, is_object
from neocloud.fleet.active.judge import CheckMeasurement
from neocloud.fleet.agent.document import (
    LONGEST_NAME,
    MOST_BYTES,
    Document,
    DocumentError,
    from_json,
    to_json,
)

FORMAT = 1
MOST_REPORT_BYTES = 2 * MOST_BYTES
MOST_MEASURED = 512
LONGEST_NOTE = 200
DAY_S = 86400.0
MOST_VALUE = 1e18


@dataclass(frozen=True)
class Report:
    document: Document
    measured: Sequence[CheckMeasurement] = ()
    seconds: float = 0.0
    preempted: str = ""
    """Why the suite was ended before its end; "" where it was not."""
    preempted_after_s: float = 0.0
    """Seconds from the moment in which the reason was seen to the end of all load."""


def encode(report: Report) -> bytes:
    content = {
        "format": FORMAT,
        "document": to_json(report.document),
        "measured": [vars(each) for each in report.measured[:MOST_MEASURED]],
        "seconds": report.seconds,
        "preempted": report.preempted,
        "preempted_after_s": report.preempted_after_s,
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()


def decode(data: bytes, *, host: str | None = None, at: float | None = None) -> Report:
    """Return the report that a node sent. Raises DocumentError. `host` and `at`: see `document.decode`."""
    if len(data) > MOST_REPORT_BYTES:
        raise DocumentError(f"it has more than {MOST_REPORT_BYTES:,} bytes")
    try:
        given = json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(f"it is not JSON: {str(error)[:200]}") from None
    names = {"format", "document", "measured", "seconds", "preempted", "preempted_after_s"}
    if not is_object(given) or set(given) != names:
        raise DocumentError(f"it does not have the fields {', '.join(sorted(names))}")
    if given["format"] != FORMAT:
        raise DocumentError(f"its format is not {FORMAT}, which this release reads")
    rows = given["measured"]
    if not is_list(rows) or len(rows) > MOST_MEASURED:
        raise DocumentError(f"measured is not a list of at most {MOST_MEASURED}")
    return Report(
        document=from_json(given["document"], host=host, at=at),
        measured=[_measured(each) for each in rows],
        seconds=_seconds(given["seconds"]),
        preempted=_text(given["preempted"], LONGEST_NOTE),
        preempted_after_s=_seconds(given["preempted_after_s"]),
    )


def _measured(given: object) -> CheckMeasurement:
    if not is_object(given) or set(given) != {"check", "device", "value", "unit", "note"}:
        raise DocumentError("a measured value has other fields than check, device, value, unit, note")
    value = given["value"]
    if not is_number(value) or not -MOST_VALUE <= value <= MOST_VALUE:  # so no NaN, either
        raise DocumentError("a measured value is not a number")
    return CheckMeasurement(
        _text(given["check"], LONGEST_NAME),
        _text(given["device"], LONGEST_NAME),
        float(value),
        _text(given["unit"], LONGEST_NAME),
        _text(given["note"], LONGEST_NOTE),
    )


def _text(value: object, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise DocumentError(f"a text has characters that cannot be printed, or more than {longest}")
    return value


def _seconds(value: object) -> float:
    if not is_number(value) or not 0 <= value <= DAY_S:
        raise DocumentError("a duration is not a number of seconds of a day")
    return float(value)


def _refuse(name: str) -> float:
    raise DocumentError(f"{name} is not a number here")
