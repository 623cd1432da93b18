"""Files between the control plane and the nodes of a cluster, which share no disk that both can write.

There: code, base model and data lie in the folder that the cluster's workers see; the model's files are hard
links where the file system cannot share their bytes. Back: what the recipes keep for whoever watches is read
by the login node and laid into the job's folder here, where all else of the service looks for it. Members of
the cluster can write those files too, so only known names are taken, and only plain files.
"""

import io
import os
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted_files import Folder
from neocloud.core.untrusted_trees import stage_file, stage_files
from neocloud.services.inference.public import ModelFolders, check_weights
from neocloud.services.slurm.public import ClusterUnreachable, CommandResult
from neocloud.services.tuning.work_folder import LATEST_SECONDS

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
_CHECKPOINT = re.compile(r"checkpoint-[0-9]+")
_RESULT = re.compile(r"(?P<size>[0-9]+) (?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
_LARGE = ("./finetune/*/*", "./*_file.jsonl", "./chats*", "./merged", "./result", ".*.partial")


class Run(Protocol):
    """Runs a command on the login node."""

    async def __call__(self, command: list[str], /, *, max_output_bytes: int = ...) -> CommandResult: ...


def lay(shown: Path, code: Path, work: Path, attempt: int) -> None:
    """The recipes, the data and what is wanted. May be repeated. Raises OSError."""
    make_folder(shown.parent)
    with Folder.open(shown.parent) as cluster:
        cluster.make(shown.name).close()
    with Folder.open(code) as recipes:
        stage_files(recipes, shown / "code")  # copies: nobody on a cluster has the same file as the cloud
    with Folder.open(work) as source, Folder.open(shown) as target:
        for name in (*(name for name in source.names() if name.endswith("_file.jsonl")), "job.json"):
            laid = f"job-{attempt}.json" if name == "job.json" else name
            if target.state(laid) is None:
                stage_file(source, name, target, laid)


def lay_model(shown: Path, folders: ModelFolders, model: Any) -> None:
    """The weights of a Model, as they were looked at. May be repeated. Raises WeightsGone; OSError."""
    if not (shown / "model").exists():
        with folders.locate_known(model).folder() as weights:
            stage_files(weights, shown / "model", lambda laid: check_weights(laid, model.status), link=True)


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
    with Folder.open(work) as folder:
        if folder.state("result") is not None:
            return
        with folder.staged("result") as target:
            await _fetch_files(run, there / "result", target)


async def _fetch_files(run: Run, source: PurePosixPath, target: Folder) -> None:
    listing = await run(["find", str(source), "-maxdepth", "1", "-type", "f", "-printf", r"%s %f\n"])
    if listing.exit_code:
        raise ClusterUnreachable(f"{source} cannot be listed: {listing.stderr.decode(errors='replace')}")
    for line in listing.stdout.decode(errors="replace").splitlines():
        if found := _RESULT.fullmatch(line):
            target.unlink(found["name"])
            with target.new_file(found["name"]) as file:
                await _fetch(run, source / found["name"], file, int(found["size"]))


async def _fetch(run: Run, source: PurePosixPath, file: BinaryIO, size: int) -> None:
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
    make_folder(work)
    with (
        Folder.open(work) as folder,
        folder.make("finetune") as finetune,
        tarfile.open(fileobj=io.BytesIO(archive)) as tar,
    ):
        for member in tar:
            place, _, name = member.name.removeprefix("./").rpartition("/")
            if member.isfile() and _WATCHED.fullmatch(member.name.removeprefix("./")):
                content = tar.extractfile(member)
                (finetune if place else folder).write(name, content.read() if content else b"")
            elif member.isdir() and place == "finetune" and _CHECKPOINT.fullmatch(name):
                checkpoints.add(name)
                with finetune.make(name) as checkpoint:
                    saved_at = min(max(0.0, member.mtime), LATEST_SECONDS)
                    os.utime(checkpoint.descriptor, (saved_at, saved_at))
        for gone in finetune.names():
            if _CHECKPOINT.fullmatch(gone) and gone not in checkpoints:
                finetune.remove(gone)
