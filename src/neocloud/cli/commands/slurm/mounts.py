"""What `neo slurm cluster create` mounts beside the shared root: filesystems, and folders of each worker."""

from typing import Annotated

import typer

from neocloud.cli.output import JsonObject

FilesystemOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ID:PATH", help="Filesystem to mount for jobs, e.g. at /mnt/data; repeatable."),
]
SubmountOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=GIB[:memory]",
        help="Folder that each worker has for itself, on its disk or in memory, e.g. /scratch=100 or"
        " /fast=2:memory; repeatable.",
    ),
]


def mounts_of(filesystem: FilesystemOption = None, submount: SubmountOption = None) -> JsonObject:
    """Return the fields of the spec."""
    return {
        "filesystems": [_mounted(text) for text in filesystem or ()],
        "submounts": [_submount(text) for text in submount or ()],
    }


def _mounted(text: str) -> dict[str, str]:
    identifier, colon, path = text.partition(":")
    if not (identifier and colon and path):
        raise typer.BadParameter(
            f'"{text}" is not ID:PATH; give e.g. computefilesystem-e00abc:/mnt/data'
            " (`neo compute filesystem list` lists the ids)",
            param_hint="--filesystem",
        )
    return {"filesystem_id": identifier, "mount_path": path}


def _submount(text: str) -> JsonObject:
    path, equals, rest = text.partition("=")
    size, colon, medium = rest.partition(":")
    if not (path and equals and size.isascii() and size.isdigit()) or (colon and medium != "memory"):
        raise typer.BadParameter(
            f'"{text}" is not PATH=GIB or PATH=GIB:memory; give e.g. /scratch=100 or /fast=2:memory',
            param_hint="--submount",
        )
    return {"mount_path": path, "size_gibibytes": int(size), "in_memory": bool(medium)}
