"""`neo storage verify`: read all objects of this machine's cloud, and report what is damaged."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from neocloud.cli.machine.home import Home, no_cloud_in
from neocloud.cli.output import Format, JsonObject, OutputOption, counted, say, show, size_text, table
from neocloud.cli.progress import stage
from neocloud.cli.target import HomeOption, home_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError

MOST_SHOWN = 1000
"""Problems that are held to be shown; all are counted."""


def verify(
    context: typer.Context,
    home: HomeOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Verify all objects of the cloud on this machine: for its operators. Nothing is changed.

    Reads every blob, so a changed byte is found; looks for missing and unused ones; and compares the counters
    of each bucket with what is there. The cloud may run meanwhile. The object gateway does the same every
    night, see neo status. The exit code is 1 where something is wrong.

    Examples:

      neo storage verify
      neo storage verify -o json
    """
    place = Home(home_of(context, home))
    if not place.is_ours():
        raise no_cloud_in(place.path)
    problems: list[JsonObject] = []
    summary: JsonObject = {}
    with stage("Verify the objects") as show_detail:
        for line in _lines(place.path):
            if "problems" in line:
                summary = line
            elif len(problems) < MOST_SHOWN:
                problems.append(line)
                show_detail(counted(len(problems), "problem"))
    document = {**summary, "problems": problems, "problem_count": summary["problems"]}
    rows = [(each["bucket"], each["key"], each["version_id"], each["what"]) for each in problems]
    if output is not Format.TABLE or problems:
        show(output, document, table(["BUCKET", "KEY", "VERSION", "PROBLEM"], rows))
    if len(problems) < summary["problems"]:
        say(f"Shown are the first {MOST_SHOWN:,}.")
    if output is Format.TABLE:
        size = size_text(summary["bytes"]) or "0 KiB"
        found = counted(summary["problems"], "problem") if summary["problems"] else "all are whole"
        echo(f"Read {counted(summary['versions'], 'version')} ({size}): {found}.")
    if summary["problems"]:
        raise typer.Exit(1)


def _lines(home: Path) -> Iterator[JsonObject]:
    """Yield what a process that reads the store finds. Raises ClientError when it does not come to an end."""
    command = [sys.executable, "-m", "neocloud.object_gateway.verify", "--home", str(home)]
    is_whole = False
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd="/") as process:
        assert process.stdout is not None and process.stderr is not None
        for text in process.stdout:
            line = json.loads(text)
            is_whole = "problems" in line
            yield line
        said = process.stderr.read().strip().splitlines()
    if not is_whole:
        raise ClientError(
            "FAILED_PRECONDITION", f"The objects cannot be verified: {said[-1] if said else 'it was ended'}"
        )
