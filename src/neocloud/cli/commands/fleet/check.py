"""`neo fleet check` and `neo fleet agent`: the checks of this host. They need no cloud.

The agent is a program of its own, since its probes are started by fork, which a process with gRPC must not
do. Its output is read like a report of any host.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, counted, say, show, table
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.fleet.active import report
from neocloud.fleet.agent.document import MOST_BYTES, Document, DocumentError, decode, to_json
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.fleet.policy.actions import Suite

PROGRAM = (sys.executable, "-I", "-m", "neocloud.fleet.agent")
ACTIVE_PROGRAM = (sys.executable, "-I", "-m", "neocloud.fleet.active")
ACTIVE_FOLDER = Path("/var/tmp")  # nosec B108 - the program makes a new folder of its own there
AGAIN = "Run them when it has ended, or beside it with --beside-jobs"
GRACE_SECONDS = 10
"""For the program to end once it has answered. Every probe has a deadline of its own."""
ORDER: Mapping[Status, int] = {Status.FAIL: 0, Status.UNKNOWN: 1, Status.PASS: 2}
OF_PROBES = "probe."
app = command_group()
agent_app = command_group()

ExpectOption = Annotated[
    Path | None,
    typer.Option(help="File with the expected parts of the host, such as its GPUs.", metavar="FILE"),
]
RootOption = Annotated[
    Path, typer.Option(help="Read this folder, captured from a host, instead of this host.", metavar="DIR")
]


@app.command()
def check(
    expect: ExpectOption = None,
    seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds between two readings of counters; 0 for one.")
    ] = 1.0,
    root: RootOption = Path("/"),
    active: Annotated[
        Suite | None,
        typer.Option(help="Put load on this host instead, and compare the measurements: quick or full."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where --active writes files, which it removes.", metavar="DIR")
    ] = ACTIVE_FOLDER,
    beside_jobs: Annotated[
        bool, typer.Option("--beside-jobs", help="Run --active also while a job of Slurm runs here.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Check this host once: GPUs, links, memory, disks, mounts, kernel log, clock. Needs no cloud.

    The exit code is 1 if a check fails or gives no answer. A check that does not apply here, or has nothing
    to be compared with, was not run: that is neither a pass nor a failure. The kernel log is for root alone.

    With --active the checks put load on processors, memory, disk and GPUs: for seconds, or minutes with full.
    They end at once when a job of Slurm starts here.

    Examples:

      neo fleet check
      neo fleet check --expect host.json --seconds 10
      neo fleet check --output json
      neo fleet check --active quick
    """
    document = _run(expect, seconds, root) if active is None else _run_active(active, folder, beside_jobs)
    verdicts = sorted(document.verdicts, key=lambda each: (ORDER[each.status], each.check))
    shown = [each for each in verdicts if not _is_silent(each)]
    rows = [(each.check, each.status, each.sample, each.threshold, _source(each)) for each in shown]
    show(output, to_json(document), table(["CHECK", "STATUS", "MEASURED", "THRESHOLD", "SOURCE"], rows))
    if output is Format.TABLE:
        _show_rest(document)
    if any(each.status is not Status.PASS for each in verdicts):
        raise typer.Exit(1)


@agent_app.command()
def agent(
    spool: Annotated[Path, typer.Option(help="Folder for the records; created if needed.", metavar="DIR")],
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between checks.")] = 10.0,
    spool_mib: Annotated[int, typer.Option(min=1, max=1024, help="Most that the records may take.")] = 8,
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            help="Also write metrics in Prometheus's text format to this file, after each interval: for the"
            " textfile collector of a node exporter.",
            metavar="FILE",
        ),
    ] = None,
    expect: ExpectOption = None,
) -> None:
    """Check this host in intervals, and write what changes to a folder, until it is stopped. Needs no cloud.

    Each line of records.jsonl is a JSON object: changes of checks, a heartbeat each minute, or that the
    folder is full. Write the number `n` of the last line that you forwarded into the file `acknowledged`:
    lines up to it are dropped then.

    Examples:

      neo fleet agent --spool /var/lib/neocloud-agent
      neo fleet agent --spool /var/lib/neocloud-agent --metrics-file /var/lib/node-exporter/neocloud.prom
    """
    command = [*PROGRAM, "watch", "--spool", str(spool), "--interval", str(interval)]
    command += ["--spool-bytes", str(spool_mib << 20), *_expect(expect)]
    command += ["--metrics-file", str(metrics_file.absolute())] if metrics_file else []
    os.execv(command[0], command)


def _run_active(suite: Suite, folder: Path, beside_jobs: bool) -> Document:
    command = [*ACTIVE_PROGRAM, "run", "--suite", suite.value, "--folder", str(folder)]
    command += [] if beside_jobs else ["--stop-for-jobs"]
    try:
        found = report.decode(program_output(command, report.MOST_REPORT_BYTES))
    except DocumentError as error:
        raise ClientError("INTERNAL", f"The checks gave no result that can be read: {error}") from None
    if found.preempted:
        raise ClientError("ABORTED", f"The checks were not finished: {found.preempted}", AGAIN)
    return found.document


def _run(expect: Path | None, seconds: float, root: Path) -> Document:
    command = [*PROGRAM, "check", "--seconds", str(seconds), "--root", str(root), *_expect(expect)]
    try:
        return decode(program_output(command, MOST_BYTES))
    except DocumentError as error:
        raise ClientError("INTERNAL", f"The checks gave no result that can be read: {error}") from None


def program_output(command: list[str], most_bytes: int) -> bytes:
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        begun.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))

    with stopped_by_signals():
        try:
            # In another thread: a signal could end this one when the program has begun and is not known yet.
            with ThreadPoolExecutor(1) as starter:
                starter.submit(start).result()
            started = begun[0]
            assert started.stdout is not None
            data = started.stdout.read(most_bytes + 1)
            code = started.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            raise ClientError("UNAVAILABLE", "The checks did not end") from None
        finally:
            for each in begun:
                with each:
                    each.kill()  # where a signal ends this command; its probes end with it
    if code:
        raise typer.Exit(code if code in (1, 2) else 1)
    return data


def _expect(path: Path | None) -> list[str]:
    return ["--expect", str(path)] if path else []


def _is_silent(verdict: Verdict) -> bool:
    """Return whether the verdict says only that a probe answered."""
    return verdict.check.startswith(OF_PROBES) and verdict.status is Status.PASS


def _source(verdict: Verdict) -> str:
    return f"{verdict.source}, {verdict.version}" if verdict.version else verdict.source


def _show_rest(document: Document) -> None:
    if document.not_run:
        echo()
        show(
            Format.TABLE,
            None,
            table(["NOT RUN", "WHY"], [(each.check, each.why) for each in document.not_run]),
        )
    told_of = [each for each in document.verdicts if not _is_silent(each)]
    counts = {status: sum(each.status is status for each in told_of) for status in Status}
    words = {Status.FAIL: "failed", Status.UNKNOWN: "gave no answer", Status.PASS: "passed"}
    told = ", ".join(f"{counts[status]} {words[status]}" for status in ORDER)
    say(f"\n{counted(len(told_of), 'check')}: {told}; {len(document.not_run)} not run.")
    if document.simulated:
        say(f"Simulated: {document.simulated}. These results say nothing about real hardware.")
    if any(each.status is Status.UNKNOWN for each in document.verdicts):
        say("A check without an answer is not healthy. What a fault means: neo fleet explain counter CHECK")
