"""Files between the control plane and the nodes of a cluster, which share no disk that both can write.

There: code, base model and data lie in the folder that the cluster's workers see, hard links where the file
system allows. Back: what the recipes keep for whoever watches is read by the login node and laid into the
job's folder here, where all else of the brick looks for it. Members of the cluster can write those files too,
so only known names are taken, and only plain files.
"""

import io
import os
import re
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Protocol

from neocloud.services.slurm.resources import ClusterUnreachable, CommandResult

CHUNK_BYTES = 16 * 1024**2
"""Piece of a result that is read at once, in bytes."""
WATCHED_FILE_BYTES = 8 * 1024**2
"""Largest file that is read back while a job runs; a larger one stays as it was read last."""
READ_BACK_BYTES = 64 * 1024**2
"""Most bytes of all watched files together."""
_SAID_BYTES = 64 * 1024
"""Room for what a command says on stderr."""
_READ_BACK = """
cd "$1" || exit 2
shift
find . \\( -type d -o -type f -size -"$1"c \\) -print0 |
    { shift; exec tar --create --file=- --null --no-recursion "$@" --files-from=-; }
"""
_WATCHED = re.compile(
    r"(events\.jsonl|log\.txt|outcome\.json|metrics\.csv|report\.json|finetune/metrics\.jsonl)"
)
_CHECKPOINT = re.compile(r"finetune/checkpoint-[0-9]+")
_RESULT = re.compile(r"(?P<size>[0-9]+) (?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
_LARGE = ("./finetune/*/*", "./*_file.jsonl", "./chats*", "./merged", "./result", ".*.partial")


class Run(Protocol):
    """Runs a command on the login node."""

    async def __call__(self, command: list[str], /, *, max_output_bytes: int = ...) -> CommandResult: ...


def lay(shown: Path, code: Path, model: Path, work: Path, attempt: int) -> None:
    """May be repeated. Raises OSError."""
    shown.mkdir(parents=True, exist_ok=True)
    _lay_folder(code, shown / "code")
    _lay_folder(model, shown / "model")
    for file in (*work.glob("*_file.jsonl"), work / "job.json"):
        name = f"job-{attempt}.json" if file.name == "job.json" else file.name
        if not (shown / name).exists():
            _copy(file, shown / f".{name}")
            (shown / f".{name}").replace(shown / name)


async def read_back(run: Run, there: PurePosixPath, work: Path) -> None:
    """What is watched of a job, as it is now; nothing while there is no such folder."""
    excluded = [f"--exclude={pattern}" for pattern in _LARGE]
    command = ["/bin/sh", "-c", _READ_BACK, "read-back", str(there), str(WATCHED_FILE_BYTES + 1), *excluded]
    found = await run(command, max_output_bytes=READ_BACK_BYTES)
    if found.exit_code > 1:  # 1: a file changed meanwhile
        return
    try:
        _take(found.stdout, work)
    except tarfile.TarError as error:
        raise ClusterUnreachable(f"what the login node sent is broken: {error}") from error


async def fetch_result(run: Run, there: PurePosixPath, work: Path) -> None:
    """The folder `result`, piece by piece: it may be large. Whole or not at all."""
    target, partial = work / "result", work / ".result.partial"
    if target.exists():
        return
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    source = there / "result"
    listing = await run(["find", str(source), "-maxdepth", "1", "-type", "f", "-printf", r"%s %f\n"])
    if listing.exit_code:
        raise ClusterUnreachable(f"{source} cannot be listed: {listing.stderr.decode(errors='replace')}")
    for line in listing.stdout.decode(errors="replace").splitlines():
        if found := _RESULT.fullmatch(line):
            await _fetch(run, source / found["name"], partial / found["name"], int(found["size"]))
    partial.rename(target)


async def _fetch(run: Run, source: PurePosixPath, target: Path, size: int) -> None:
    with target.open("wb") as file:
        while file.tell() < size:
            place = ["iflag=skip_bytes,count_bytes", f"skip={file.tell()}", f"count={CHUNK_BYTES}"]
            command = ["dd", f"if={source}", f"bs={CHUNK_BYTES}", "status=none", *place]
            piece = await run(command, max_output_bytes=CHUNK_BYTES + _SAID_BYTES)
            if piece.exit_code or not piece.stdout:
                why = piece.stderr.decode(errors="replace").strip()
                raise ClusterUnreachable(f"{source} cannot be read: {why or 'it became shorter'}")
            file.write(piece.stdout)


def _take(archive: bytes, work: Path) -> None:
    checkpoints = set()
    (work / "finetune").mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if member.isfile() and _WATCHED.fullmatch(name) and (content := tar.extractfile(member)):
                partial = work / ".read-back.partial"
                partial.write_bytes(content.read())
                partial.replace(work / name)
            elif member.isdir() and _CHECKPOINT.fullmatch(name):
                checkpoints.add(name)
                (work / name).mkdir(exist_ok=True)
                os.utime(work / name, (member.mtime, member.mtime))
    for gone in work.glob("finetune/checkpoint-[0-9]*"):
        if str(gone.relative_to(work)) not in checkpoints:
            gone.rmdir()


def _lay_folder(source: Path, target: Path) -> None:
    """Files of the folder itself; nothing that is run or loaded lies below it."""
    if target.exists():
        return
    partial = target.with_name(f".{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for file in source.iterdir():
        if file.is_file():
            _copy(file.resolve(), partial / file.name)
    partial.rename(target)


def _copy(source: Path, target: Path) -> None:
    """Without a second copy of the bytes where that can be."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
