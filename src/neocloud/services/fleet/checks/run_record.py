"""One run of active checks as a record of the log beside that of its pool."""

import json
from dataclasses import dataclass

from neocloud.core.store.event_log import LogEvent
from neocloud.fleet.active.report import Report, decode
from neocloud.fleet.active.report import encode as encode_report
from neocloud.fleet.agent.document import DocumentError

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """One run of checks on a node: its report, or why there is none."""

    node: str
    boot: str
    at: float
    report: Report | None
    problem: str = ""
    partner: str = ""
    """The other worker of a pair."""
    partner_boot: str = ""
    hardware: str = ""
    """Platform and preset; "" in records of earlier releases."""


def log_of(pool_id: str) -> str:
    return f"{pool_id}/checks"


def encode_run(run: Run) -> bytes:
    report = json.loads(encode_report(run.report)) if run.report else None
    content = {"format": FORMAT, "boot": run.boot, "problem": run.problem, "report": report}
    content |= {"partner": run.partner, "partner_boot": run.partner_boot} if run.partner else {}
    content |= {"hardware": run.hardware} if run.hardware else {}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_run(event: LogEvent) -> Run:
    """Return a run of the log. One that cannot be read counts as a run without a result."""
    at = event.at.timestamp()
    try:
        given = json.loads(event.body)
        if given["format"] != FORMAT:
            return Run(event.subject, "", at, None, "it was written by another release")
        report = given["report"]
        read = decode(json.dumps(report).encode(), at=at) if report else None
        more = {name: str(given.get(name, "")) for name in ("partner", "partner_boot", "hardware")}
        return Run(event.subject, given["boot"], at, read, given["problem"], **more)
    except (ValueError, KeyError, TypeError, DocumentError) as error:
        return Run(event.subject, "", at, None, f"its record cannot be read: {error}"[:200])
