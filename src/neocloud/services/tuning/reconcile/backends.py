"""Backends of jobs: a pod of its own, or a batch job of a Slurm cluster.

Both are started, watched, stopped with a checkpoint, and started again when they were lost.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from neocloud.core.reconcile.reconciler import POLL_SECONDS, RETRY_SECONDS, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.engines.base import ObservedPod, PodPhase, Reference
from neocloud.engines.calls import engine_call
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.services.compute.public import preset
from neocloud.services.inference.public import ModelFolders, WeightsGone
from neocloud.services.slurm.types import (
    BatchJob,
    BatchJobs,
    ClusterUnreachable,
    JobRefused,
    Submission,
    find_submitted,
    jobs_without_token,
    models_folder,
)
from neocloud.services.tuning.reconcile import slurm_files
from neocloud.services.tuning.reconcile.scope import (
    JobScope,
    handle_loss,
    save_runtime_state,
    start_next_attempt,
)
from neocloud.services.tuning.reconcile.workspace import base_weights, code_folder, require_shape
from neocloud.services.tuning.render import (
    ATTEMPT_LABEL,
    POD,
    JobView,
    attempt_of,
    batch_job,
    render,
    work_path,
)
from neocloud.services.tuning.rules.outcome import Stopped, Success
from neocloud.services.tuning.types import Reason, RuntimeState, namespace
from neocloud.services.tuning.work_folder import WorkFolder

IMAGE = "jail"


class PodBackend:
    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._engine = dependencies.engine

    async def ensure(self, scope: JobScope, base: Model) -> None:
        pod = scope.observation.pod(POD)
        if isinstance(scope.outcome, Stopped):  # for example because the whole cloud was stopped
            await start_next_attempt(self._dependencies.store, scope, scope.runtime)
        if scope.outcome:
            return
        if pod is not None and pod.labels.get(ATTEMPT_LABEL) != str(scope.runtime.attempt):
            await self._engine.remove([pod.reference])
            pod = None
        if pod is None:
            await self._engine.apply(render(await self._view(scope, base)))
            raise RetryLater("the pod is starting", delay_seconds=POLL_SECONDS)
        if pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED):
            await self._handle_end(scope, pod)
        elif pod.phase is PodPhase.PENDING:
            raise RetryLater(pod.message or "the pod is starting", delay_seconds=POLL_SECONDS)
        elif not await asyncio.to_thread(lambda: scope.folder.has_begun_training):
            raise RetryLater("the files are being checked", delay_seconds=POLL_SECONDS)

    async def stop(self, scope: JobScope) -> None:
        pod = scope.observation.pod(POD)
        if pod is None or pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED) or scope.outcome:
            return
        terminate = self._engine.exec(pod.reference, ["sh", "-c", "kill -TERM 1"])
        # An error means that it has just ended or has not begun.
        await engine_call(terminate, waiting="it is being stopped", retry_seconds=POLL_SECONDS)
        raise RetryLater("its step and a checkpoint are being finished", delay_seconds=POLL_SECONDS)

    async def remove(self, scope: JobScope) -> None:
        name = namespace(scope.job_id)
        if scope.observation.pods or scope.observation.others:
            await self._engine.remove([Reference("Namespace", name, name)])

    async def _handle_end(self, scope: JobScope, pod: ObservedPod) -> None:
        """Read the outcome that the pod has just left; without one it was killed."""
        scope.outcome = await asyncio.to_thread(scope.folder.outcome, scope.runtime.attempt)
        if scope.outcome:
            return
        await handle_loss(self._dependencies.store, scope, "pod", pod.message or "no reason was left")

    async def _view(self, scope: JobScope, base: Model) -> JobView:
        shape = preset(scope.job.spec.platform, scope.job.spec.preset)
        try:
            image = self._dependencies.settings.image(IMAGE)
        except FileNotFoundError as error:
            raise Failed("ImageMissing", f"The image {IMAGE} is not built; run neo image build.") from error
        weights = base_weights(self._dependencies, base)
        return JobView(
            id=scope.job_id,
            attempt=scope.runtime.attempt,
            image=image,
            work_folder=str(scope.folder.path),
            code_folder=str(code_folder()),
            model_folder=str(weights.root),
            model_path=weights.path,
            cpus=shape.vcpu,
            memory_mib=shape.memory_mib,
            gpus=shape.gpus,
            gpu_type=shape.gpu_type,
        )


class SlurmBackend:
    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

    async def ensure(self, scope: JobScope, base: Model) -> None:
        async with self._connect(scope) as cluster:
            current = await self._current(cluster, scope)
            submission = scope.runtime.submission
            has_begun = current.state != "PENDING" if current else submission is not None
            if has_begun:
                await self._read_back(cluster, scope)
            if isinstance(scope.outcome, Stopped):
                await start_next_attempt(self._dependencies.store, scope, scope.runtime)
            if isinstance(scope.outcome, Success):
                await slurm_files.fetch_result(cluster.run, work_path(scope.job_id), scope.folder.path)
            if scope.outcome:
                return
            if current is None and (submission is None or not submission.job_id):
                await self._submit(cluster, scope, base)
            await self._wait(scope, current)

    async def stop(self, scope: JobScope) -> None:
        async with self._connect(scope) as cluster:
            current = await self._current(cluster, scope)
            if current is not None and not current.has_ended:
                if current.state == "RUNNING":
                    await cluster.run(["scancel", "--signal=TERM", "--batch", str(current.id)])
                else:  # it has nothing to save, or is just ending
                    await cluster.jobs.cancel(cluster.id, current.id)
                raise RetryLater("its step and a checkpoint are being finished", delay_seconds=RETRY_SECONDS)
            if scope.runtime.submission is not None:
                await self._read_back(cluster, scope)

    async def remove(self, scope: JobScope) -> None:
        """Cancel its Slurm jobs and remove its read-only folder; its folder on the shared root stays."""
        async with self._connect(scope) as cluster:
            await self._end(cluster, [job for _, job in await self._jobs(cluster, scope)])
        await asyncio.to_thread(shutil.rmtree, self._mounted_folder(scope), ignore_errors=True)

    async def remove_files(self, scope: JobScope) -> None:
        """Remove its folder on the shared root, once none of its Slurm jobs runs."""
        async with self._connect(scope) as cluster:
            await cluster.run(["rm", "-rf", "--", str(work_path(scope.job_id))])

    async def has_cluster(self, scope: JobScope) -> bool:
        """Return whether the cluster exists; its jobs and files are deleted with it."""
        row = await scope.context.get(scope.job.spec.slurm_cluster_id)
        return row is not None and row.deleted_at is None

    async def _current(self, cluster: "_Cluster", scope: JobScope) -> BatchJob | None:
        """Return the job of this attempt, once those of others have ended: they share checkpoints."""
        jobs = await self._jobs(cluster, scope)
        await self._end(cluster, [job for attempt, job in jobs if attempt != scope.runtime.attempt])
        current = [job for attempt, job in jobs if attempt == scope.runtime.attempt]
        return current[-1] if current else None

    async def _jobs(self, cluster: "_Cluster", scope: JobScope) -> list[tuple[int, BatchJob]]:
        """Return the jobs that this job has submitted and that Slurm knows, with their attempts. Store the
        numbers of those that were submitted just before a crash, and cancel repeats."""
        jobs = await cluster.jobs.jobs(cluster.id)
        submissions = scope.runtime.submissions
        if submissions is None:
            submissions = _of_earlier_release(scope, jobs)
        found = [(attempt, each, find_submitted(each, jobs)) for attempt, each in submissions]
        for repeat in (job for _, _, each in found for job in each.repeats):
            await cluster.jobs.cancel(cluster.id, repeat.id)
        numbered = tuple(
            (attempt, replace(each, job_id=seen.job.id) if seen.job is not None else each)
            for attempt, each, seen in found
        )
        if numbered != (scope.runtime.submissions or ()):
            await self._save(scope, replace(scope.runtime, submissions=numbered, earlier_slurm_jobs=()))
        return [(attempt, seen.job) for attempt, _, seen in found if seen.job is not None]

    async def _save(self, scope: JobScope, runtime: RuntimeState) -> None:
        if not await save_runtime_state(self._dependencies.store, scope, runtime):
            raise RetryLater("the job has just been changed", delay_seconds=POLL_SECONDS)

    async def _end(self, cluster: "_Cluster", jobs: Sequence[BatchJob]) -> None:
        running = [job.id for job in jobs if not job.has_ended]
        for job_id in running:
            await cluster.jobs.cancel(cluster.id, job_id)
        if running:
            raise RetryLater(f"job {', '.join(map(str, running))} is ending", delay_seconds=RETRY_SECONDS)

    async def _submit(self, cluster: "_Cluster", scope: JobScope, base: Model) -> None:
        runtime, target = scope.runtime, self._mounted_folder(scope)
        folders = self._dependencies.provided.get(ModelFolders)
        try:
            await asyncio.to_thread(
                slurm_files.stage, target, code_folder(), scope.folder.path, runtime.attempt
            )
            if folders.reads_files:
                await asyncio.to_thread(slurm_files.stage_model, target, folders, base)
        except WeightsGone as error:
            raise Failed(Reason.MODEL_GONE, f"{base.metadata.name}: {error}.") from error
        except OSError as error:
            why = f"its files cannot be copied for the cluster: {error}"
            raise RetryLater(why, delay_seconds=RETRY_SECONDS) from error
        nodes = max(1, scope.job.spec.nodes)
        job = batch_job(scope.job_id, runtime.attempt, nodes, require_shape(scope))
        # Stored first. After a crash the same token is used again: a job that comes late is recognized by it.
        submission = runtime.submission or Submission.new()
        await self._save(scope, replace(runtime, submissions=((runtime.attempt, submission),)))
        number = await cluster.jobs.submit(cluster.id, replace(job, submission=submission.token))
        known = ((runtime.attempt, replace(submission, job_id=number)),)
        await save_runtime_state(self._dependencies.store, scope, replace(scope.runtime, submissions=known))
        raise RetryLater(f"job {number} was submitted", delay_seconds=RETRY_SECONDS)

    async def _wait(self, scope: JobScope, current: BatchJob | None) -> None:
        if current is None or current.has_ended:
            submission = scope.runtime.submission
            number = current.id if current else submission.job_id if submission else 0
            reason = f"{current.state}, exit code {current.exit_code}" if current else "Slurm forgot it"
            await handle_loss(self._dependencies.store, scope, f"Slurm job {number}", reason)
        elif current.state == "PENDING":
            scope.is_queued = True
            why = f"job {current.id} waits ({current.reason or 'no reason given'})"
            raise RetryLater(why, delay_seconds=RETRY_SECONDS)
        elif not await asyncio.to_thread(lambda: scope.folder.has_begun_training):
            raise RetryLater("the files are being checked", delay_seconds=RETRY_SECONDS)

    async def _read_back(self, cluster: "_Cluster", scope: JobScope) -> None:
        await slurm_files.read_back(cluster.run, work_path(scope.job_id), scope.folder.path)
        scope.folder = WorkFolder(scope.folder.path)  # the old one has cached what it read before
        scope.outcome = await asyncio.to_thread(scope.folder.outcome, scope.runtime.attempt)

    def _mounted_folder(self, scope: JobScope) -> Path:
        """Return the job's folder on this machine that the cluster's nodes mount read-only."""
        home = self._dependencies.settings.home
        return models_folder(home, scope.job.spec.slurm_cluster_id) / scope.job_id

    @asynccontextmanager
    async def _connect(self, scope: JobScope) -> AsyncGenerator["_Cluster"]:
        if not await self.has_cluster(scope):
            raise Failed(
                Reason.CLUSTER_UNUSABLE,
                "Its cluster was deleted together with its checkpoints; start another job from the same"
                " files.",
            )
        jobs = self._dependencies.provided.get(BatchJobs)
        try:
            yield _Cluster(scope.job.spec.slurm_cluster_id, jobs)
        except ClusterUnreachable as error:
            raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
        except JobRefused as error:
            raise Failed(Reason.JOB_REFUSED, f"Slurm refused the job: {error}") from error


def _of_earlier_release(scope: JobScope, jobs: Sequence[BatchJob]) -> tuple[tuple[int, Submission], ...]:
    """Return the jobs of root that are named as an earlier release named them, and those whose numbers it
    stored, of which Slurm may have forgotten some."""
    own = jobs_without_token(jobs, lambda job: attempt_of(scope.job_id, job) is not None)
    named = [(attempt, job.id) for job in own if (attempt := attempt_of(scope.job_id, job)) is not None]
    stored = [(scope.runtime.attempt, number) for number in scope.runtime.earlier_slurm_jobs]
    return tuple((attempt, Submission("", number)) for attempt, number in sorted({*named, *stored}))


class _Cluster:
    """One cluster's jobs, and commands on its login node."""

    def __init__(self, cluster_id: str, jobs: BatchJobs) -> None:
        self.id = cluster_id
        self.jobs = jobs
        self.run = partial(jobs.run, cluster_id)
