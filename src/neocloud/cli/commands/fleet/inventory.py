"""`neo fleet inventory`: the parts of this host, and what changed since an earlier list. Needs no cloud."""

import json
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.commands.fleet.check import PROGRAM, RootOption, program_output
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, counted, say, show, table
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.fleet.agent.document import MOST_BYTES, DocumentError
from neocloud.fleet.agent.hardware import Hardware, decode, differences, encode, shared_serials

app = command_group()


@app.command()
def inventory(
    root: RootOption = Path("/"),
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="An earlier --output json, of this host or another; repeat it.", metavar="FILE"),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the parts of this host with serial numbers and firmware. Needs no cloud.

    With --compare: what changed since an earlier list of this host, and serial numbers that another host says
    it has as well. The exit code is 1 if there is either. The serial number of the host is for root alone.

    Examples:

      neo fleet inventory
      neo fleet inventory --output json > node-1.json
      neo fleet inventory --compare node-1.json --compare node-2.json
    """
    now = _decoded(program_output([*PROGRAM, "inventory", "--root", str(root)], MOST_BYTES), "this host")
    if compare:
        _compare(now, [_decoded(_bytes(path), str(path)) for path in compare], output)
        return
    rows = [
        (each.kind, each.slot, each.model or "-", each.serial or "-", each.firmware or "-")
        for each in now.parts
    ]
    show(output, json.loads(encode(now)), table(["KIND", "SLOT", "MODEL", "SERIAL", "FIRMWARE"], rows))
    if output is Format.TABLE:
        for each in now.not_run:
            say(f"Not read: {each.check}. {each.why}")
        if now.simulated:
            say(f"Simulated: {now.simulated}. These parts say nothing about real hardware.")


def _compare(now: Hardware, others: list[Hardware], output: Format) -> None:
    """Raises typer.Exit where something differs."""
    changed = [
        (each.part.kind, each.part.slot, each.part.model or "-", each.part.serial or "-", each.what)
        for other in others
        if other.host == now.host
        for each in differences(other, now)
    ]
    foreign = [each for each in others if each.host != now.host]
    twice = [
        (kind, serial, ", ".join(hosts)) for (kind, serial), hosts in shared_serials([now, *foreign]).items()
    ]
    content = {
        "changed": [
            dict(zip(("kind", "slot", "model", "serial", "what"), row, strict=True)) for row in changed
        ],
        "in_two_hosts": [dict(zip(("kind", "serial", "hosts"), row, strict=True)) for row in twice],
    }
    show(output, content, table(["KIND", "SLOT", "MODEL", "SERIAL", "CHANGE"], changed))
    if output is Format.TABLE:
        if twice:
            echo()
            show(output, None, table(["KIND", "SERIAL", "HOSTS"], twice))
        say(f"{counted(len(changed), 'change')}; {counted(len(twice), 'serial number')} in two hosts.")
    if changed or twice:
        raise typer.Exit(1)


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "it failed").lower()
        raise ClientError("INVALID_ARGUMENT", f"{path} cannot be read: {reason}") from None


def _decoded(data: bytes, name: str) -> Hardware:
    try:
        return decode(data)
    except DocumentError as error:
        raise ClientError("INVALID_ARGUMENT", f"The inventory of {name} cannot be used: {error}") from None
