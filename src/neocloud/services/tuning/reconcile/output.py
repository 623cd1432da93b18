"""Writes the new model, its evaluation and the checkpoints to the bucket that the caller named.

A folder is whole once its manifest is there, which is written last. Each job has a folder of its own, so
nothing of another job is overwritten; whatever is interrupted is written again. A container writes the
checkpoints and may run a tenant's code: its files are opened as `core/untrusted/files.py` does, only those
with plain names count, and no more is read than there was when the file was opened.
"""

import asyncio
import io
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from neocloud.core.reconcile.background import BackgroundWork, Work
from neocloud.core.reconcile.reconciler import POLL_SECONDS, RETRY_SECONDS, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.services.inference.public import ModelFolders
from neocloud.services.storage.public import AccessProblem, ObjectLocation, ObjectWrites, Unwritable
from neocloud.services.tuning.reconcile.scope import JobScope, save_runtime_state
from neocloud.services.tuning.rules.outcome import Success
from neocloud.services.tuning.rules.output import FILE_NAME, MANIFEST, below, output_folder
from neocloud.services.tuning.types import Reason

MOST_FILES = 1000
MOST_AT_A_TIME = 2
"""Jobs whose files are written at the same time; each takes a thread of the control plane."""
LARGEST_MODEL_BYTES = 1024**4
LARGEST_CHECKPOINT_BYTES = 64 * 1024**3
"""An adapter and the state of its optimiser have far less."""
_REASONS = {
    AccessProblem.FORBIDDEN: Reason.OUTPUT_FORBIDDEN,
    AccessProblem.MISSING: Reason.OUTPUT_MISSING,
    AccessProblem.FULL: Reason.OUTPUT_FULL,
}


@dataclass(frozen=True)
class Source:
    """A file, and its name in the bucket."""

    folder: Path
    path: str
    name: str


class BadFiles(ValueError):
    """The files are not those that recipes write; the message names the first."""


@dataclass(frozen=True)
class _Content:
    name: str
    """Name of a checkpoint; "": the result of the job."""
    step: int


class OutputWriter:
    """Writes beside the runs of the reconciler: a model takes minutes."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._work = BackgroundWork[_Content](MOST_AT_A_TIME)

    async def write_model(self, scope: JobScope) -> None:
        """Write model and evaluation of a job that succeeded, where its spec names a place; may be repeated.
        Raises RetryLater until that is done."""
        folder = output_folder(scope.job.spec.output, scope.job_id)
        if folder is None or scope.job.status.output or not isinstance(scope.outcome, Success):
            return
        running = self._work.find(scope.job_id)
        if running is None:
            self._start(scope, folder, _Content("", 0), lambda: _result_files(self._dependencies, scope))
        elif running.task.done() and running.label.name:
            await self._end_checkpoint(scope, folder, running)
        elif running.task.done():
            self._work.cancel(scope.job_id)
            _require_written(scope, folder, running.task)
            scope.output = str(folder)
            scope.add_event(f"The new model was written to {below(folder, 'model')}.")
            return
        raise RetryLater("the new model is being written to its bucket", delay_seconds=POLL_SECONDS)

    async def write_checkpoint(self, scope: JobScope) -> None:
        """Write the newest checkpoint of a job in a pod, unless that was done. A failed write is reported in
        the events, and the training continues."""
        folder = output_folder(scope.job.spec.output, scope.job_id)
        if folder is None or scope.job.spec.slurm_cluster_id or scope.outcome:
            return
        running = self._work.find(scope.job_id)
        if running is not None:
            if running.task.done():
                await self._end_checkpoint(scope, folder, running)
            return
        found = await asyncio.to_thread(scope.folder.checkpoints)
        if not found or found[0].step <= scope.runtime.saved_step:
            return
        top, name = scope.folder.path, found[0].name
        self._start(
            scope,
            folder,
            _Content(name, found[0].step),
            lambda: [
                _FolderFiles(f"checkpoints/{name}", _files(top, f"finetune/{name}"), LARGEST_CHECKPOINT_BYTES)
            ],
        )

    def cancel(self, job_id: str) -> None:
        self._work.cancel(job_id)

    def _start(
        self,
        scope: JobScope,
        folder: ObjectLocation,
        content: _Content,
        find: Callable[[], Sequence["_FolderFiles"]],
    ) -> None:
        writes = self._dependencies.provided.get(ObjectWrites)
        facts = {"job": scope.job_id, "model": scope.model_name}

        async def write() -> None:
            for group in await asyncio.to_thread(find):
                await _write(writes, folder, group, facts)

        self._work.start(scope.job_id, content, write)

    async def _end_checkpoint(self, scope: JobScope, folder: ObjectLocation, running: Work[_Content]) -> None:
        """Say how it ended, and remember that it was tried."""
        self._work.cancel(scope.job_id)
        name = running.label.name
        try:
            running.task.result()
            scope.add_event(f"{name} was written to {folder}.")
        except FileNotFoundError:
            return  # newer ones took its place
        except (BadFiles, OSError) as error:
            scope.add_event(f"{name} was not written to {folder}: {error}.", "warn")
        except Unwritable as error:
            if error.problem not in _REASONS:
                return  # tried again by the next run
            scope.add_event(f"{name} was not written: {error}", "warn")
        runtime = replace(scope.runtime, saved_step=running.label.step)
        await save_runtime_state(self._dependencies.store, scope, runtime)
        scope.runtime = runtime


def _require_written(scope: JobScope, folder: ObjectLocation, task: asyncio.Task[None]) -> None:
    try:
        task.result()
    except (BadFiles, UnsafePath, FileNotFoundError) as error:
        raise Failed(Reason.BAD_RESULT, f"The result was not written to {folder}: {error}.") from error
    except Unwritable as error:
        if error.problem not in _REASONS:
            raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
        raise Failed(
            _REASONS[error.problem],
            f"{error} The new model {scope.model_name} is whole in this cloud; once that is fixed, `neo"
            f" tuning job resume {scope.job_id}` writes it without training again.",
        ) from error


@dataclass(frozen=True)
class _FolderFiles:
    """The files of a folder of the job's folder."""

    name: str
    files: Sequence[Source]
    most_bytes: int


def _result_files(dependencies: Dependencies, scope: JobScope) -> list[_FolderFiles]:
    model = dependencies.provided.get(ModelFolders).of_project(scope.job.metadata.parent_id) / scope.job_id
    reports = [
        Source(scope.folder.path, "metrics.csv", "step_metrics.csv"),
        Source(scope.folder.path, "report.json", "evaluation.json"),
    ]
    return [
        _FolderFiles("results", reports, LARGEST_CHECKPOINT_BYTES),
        _FolderFiles("model", _files(model, ""), LARGEST_MODEL_BYTES),
    ]


async def _write(
    writes: ObjectWrites, folder: ObjectLocation, group: _FolderFiles, facts: Mapping[str, str]
) -> None:
    """Write files, and then their manifest."""
    written: list[dict[str, object]] = []
    rest, job_id = group.most_bytes, facts["job"]
    for each in group.files:
        with _opened(each) as (file, size):
            rest -= size
            if rest < 0:
                raise BadFiles(f"{each.name} and the files before it are too large")
            await writes.put(job_id, folder, f"{group.name}/{each.name}", file, size)
        written.append({"name": each.name, "size_bytes": size})
    manifest = json.dumps({**facts, "files": written}, indent=1).encode()
    name = f"{group.name}/{MANIFEST}"
    await writes.put(job_id, folder, name, io.BytesIO(manifest), len(manifest))


@contextmanager
def _opened(source: Source) -> Generator[tuple[BinaryIO, int]]:
    with Folder.open(source.folder) as folder, folder.file(source.path) as file:
        yield file, os.fstat(file.fileno()).st_size


def _files(top: Path, relative: str) -> list[Source]:
    """Return the files of a folder. Raises BadFiles for any that recipes do not write; UnsafePath;
    FileNotFoundError."""
    with Folder.open(top) as opened, opened.folder(relative or ".") as folder:
        names = list(_first(folder.each_name(), MOST_FILES))
    for name in names:
        if not FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise BadFiles(f"{name[:80]!r} is not the name of a file that recipes write")
    return [Source(top, f"{relative}/{name}" if relative else name, name) for name in sorted(names)]


def _first(names: Iterable[str], most: int) -> Iterator[str]:
    for number, name in enumerate(names):
        if number == most:
            raise BadFiles(f"there are more than {most:,} files")
        yield name
