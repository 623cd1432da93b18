"""Files between the control plane and the nodes of a cluster, which share no disk that both can write.

To the cluster: code, base model and data are staged in the folder that the cluster's workers mount read-only;
the model's files are hard links where the file system cannot share their bytes. From the cluster: the files
that show progress are read through the login node and written to the job's folder here, where the rest of the
service reads them. Root of the cluster can write those files too, so only known names and plain files are
copied. Nothing is read, as root, from a folder that another user made or that a link leads to.
"""

import io
import os
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted.files import Folder
from neocloud.core.untrusted.trees import stage_file, stage_files
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.services.inference.public import ModelFolders, check_weights
from neocloud.services.slurm.types import ClusterUnreachable, CommandResult
from neocloud.services.tuning.work_folder import LATEST_SECONDS

CHUNK_BYTES = 16 * 1024**2
"""Bytes of a result that one command reads."""
WATCHED_FILE_BYTES = 8 * 1024**2
"""Largest watched file that is read while a job runs; of a larger one the last copy stays."""
READ_BACK_BYTES = 64 * 1024**2
"""Most bytes of all watched files together."""
_STDERR_BYTES = 64 * 1024
"""Most bytes of a command's stderr."""
_READ_BACK = """
for folder in "${1%/*}" "$1"; do [ ! -L "$folder" ] && [ -O "$folder" ] || exit 2; done
cd "$1" || exit 2
shift
find . \\( -type d -o -type f -size -"$1"c \\) -print0 |
    { shift; exec tar --create --file=- --null --no-recursion "$@" --files-from=-; }
"""
_WATCHED = re.compile(
    r"(events\.jsonl|log\.txt|outcome\.json|metrics\.csv|report\.json|lineage\.json"
    r"|finetune/metrics\.jsonl)"
)
_CHECKPOINT = re.compile(r"checkpoint-[0-9]+")
_LISTING = """
for folder in "${1%/*}" "$1" "$1/result"; do [ ! -L "$folder" ] && [ -O "$folder" ] || exit 2; done
exec find "$1/result" -maxdepth 1 -type f -printf '%s %f\\n'
"""
_RESULT = re.compile(r"(?P<size>[0-9]+) (?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
_LARGE = ("./finetune/*/*", "./*_file.jsonl", "./chats*", "./merged", "./result", ".*.partial")


class RunCommand(Protocol):
    """A function that runs a command on the login node."""

    async def __call__(self, command: list[str], /, *, max_output_bytes: int = ...) -> CommandResult: ...


def stage(target: Path, code: Path, work: Path, attempt: int) -> None:
    """Stage recipes, data and settings in the folder that workers mount. May be repeated. Raises OSError."""
    make_folder(target.parent)
    with Folder.open(target.parent) as cluster:
        cluster.make(target.name).close()
    with Folder.open(code) as recipes:
        stage_files(recipes, target / "code")  # copies: a cluster shares no file of code with the cloud
    with Folder.open(work) as source, Folder.open(target) as staged:
        for name in (*(name for name in source.names() if name.endswith("_file.jsonl")), "job.json"):
            staged_name = f"job-{attempt}.json" if name == "job.json" else name
            if staged.state(staged_name) is None:
                stage_file(source, name, staged, staged_name)


def stage_model(target: Path, folders: ModelFolders, model: Model) -> None:
    """Stage the weights of a model. May be repeated. Raises WeightsGone, also when they changed; OSError."""
    if not (target / "model").exists():
        with folders.locate_known(model).folder() as weights:
            stage_files(
                weights, target / "model", lambda staged: check_weights(staged, model.status), link=True
            )


async def read_back(run: RunCommand, source: PurePosixPath, work: Path) -> None:
    """Copy the watched files of a job; do nothing while the cluster has no folder of it."""
    excluded = [f"--exclude={pattern}" for pattern in _LARGE]
    command = ["/bin/sh", "-c", _READ_BACK, "read-back", str(source), str(WATCHED_FILE_BYTES + 1), *excluded]
    found = await run(command, max_output_bytes=READ_BACK_BYTES)
    if found.exit_code > 1:  # 1: a file changed meanwhile
        return
    try:
        _unpack(found.stdout, work)
    except tarfile.TarError as error:
        raise ClusterUnreachable(f"the login node sent a broken archive: {error}") from error


async def fetch_result(run: RunCommand, source: PurePosixPath, work: Path) -> None:
    """Copy the folder `result`, which may be large, in pieces; completely or not at all."""
    with Folder.open(work) as folder:
        if folder.state("result") is not None:
            return
        with folder.staged("result") as target:
            await _fetch_files(run, source, target)


async def _fetch_files(run: RunCommand, source: PurePosixPath, target: Folder) -> None:
    listing = await run(["/bin/sh", "-c", _LISTING, "list", str(source)])
    if listing.exit_code:
        why = listing.stderr.decode(errors="replace") or "its folder is a link, or another user's"
        raise ClusterUnreachable(f"{source}/result cannot be listed: {why}")
    for line in listing.stdout.decode(errors="replace").splitlines():
        if found := _RESULT.fullmatch(line):
            target.unlink(found["name"])
            with target.new_file(found["name"]) as file:
                await _fetch(run, source / "result" / found["name"], file, int(found["size"]))


async def _fetch(run: RunCommand, source: PurePosixPath, file: BinaryIO, size: int) -> None:
    while file.tell() < size:
        position = ["iflag=skip_bytes,count_bytes,nofollow", f"skip={file.tell()}", f"count={CHUNK_BYTES}"]
        command = ["dd", f"if={source}", f"bs={CHUNK_BYTES}", "status=none", *position]
        piece = await run(command, max_output_bytes=CHUNK_BYTES + _STDERR_BYTES)
        if piece.exit_code or not piece.stdout:
            why = piece.stderr.decode(errors="replace").strip()
            raise ClusterUnreachable(f"{source} cannot be read: {why or 'it became shorter'}")
        file.write(piece.stdout)


def _unpack(archive: bytes, work: Path) -> None:
    """Write the watched files, and an empty folder for each checkpoint, to the job's folder."""
    checkpoints = set[str]()
    make_folder(work)
    with (
        Folder.open(work) as folder,
        folder.make("finetune") as finetune,
        tarfile.open(fileobj=io.BytesIO(archive)) as tar,
    ):
        for member in tar:
            parent, _, name = member.name.removeprefix("./").rpartition("/")
            if member.isfile() and _WATCHED.fullmatch(member.name.removeprefix("./")):
                content = tar.extractfile(member)
                (finetune if parent else folder).write(name, content.read() if content else b"")
            elif member.isdir() and parent == "finetune" and _CHECKPOINT.fullmatch(name):
                checkpoints.add(name)
                with finetune.make(name) as checkpoint:
                    saved_at = min(max(0.0, member.mtime), LATEST_SECONDS)
                    os.utime(checkpoint.descriptor, (saved_at, saved_at))
        for name in finetune.names():
            if _CHECKPOINT.fullmatch(name) and name not in checkpoints:
                finetune.remove(name)
