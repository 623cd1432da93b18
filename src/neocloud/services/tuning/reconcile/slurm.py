"""A job as a batch job of a Slurm cluster: submitted, watched, stopped with a checkpoint, submitted again.

Slurm keeps the jobs; the record beside the row says which one is of this attempt, since Slurm forgets what
has ended. A node that is lost is Slurm's own business: the same job starts again and goes on.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from neocloud.core.reconcile.reconciler import RETRY_SECONDS, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.services.inference.public import WeightsGone
from neocloud.services.slurm.public import BatchJob, BatchJobs, ClusterUnreachable, JobRefused, models_folder
from neocloud.services.tuning.reconcile import slurm_files
from neocloud.services.tuning.reconcile.attempts import keep_record, lost, next_attempt
from neocloud.services.tuning.reconcile.code_folder import code_folder
from neocloud.services.tuning.reconcile.scope import Scope
from neocloud.services.tuning.reconcile.slurm_job import attempt_of, new_job, work_path
from neocloud.services.tuning.reconcile.workspace import model_folders
from neocloud.services.tuning.types import Reason
from neocloud.services.tuning.work_folder import WorkFolder


class JobOnSlurm:
    """The same verbs as JobPod."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

    async def ensure(self, scope: Scope, base: Any) -> None:
        """Returns while it trains, and once it has ended; raises RetryLater until then."""
        async with self._reached(scope) as cluster:
            current = await self._current(cluster, scope)
            has_begun = current.state != "PENDING" if current else bool(scope.record.slurm_jobs)
            if has_begun:
                await self._read_back(cluster, scope)
            if scope.outcome.get("state") == "stopped":
                await next_attempt(self._dependencies.store, scope, scope.record)
            if scope.outcome.get("state") == "succeeded":
                await slurm_files.fetch_result(cluster.run, work_path(scope.job_id), scope.folder.path)
            if scope.outcome:
                return
            if current is None and not scope.record.slurm_jobs:
                await self._submit(cluster, scope, base)
            await self._wait(scope, current)

    async def stop(self, scope: Scope) -> None:
        """Asks for a checkpoint and returns when the job has ended."""
        async with self._reached(scope) as cluster:
            current = await self._current(cluster, scope)
            if current is not None and not current.has_ended:
                if current.state == "RUNNING":
                    await cluster.run(["scancel", "--signal=TERM", "--batch", str(current.id)])
                else:  # it has nothing to save, or ends just now
                    await cluster.jobs.cancel(cluster.id, current.id)
                raise RetryLater("its step and a checkpoint are being finished", delay_seconds=RETRY_SECONDS)
            if scope.record.slurm_jobs:
                await self._read_back(cluster, scope)

    async def remove(self, scope: Scope) -> None:
        """Ends what lives and takes away what was shown; its folder on the cluster stays."""
        async with self._reached(scope) as cluster:
            await self._end(cluster, [job for _, job in await self._jobs(cluster, scope)])
        await asyncio.to_thread(shutil.rmtree, self._shown(scope), ignore_errors=True)

    async def forget(self, scope: Scope) -> None:
        """Its folder on the cluster goes too; nothing of the job lives any more."""
        async with self._reached(scope) as cluster:
            await cluster.run(["rm", "-rf", "--", str(work_path(scope.job_id))])

    async def has_cluster(self, scope: Scope) -> bool:
        """Jobs and files go with their cluster."""
        row = await scope.context.get(scope.job.spec.slurm_cluster_id)
        return row is not None and row.deleted_at is None

    async def _current(self, cluster: "_Cluster", scope: Scope) -> BatchJob | None:
        """The job of this attempt. No other may live beside it: both would write the same checkpoints."""
        jobs = await self._jobs(cluster, scope)
        await self._end(cluster, [job for attempt, job in jobs if attempt != scope.record.attempt])
        mine = [job for attempt, job in jobs if attempt == scope.record.attempt]
        return mine[-1] if mine else None

    async def _jobs(self, cluster: "_Cluster", scope: Scope) -> list[tuple[int, BatchJob]]:
        found = [(attempt_of(scope.job_id, job), job) for job in await cluster.jobs.jobs(cluster.id)]
        return [(attempt, job) for attempt, job in found if attempt is not None]

    async def _end(self, cluster: "_Cluster", jobs: Sequence[BatchJob]) -> None:
        living = [job.id for job in jobs if not job.has_ended]
        for job_id in living:
            await cluster.jobs.cancel(cluster.id, job_id)
        if living:
            raise RetryLater(f"job {', '.join(map(str, living))} is ending", delay_seconds=RETRY_SECONDS)

    async def _submit(self, cluster: "_Cluster", scope: Scope, base: Any) -> None:
        record, spec = scope.record, scope.job.spec
        folders, shown = model_folders(self._dependencies), self._shown(scope)
        try:
            await asyncio.to_thread(slurm_files.lay, shown, code_folder(), scope.folder.path, record.attempt)
            if folders.reads_files:
                await asyncio.to_thread(slurm_files.lay_model, shown, folders, base)
        except WeightsGone as error:
            raise Failed(Reason.MODEL_GONE, f"{base.metadata.name}: {error}.") from error
        except OSError as error:
            why = f"its files cannot be laid before the cluster: {error}"
            raise RetryLater(why, delay_seconds=RETRY_SECONDS) from error
        assert scope.shape is not None
        job = new_job(scope.job_id, record.attempt, max(1, spec.nodes), scope.shape)
        number = await cluster.jobs.submit(cluster.id, job)
        await keep_record(self._dependencies.store, scope, replace(record, slurm_jobs=(number,)))
        raise RetryLater(f"job {number} was submitted", delay_seconds=RETRY_SECONDS)

    async def _wait(self, scope: Scope, current: BatchJob | None) -> None:
        if current is None or current.has_ended:
            number = current.id if current else scope.record.slurm_jobs[-1]
            ending = f"{current.state}, exit code {current.exit_code}" if current else "Slurm forgot it"
            await lost(self._dependencies.store, scope, f"Slurm job {number}", ending)
        elif current.state == "PENDING":
            scope.is_queued = True
            why = f"job {current.id} waits ({current.reason or 'no reason given'})"
            raise RetryLater(why, delay_seconds=RETRY_SECONDS)
        elif not await asyncio.to_thread(lambda: scope.folder.has_begun_training):
            raise RetryLater("the files are being checked", delay_seconds=RETRY_SECONDS)

    async def _read_back(self, cluster: "_Cluster", scope: Scope) -> None:
        await slurm_files.read_back(cluster.run, work_path(scope.job_id), scope.folder.path)
        scope.folder = WorkFolder(scope.folder.path)  # it keeps what it has read
        scope.outcome = await asyncio.to_thread(scope.folder.outcome, scope.record.attempt)

    def _shown(self, scope: Scope) -> Path:
        home = self._dependencies.settings.home
        return models_folder(home, scope.job.spec.slurm_cluster_id) / scope.job_id

    @asynccontextmanager
    async def _reached(self, scope: Scope) -> AsyncIterator["_Cluster"]:
        if not await self.has_cluster(scope):
            raise Failed(
                Reason.CLUSTER_UNUSABLE,
                "Its cluster is gone, and its checkpoints with it; start another job from the same files.",
            )
        jobs = self._dependencies.provided.get(BatchJobs)
        try:
            yield _Cluster(scope.job.spec.slurm_cluster_id, jobs)
        except ClusterUnreachable as error:
            raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
        except JobRefused as error:
            raise Failed(Reason.JOB_REFUSED, f"Slurm refused the job: {error}") from error


class _Cluster:
    """One cluster's jobs, and its login node."""

    def __init__(self, cluster_id: str, jobs: BatchJobs) -> None:
        self.id = cluster_id
        self.jobs = jobs
        self.run = partial(jobs.run, cluster_id)
