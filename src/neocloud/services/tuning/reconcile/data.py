"""Checks the data of a job and copies them into its folder: files of the project, and objects of buckets."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import BinaryIO

from neocloud.core.reconcile.background import BackgroundWork
from neocloud.core.reconcile.reconciler import POLL_SECONDS, RETRY_SECONDS, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.core.training_data import CheckFailed, check_training_data
from neocloud.core.untrusted.files import Folder
from neocloud.services.storage.public import SCHEME, AccessProblem, ObjectReads, Unreadable, place_in
from neocloud.services.tuning.reconcile.scope import JobScope
from neocloud.services.tuning.rules.methods import method_of
from neocloud.services.tuning.types import INVALID_FILE, Files, Reason

logger = logging.getLogger(__name__)
Stage = Callable[[Dependencies, JobScope, Mapping[str, str]], Coroutine[object, None, None]]
LARGEST_FILE_BYTES = 5 * 10**9
"""The largest object; the gateway takes files of the same size."""
MOST_AT_A_TIME = 4
"""Jobs whose data are copied or checked at the same time; each takes a thread of the control plane."""
_REASONS = {
    AccessProblem.MISSING: Reason.FILE_MISSING,
    AccessProblem.FORBIDDEN: Reason.FILE_FORBIDDEN,
    AccessProblem.TOO_LARGE: Reason.FILE_TOO_LARGE,
    AccessProblem.DAMAGED: Reason.FILE_DAMAGED,
}


class DataStager:
    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._copies = BackgroundWork[None](MOST_AT_A_TIME)
        self._checks = BackgroundWork[None](MOST_AT_A_TIME)

    async def stage(self, scope: JobScope) -> None:
        """Copy what is not there yet, once it was read. Raises RetryLater until that is done, and Failed with
        line and column for data that cannot be trained on."""
        missing = await asyncio.to_thread(_missing, scope)
        urls = {name: url for name, url in missing.items() if url.startswith(SCHEME)}
        self._start(
            self._checks, scope, {name: missing[name] for name in missing.keys() - urls}, _stage_files
        )
        self._start(self._copies, scope, urls, _copy_objects)

    def cancel(self, job_id: str) -> None:
        self._checks.cancel(job_id)
        self._copies.cancel(job_id)

    def _start(
        self, works: BackgroundWork[None], scope: JobScope, files: Mapping[str, str], stage: Stage
    ) -> None:
        try:
            is_going_on = works.is_going_on(scope.job_id)
        except Unreadable as error:
            if error.problem not in _REASONS:
                raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
            raise Failed(_REASONS[error.problem], str(error)) from error
        if not files:
            return
        if not is_going_on:
            works.start(scope.job_id, None, partial(stage, self._dependencies, scope, files))
        raise RetryLater("its data is being copied and checked", delay_seconds=POLL_SECONDS)


def _missing(scope: JobScope) -> dict[str, str]:
    """Return the files of the job that its folder does not have, by name."""
    spec = scope.job.spec
    wanted = {"training_file": spec.training_file, "validation_file": spec.validation_file}
    return {
        name: each for name, each in wanted.items() if each and not scope.folder.has_file(f"{name}.jsonl")
    }


async def _stage_files(dependencies: Dependencies, scope: JobScope, file_ids: Mapping[str, str]) -> None:
    """Copy files of the project."""
    files = dependencies.provided.get(Files)
    for name, file_id in file_ids.items():
        try:
            source = await asyncio.to_thread(files.path, scope.job.metadata.parent_id, file_id)
            with Folder.open(source.parent) as folder, folder.file(source.name) as file:
                await _check(scope, file, name)
            await asyncio.to_thread(scope.folder.stage, source, f"{name}.jsonl")
        except (LookupError, FileNotFoundError) as error:
            message = f"The {name} {file_id} was deleted before it was read."
            raise Failed(Reason.FILE_MISSING, message) from error


async def _copy_objects(dependencies: Dependencies, scope: JobScope, urls: Mapping[str, str]) -> None:
    """Copy objects of buckets, as the account that made the job."""
    reads = dependencies.provided.get(ObjectReads)
    for name, url in urls.items():
        place = place_in(url)
        assert place is not None
        with scope.folder.new_file(f"{name}.jsonl") as file:
            await reads.fetch(scope.job_id, place, file, LARGEST_FILE_BYTES)
            file.flush()
            await _check(scope, file, name)


async def _check(scope: JobScope, file: BinaryIO, name: str) -> None:
    """Raises Failed for data that cannot be trained on. The job reads data that are too large to be read
    here.
    """
    try:
        spec = scope.job.spec
        found = await check_training_data(file, method_of(spec), spec.grader)
    except CheckFailed as error:
        logger.warning("A %s could not be checked: %s", name, error)
        return
    if found.errors:
        raise Failed(INVALID_FILE[name], f"The {name.replace('_', ' ')}: {found.reason}")
