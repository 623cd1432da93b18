"""`neo storage backup` and `neo storage restore`: the objects of this machine's cloud, in a folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.machine.home import Home, no_cloud_in
from neocloud.cli.output import Format, JsonObject, OutputOption, counted, fields_table, say, show, size_text
from neocloud.cli.progress import stage
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.target import HomeOption, home_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError

KEEP = 7


def backup(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of the backup, on another disk.", metavar="FOLDER")],
    home: HomeOption = None,
    keep: Annotated[int, typer.Option(min=1, max=1000, help="Snapshots to keep, newest first.")] = KEEP,
    output: OutputOption = Format.TABLE,
) -> None:
    """Back up all objects and images of the cloud on this machine, while it runs: for its operators.

    The first backup copies everything, later ones what is new; snapshots share what they have in common.
    Bodies stay encrypted. The key is in the backup of the state, so make one with neo backup, too. Names,
    sizes and metadata of the objects are not encrypted. Ctrl-C and a full disk leave the earlier snapshots as
    they are. Metadata in PostgreSQL are dumped with its pg_dump, which has to be installed.

    Examples:

      neo storage backup /mnt/backups/objects
      neo storage backup /mnt/backups/objects --keep 30
    """
    target = str(folder.absolute())
    done = _run(
        _place(context, home), "Back up the objects", "backup", "--folder", target, "--keep", str(keep)
    )
    show(
        output,
        {"folder": target, **done},
        fields_table(
            [
                ("Snapshot", done["snapshot"]),
                (
                    "Copied",
                    f"{done['copied']:,} of {counted(done['blobs'], 'blob')}, {_size(done['copied_bytes'])}",
                ),
                ("Removed", counted(done["removed"], "blob")),
                ("Snapshots", f"{len(done['snapshots'])}, from {done['snapshots'][0]} on"),
            ]
        ),
    )
    if done["elsewhere"]:
        say(f"The bodies are in {done['elsewhere']} and were not copied: protect them there.")


def restore(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="Folder that `neo storage backup` has written.", metavar="FOLDER")
    ],
    home: HomeOption = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="TIME", help="Snapshot to restore. Default: the newest.")
    ] = None,
    object_metadata: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the address of the database, for metadata in PostgreSQL. Default: the file that"
            " the cloud was started with.",
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Restore objects and images into a cloud that has none and is stopped: for its operators.

    Restore the state first, with neo restore: it brings the buckets and the key of the objects. Nothing is
    ever restored over objects. A restore that was stopped can be repeated. Metadata of PostgreSQL are
    restored into a database without objects.

    Examples:

      neo restore /mnt/backups/cloud.age --key-file /root/backup.key
      neo storage restore /mnt/backups/objects
      neo up
    """
    target, place = str(folder.absolute()), _place(context, home)
    chosen = () if snapshot is None else ("--snapshot", snapshot)
    if address := str(object_metadata.absolute()) if object_metadata else _address_file(place):
        chosen = (*chosen, "--metadata", address)
    done = _run(place, "Restore the objects", "restore", "--folder", target, *chosen)
    show(
        output,
        {"folder": target, **done},
        fields_table(
            [
                ("Snapshot", done["snapshot"]),
                ("Objects", counted(done["versions"], "version")),
                ("Bodies", f"{counted(done['blobs'], 'blob')}, {_size(done['bytes'])}"),
            ]
        ),
    )
    say("Objects that were written after the snapshot are not there.")
    if output is Format.TABLE:
        echo("Start the cloud with `neo up`; `neo storage verify` reads all of it.")


def _place(context: typer.Context, home: Path | None) -> Path:
    place = Home(home_of(context, home))
    if not place.is_ours():
        raise no_cloud_in(place.path)
    return place.path


def _address_file(place: Path) -> str:
    """Return the file with the address of the metadata that the cloud was started with; "" without one."""
    return Home(place).settings().object_metadata


def _size(number: int) -> str:
    return size_text(number) or "0 KiB"


def _run(home: Path, title: str, verb: str, *options: str) -> JsonObject:
    """Return what the process that copies says at the end. Raises ClientError."""
    command = [sys.executable, "-m", "neocloud.object_gateway.backups", verb, "--home", str(home), *options]
    ended: JsonObject = {}
    pipe = subprocess.PIPE
    with stopped_by_signals(), stage(title) as show_detail:
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd="/") as process:
            assert process.stdout is not None and process.stderr is not None
            try:
                for text in process.stdout:
                    line: JsonObject = json.loads(text)
                    if "progress" in line:
                        show_detail(line["progress"])
                    else:
                        ended = line
                said = process.stderr.read().strip().splitlines()
            finally:
                process.terminate()  # has no effect on one that has ended
        if "done" not in ended:
            why = ended.get("error") or (said[-1] if said else "The process was ended")
            raise ClientError("FAILED_PRECONDITION", why, ended.get("next_step", ""))
    return ended["done"]
