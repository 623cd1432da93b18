"""Copies the data of a job into its folder: files of the project, and objects of buckets."""

import asyncio
from collections.abc import Mapping
from functools import partial

from neocloud.core.reconcile.background import BackgroundWork
from neocloud.core.reconcile.reconciler import POLL_SECONDS, RETRY_SECONDS, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.services.storage.public import SCHEME, AccessProblem, ObjectReads, Unreadable, place_in
from neocloud.services.tuning.reconcile.scope import Scope
from neocloud.services.tuning.types import Files, Reason

LARGEST_FILE_BYTES = 5 * 10**9
"""The largest object; the gateway takes files of the same size."""
MOST_AT_A_TIME = 4
"""Jobs whose objects are copied at the same time; each takes a thread of the control plane."""
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

    async def stage(self, scope: Scope) -> None:
        """Copy what is not there yet. Raises RetryLater until that is done."""
        missing = await asyncio.to_thread(_missing, scope)
        for name, file_id in missing.items():
            if not file_id.startswith(SCHEME):
                await _stage_file(self._dependencies, scope, name, file_id)
        self._stage_objects(scope, {name: url for name, url in missing.items() if url.startswith(SCHEME)})

    def cancel(self, job_id: str) -> None:
        self._copies.cancel(job_id)

    def _stage_objects(self, scope: Scope, urls: Mapping[str, str]) -> None:
        try:
            is_copied = self._copies.is_going_on(scope.job_id)
        except Unreadable as error:
            if error.problem not in _REASONS:
                raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
            raise Failed(_REASONS[error.problem], str(error)) from error
        if not urls:
            return
        if not is_copied:
            self._copies.start(scope.job_id, None, partial(_copy_objects, self._dependencies, scope, urls))
        raise RetryLater("its data is being copied from a bucket", delay_seconds=POLL_SECONDS)


def _missing(scope: Scope) -> dict[str, str]:
    """Return the files of the job that its folder does not have, by name."""
    spec = scope.job.spec
    wanted = {"training_file": spec.training_file, "validation_file": spec.validation_file}
    return {
        name: each for name, each in wanted.items() if each and not scope.folder.has_file(f"{name}.jsonl")
    }


async def _stage_file(dependencies: Dependencies, scope: Scope, name: str, file_id: str) -> None:
    files = dependencies.provided.get(Files)
    try:
        source = await asyncio.to_thread(files.path, scope.job.metadata.parent_id, file_id)
        await asyncio.to_thread(scope.folder.stage, source, f"{name}.jsonl")
    except (LookupError, FileNotFoundError) as error:
        raise Failed(Reason.FILE_MISSING, f"The {name} {file_id} was deleted before it was read.") from error


async def _copy_objects(dependencies: Dependencies, scope: Scope, urls: Mapping[str, str]) -> None:
    """Copy objects of buckets, as the account that made the job."""
    reads = dependencies.provided.get(ObjectReads)
    for name, url in urls.items():
        place = place_in(url)
        assert place is not None
        with scope.folder.new_file(f"{name}.jsonl") as file:
            await reads.fetch(scope.job_id, place, file, LARGEST_FILE_BYTES)
