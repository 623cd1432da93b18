"""Copy model weights into the state folder of a cloud on this machine."""

import os
import shutil
import sys
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from neocloud.cli.output import console, counted, say, size_text
from neocloud.cli.resources.lookup import ProjectClient
from neocloud.client.errors import ClientError

_CHUNK = 8 * 1024**2
_LEFT_OUT = frozenset({".git", ".cache", "__pycache__"})


def copy_in(cloud: ProjectClient, name: str, folder: Path) -> Path:
    """Copy the folder into the project, whole or not at all; the copy is deleted with its model."""
    if not cloud.profile.home:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{folder} cannot be copied to a cloud on another machine",
            "Copy it there, into a folder that its operator has allowed, and name it with --in-place",
        )
    target = Path(cloud.profile.home) / "models" / cloud.project / _file_name(name)
    if target.exists():
        raise ClientError(
            "ALREADY_EXISTS",
            f"{target} already exists, from a model of this name",
            "Choose another name, or delete that model first: `neo model delete`",
        )
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _copy(folder, partial)
        partial.rename(target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{folder} could not be copied to {target}: {error.strerror or error}",
            "Free disk space, run this as the cloud's user, or allow the folder: neo up --model-folder",
        ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def _copy(source: Path, target: Path) -> None:
    inside = [path for path in sorted(source.rglob("*")) if path.is_file()]
    files = [path for path in inside if not _LEFT_OUT & set(path.relative_to(source).parts)]
    total = sum(path.stat().st_size for path in files)
    screen = console(sys.stderr)
    columns = (TextColumn("Copying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    if not screen.is_terminal:
        say(f"Copying {counted(len(files), 'file')}, {size_text(total) or 'empty'}")
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:
        task = progress.add_task("copy", total=total)
        for path in files:
            copied = target / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as reader, copied.open("wb") as writer:
                while chunk := reader.read(_CHUNK):
                    writer.write(chunk)
                    progress.advance(task, len(chunk))
                writer.flush()
                os.fsync(writer.fileno())


def _file_name(name: str) -> str:
    return name.replace("/", "--").replace(":", "-")
