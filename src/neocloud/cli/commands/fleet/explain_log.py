"""`neo fleet explain log`: the faults in a kernel log, and what is done about each. It needs no cloud.

It adds itself to the commands of `fleet_explain`, whose `app` is the whole group then.
"""

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Annotated

import typer

from neocloud.cli.commands.fleet.explain import (
    DriverOption,
    GpuOption,
    app,
    gpu_and_driver,
    policy_document,
    rule_document,
)
from neocloud.cli.output import Format, JsonObject, OutputOption, counted, say, show, table, warn
from neocloud.client.errors import ClientError
from neocloud.fleet.policy.kernel_log import lines_of
from neocloud.fleet.policy.kernel_log_reader import DEVICE, available_lines
from neocloud.fleet.policy.kernel_log_summary import Fault, Summary, summary_of
from neocloud.fleet.policy.pasted_kernel_log import PastedLog
from neocloud.fleet.policy.policy import CodeKind, Severity
from neocloud.fleet.policy.policy_file import default_policy

__all__ = ["app", "log"]
STDIN = "-"
MOST_OF_DEVICE = 1_000_000
"""Records of /dev/kmsg, whose buffer holds far fewer."""


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

    Reads what dmesg, journalctl, syslog and /dev/kmsg print, also through kubectl, docker or grep. In a
    journal, only lines of the kernel count. A line that names a fault and is not understood is shown.

    Examples:

      journalctl -k -b | neo fleet explain log
      neo fleet explain log dmesg.txt --gpu h100
      sudo neo fleet explain log /dev/kmsg
    """
    policy = default_policy()
    gpu_name, version = gpu_and_driver(policy, gpu, driver)
    tally = PastedLog()
    with _lines(file) as lines:
        summary = summary_of(tally.records(lines), policy, gpu=gpu_name, driver=version)
    rows = (
        (
            *(_title(fault), fault.device, len(fault.times) or fault.lines),
            *(fault.severity, fault.action, _what(fault)),
        )
        for fault in summary.faults
    )
    document = {
        "policy": policy_document(policy),
        "kernel_lines": summary.records,
        "other_lines": tally.others,
        "lost_records": tally.lost,
        "not_understood": tally.not_understood,
        "not_understood_lines": tally.shown,
        "faults": [_document(fault) for fault in summary.faults],
    }
    headers = ["FAULT", "DEVICE", "TIMES", "SEVERITY", "ACTION", "WHAT"]
    empty = (
        "Nothing was read that is a fault." if tally.not_understood else "No fault that the policy knows of."
    )
    show(output, document, table(headers, rows, right=["TIMES"]), empty=empty)
    _warn_of_gaps(tally, summary)
    if output is Format.TABLE:
        _say_rest(summary.records, tally.others, summary.faults)


def _warn_of_gaps(tally: PastedLog, summary: Summary) -> None:
    """Warn of what may hold faults that are not shown."""
    if tally.not_understood:
        warn(
            f"{counted(tally.not_understood, 'line')} with the words for a fault of a GPU could not be "
            "understood, so there may be a fault that is not shown. Pipe in what dmesg prints. "
            f"The first: {tally.shown[0]}"
        )
    if summary.not_told_apart:
        warn(f"{counted(summary.not_told_apart, 'more line')} report further faults, which are not shown.")
    if not summary.records:
        warn("There is no line of the kernel in it. Pipe in what dmesg or journalctl -k print.")
    if tally.lost:
        warn(f"{counted(tally.lost, 'record')} are missing, and may hold more faults.")


@contextmanager
def _lines(file: str) -> Generator[Iterable[str]]:
    """Open a kernel log, and give its lines. Raises ClientError."""
    if file == STDIN:
        if sys.stdin.isatty():
            say("Reading a kernel log from the terminal; Ctrl-D ends it.")
        yield lines_of(sys.stdin.buffer)
        return
    is_device = os.path.exists(file) and DEVICE.exists() and os.path.samefile(file, DEVICE)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if is_device else 0))
        with os.fdopen(descriptor, "rb") as stream:
            yield available_lines(descriptor, most=MOST_OF_DEVICE) if is_device else lines_of(stream)
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
    return fault.code if fault.kind is CodeKind.KERNEL else f"{fault.kind.upper()} {fault.code}"


def _what(fault: Fault) -> str:
    names = sorted({rule.name for rule in fault.response.rules})
    return "; ".join([*(names or [fault.response.unknown]), *fault.because, *fault.registers[:4]])


def _document(fault: Fault) -> JsonObject:
    return {
        "kind": fault.kind.value,
        "code": fault.code,
        "device": fault.device,
        "detail": fault.detail,
        "part": fault.part,
        "is_known": not fault.response.unknown,
        "severity": fault.severity.value,
        "action": fault.action.value,
        "because": fault.because,
        "registers": fault.registers,
        "lines": fault.lines,
        "times_s": fault.times,
        "text": fault.text,
        "rules": [rule_document(rule) for rule in fault.response.rules],
    }
