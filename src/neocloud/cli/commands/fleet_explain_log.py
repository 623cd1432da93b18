"""`neo fleet explain log`: the faults in a kernel log, and what is done about each. It needs no cloud.

It adds itself to the commands of `fleet_explain`, whose `app` is the whole group then.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from neocloud.cli.commands.fleet_explain import (
    DriverOption,
    GpuOption,
    app,
    gpu_and_driver,
    policy_document,
    rule_document,
)
from neocloud.cli.output import Format, JsonObject, OutputOption, counted, say, show, table, warn
from neocloud.client.errors import ClientError
from neocloud.fleet.kernel_log import Record, lines_of, record_of
from neocloud.fleet.kernel_log_summary import Fault, summary_of
from neocloud.fleet.policy import Kind, Severity
from neocloud.fleet.policy_file import default_policy

__all__ = ["app", "log"]
STDIN = "-"


@app.command()
def log(
    file: Annotated[
        str, typer.Argument(help="Kernel log of a node; - is standard input.", metavar="FILE")
    ] = STDIN,
    gpu: GpuOption = "",
    driver: DriverOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the faults in a kernel log, the gravest first, with what is done about each. Nothing is changed.

    Reads what dmesg, journalctl and /dev/kmsg print. Of a journal, only lines of the kernel count.

    Examples:

      journalctl -k -b | neo fleet explain log
      neo fleet explain log dmesg.txt --gpu h100
    """
    policy = default_policy()
    gpu_name, version = gpu_and_driver(policy, gpu, driver)
    tally = _Tally()
    with _opened(file) as stream:
        summary = summary_of(tally.records(lines_of(stream)), policy, gpu=gpu_name, driver=version)
    rows = [
        (
            _title(fault),
            fault.device,
            len(fault.times) or fault.lines,
            fault.severity,
            fault.action,
            _what(fault),
        )
        for fault in summary.faults
    ]
    document = {
        "policy": policy_document(policy),
        "kernel_lines": summary.records,
        "other_lines": tally.others,
        "faults": [_document(fault) for fault in summary.faults],
    }
    headers = ["FAULT", "DEVICE", "TIMES", "SEVERITY", "ACTION", "WHAT"]
    show(output, document, table(headers, rows, right=["TIMES"]), empty="No fault that the policy knows of.")
    if summary.not_told_apart:
        warn(f"{counted(summary.not_told_apart, 'more line')} report further faults, which are not shown.")
    if not summary.records:
        warn("There is no line of the kernel in it. Pipe in what dmesg or journalctl -k print.")
    if output is Format.TABLE:
        _say_rest(summary.records, tally.others, summary.faults)


class _Tally:
    """Counts the lines that are not the kernel's."""

    others = 0

    def records(self, lines: Iterable[str]) -> Iterator[Record]:
        for line in lines:
            record = record_of(line, is_bare_allowed=True)
            if record is not None:
                yield record
            elif line.strip():
                self.others += 1


def _opened(file: str) -> BinaryIO:
    if file == STDIN:
        if sys.stdin.isatty():
            say("Reading a kernel log from the terminal; Ctrl-D ends it.")
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise ClientError("NOT_FOUND", f"{file} cannot be read: {reason}") from None


def _say_rest(records: int, others: int, faults: Iterable[Fault]) -> None:
    rest = f"; {counted(others, 'other line')} did not count" if others else ""
    say(f"\nRead {counted(records, 'line')} of the kernel{rest}. More of a fault: neo fleet explain xid CODE")
    if any(fault.severity is Severity.UNKNOWN for fault in faults):
        say(
            "Unknown faults are not healthy: look them up, or have a person look at the node when it is idle."
        )


def _title(fault: Fault) -> str:
    return fault.code if fault.kind is Kind.KERNEL else f"{fault.kind.upper()} {fault.code}"


def _what(fault: Fault) -> str:
    names = sorted({rule.name for rule in fault.verdict.rules})
    return "; ".join([*(names or [fault.verdict.unknown]), *fault.because])


def _document(fault: Fault) -> JsonObject:
    return {
        "kind": fault.kind.value,
        "code": fault.code,
        "device": fault.device,
        "detail": fault.detail,
        "part": fault.part,
        "is_known": not fault.verdict.unknown,
        "severity": fault.severity.value,
        "action": fault.action.value,
        "because": fault.because,
        "lines": fault.lines,
        "times_s": fault.times,
        "text": fault.text,
        "rules": [rule_document(rule) for rule in fault.verdict.rules],
    }
