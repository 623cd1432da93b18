"""A ReplicaBackend: replicas as batch jobs of a Slurm cluster, on the same nodes as training.

Slurm is the only record of jobs: the job of a replica is found by the number and token that were stored
when it was submitted, never by its name. A job that Slurm requeues because its node was lost is the same
replica at another address. A job that has ended is reported once. Other users run programs on the same
nodes, so nothing is sent to a replica before it has proved that it has the deployment's key.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from neocloud.core.reconcile.reconciler import POLL_SECONDS, RETRY_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Store
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.inference.public import ModelFolders, WeightsGone
from neocloud.services.inference.reconcile.proven_transport import ProvenTransport
from neocloud.services.inference.reconcile.replica_log import LogPosition, ReplicaLog
from neocloud.services.inference.reconcile.scope import DeploymentScope, ReplicaStatus, server_view
from neocloud.services.inference.reconcile.slurm_job import (
    BLOCKS,
    ReplicaJob,
    from_memory,
    new_job,
    port_of,
    replica_job,
)
from neocloud.services.inference.reconcile.slurm_submissions import ReplicaSubmissions
from neocloud.services.inference.reconcile.staging import JobFiles
from neocloud.services.inference.render import server_arguments, server_variables
from neocloud.services.inference.types import DeploymentReason
from neocloud.services.slurm.types import (
    MODELS_MOUNT_PATH,
    BatchJob,
    BatchJobs,
    ClusterUnreachable,
    FoundJob,
    JobRefused,
    NewJob,
    Submission,
    find_submitted,
    jobs_without_token,
    models_folder,
)

PROBE_SECONDS = 5.0
_INTENDED_ENDINGS = frozenset({"CANCELLED"})
"""A user or the backend ended the job: its model server has not failed."""

Probe = Callable[[str, str], Awaitable[bool]]


class SlurmBackend:
    def __init__(
        self,
        jobs: BatchJobs,
        store: Store,
        folders: ModelFolders,
        home: Path,
        probe: Probe | None = None,
        media_domains: tuple[str, ...] = (),
    ) -> None:
        """`probe` returns whether the model server at an address has a key, and is healthy."""
        self._media_domains = media_domains
        self._jobs = jobs
        self._store = store
        self._submissions = ReplicaSubmissions(store)
        self._folders = folders
        self._home = home
        self._probe = probe or is_healthy

    async def observe(self, scope: DeploymentScope) -> Sequence[ReplicaStatus]:
        if not await self._has_cluster(scope):
            return ()
        newest, block = await self._newest(scope), await _port_block(scope)
        jobs = [each for each in newest.values() if _is_reported(scope, each)]
        return await asyncio.gather(*(self._status(scope, each, block) for each in jobs))

    async def start(self, scope: DeploymentScope, names: Sequence[str]) -> None:
        await self._require_usable(scope)
        assert scope.model is not None
        try:
            await asyncio.to_thread(self._files(scope).stage, self._folders, scope.model, scope.server_key)
        except WeightsGone as error:
            raise Failed(
                DeploymentReason.MODEL_NOT_READY, f"{scope.model.metadata.name}: {error}."
            ) from error
        except OSError as error:
            why = f"the weights cannot be copied for the cluster: {error}"
            raise RetryLater(why, delay_seconds=RETRY_SECONDS) from error
        block, newest = await _port_block(scope), await self._newest(scope)
        outdated = [
            each
            for each in newest.values()
            if each.replica in names and self._is_outdated(scope, each, block)
        ]
        await self._end(scope, outdated)
        for name in names:
            if name not in newest or newest[name].job.has_ended:
                async with _translated_errors(scope):
                    await self._submit(scope, name, self._new_job(scope, name, block))

    async def stop(self, scope: DeploymentScope, names: Sequence[str]) -> None:
        if await self._has_cluster(scope):
            newest = await self._newest(scope)
            await self._end(scope, [newest[name] for name in names if name in newest])

    async def log(self, deployment_id: str, name: str, lines: int) -> ReplicaLog:
        cluster_id = await self._cluster_of(deployment_id)
        try:
            found = await self._found(deployment_id, cluster_id)
            job = found[name].job if name in found else None
            if job is None:
                return ReplicaLog()
            part = await self._jobs.tail(cluster_id, job.id, lines)
        except (ClusterUnreachable, JobRefused):
            return ReplicaLog()
        return ReplicaLog(part.text, LogPosition(name, str(job.id), part.next_offset))

    async def log_after(self, deployment_id: str, position: LogPosition) -> ReplicaLog:
        cluster_id, name = await self._cluster_of(deployment_id), position.replica
        try:
            found = await self._found(deployment_id, cluster_id)
            job = found[name].job if name in found else None
            if job is None:
                return ReplicaLog("", position)
            offset = position.offset if str(job.id) == position.run else 0
            part = await self._jobs.printed(cluster_id, job.id, offset)
        except (ClusterUnreachable, JobRefused):
            return ReplicaLog("", position)
        return ReplicaLog(part.text, LogPosition(name, str(job.id), part.next_offset))

    async def _cluster_of(self, deployment_id: str) -> str:
        row = await self._store.read(lambda tx: tx.get(deployment_id))
        return DeploymentSpec.FromString(row.spec).slurm_cluster_id if row is not None else ""

    async def clear(self, scope: DeploymentScope) -> None:
        if await self._has_cluster(scope):
            await self._end(scope, list((await self._newest(scope)).values()))
        await asyncio.to_thread(self._files(scope).remove)

    def adapter_path(self, scope: DeploymentScope, adapter_id: str) -> str:
        files = self._files(scope)
        files.stage_adapter(adapter_id, self._folders.of_deployment(scope.id) / adapter_id)
        return files.adapter(adapter_id)

    async def _status(self, scope: DeploymentScope, each: ReplicaJob, block: str) -> ReplicaStatus:
        job = each.job
        is_running = job.state == "RUNNING"
        address = f"{job.address}:{port_of(block, each.replica)}" if is_running and job.address else ""
        if job.has_ended:
            message = f"job {job.id} ended {job.state}, exit code {job.exit_code}"
        else:
            why = f"on {job.node}" if is_running else f"({job.reason or 'no reason given'})"
            message = f"job {job.id} is {job.state} {why}"
        return ReplicaStatus(
            name=each.replica,
            is_running=is_running,
            is_healthy=bool(address) and await self._probe(address, scope.server_key.decode()),
            has_ended=job.has_ended,
            is_outdated=self._is_outdated(scope, each, block),
            address=address,
            started_at=job.started_at if is_running else None,
            message=message,
            job_id=job.id,
        )

    def _is_outdated(self, scope: DeploymentScope, each: ReplicaJob, block: str) -> bool:
        if each.job.has_ended or scope.plan is None or each.replica not in scope.desired_names:
            return False
        return each.job.name != self._new_job(scope, each.replica, block).name

    def _new_job(self, scope: DeploymentScope, replica: str, block: str) -> NewJob:
        resources, files = scope.spec.slurm_resources, self._files(scope)
        view = server_view(scope, gpus=resources.gpus, media_domains=self._media_domains)
        port = port_of(block, replica)
        command = server_arguments(view, files.model, host="0.0.0.0", port=port)  # in the job's namespace  # nosec B104
        if scope.spec.weights_in_memory and scope.model is not None:
            digest = scope.model.status.digest
            command = [*from_memory(files.model, scope.memory_folder, digest, command)]
        variables = {**server_variables(view), "OMP_NUM_THREADS": str(resources.cpus or 1)}
        return new_job(scope.id, replica, (files.key, str(port), *command), resources, variables)

    def _files(self, scope: DeploymentScope) -> JobFiles:
        return JobFiles(models_folder(self._home, scope.spec.slurm_cluster_id), MODELS_MOUNT_PATH, scope.id)

    async def _newest(self, scope: DeploymentScope) -> dict[str, ReplicaJob]:
        async with _translated_errors(scope):
            return await self._newest_of(scope.id, scope.spec.slurm_cluster_id)

    async def _newest_of(self, deployment_id: str, cluster_id: str) -> dict[str, ReplicaJob]:
        """Return the job of each replica that Slurm knows. Store the numbers of those that were submitted
        just before a crash, and cancel repeats."""
        found = await self._found(deployment_id, cluster_id)
        submissions = await self._submissions.read(deployment_id) or {}
        numbered = {
            name: replace(submissions.get(name, Submission("")), job_id=each.job.id)
            for name, each in found.items()
            if each.job is not None and each.job.id != submissions.get(name, Submission("")).job_id
        }
        if numbered:
            await self._submissions.keep(deployment_id, numbered)
        for repeat in (job for each in found.values() for job in each.repeats):
            await self._jobs.cancel(cluster_id, repeat.id)
        return {name: ReplicaJob(name, each.job) for name, each in found.items() if each.job is not None}

    async def _found(self, deployment_id: str, cluster_id: str) -> dict[str, FoundJob]:
        jobs = await self._jobs.jobs(cluster_id)
        submissions = await self._submissions.read(deployment_id)
        if submissions is not None:
            return {name: find_submitted(submission, jobs) for name, submission in submissions.items()}
        return _of_earlier_release(deployment_id, jobs)

    async def _submit(self, scope: DeploymentScope, name: str, job: NewJob) -> None:
        """Submit a job whose token is stored first. One whose number is not known yet, after a crash, has not
        reached Slurm: its token is used again, so that it is recognized if it comes late."""
        submission = (await self._submissions.read(scope.id) or {}).get(name)
        if submission is None or submission.job_id:
            submission = Submission.new()
            await self._submissions.keep(scope.id, {name: submission})
        job = replace(job, submission=submission.token)
        number = await self._jobs.submit(scope.spec.slurm_cluster_id, job)
        await self._submissions.keep(scope.id, {name: replace(submission, job_id=number)})

    async def _end(self, scope: DeploymentScope, jobs: Sequence[ReplicaJob]) -> None:
        """Cancel jobs. Raises RetryLater until they have ended, since their ports are not free before."""
        living = [each.job.id for each in jobs if not each.job.has_ended]
        if not living:
            return
        async with _translated_errors(scope):
            for job_id in living:
                await self._jobs.cancel(scope.spec.slurm_cluster_id, job_id)
        raise RetryLater(f"job {', '.join(map(str, living))} is ending", delay_seconds=POLL_SECONDS)

    async def _has_cluster(self, scope: DeploymentScope) -> bool:
        """Return whether the cluster exists; its jobs end with it."""
        row = await scope.context.get(scope.spec.slurm_cluster_id)
        return row is not None and row.deleted_at is None

    async def _require_usable(self, scope: DeploymentScope) -> None:
        row = await scope.context.get(scope.spec.slurm_cluster_id)
        if row is None or row.deleted_at is not None:
            raise Failed(
                DeploymentReason.CLUSTER_UNUSABLE,
                f"Its cluster {scope.spec.slurm_cluster_id} is gone; delete the deployment, create another.",
            )
        if ClusterSpec.FromString(row.spec).subnet_id:
            raise Failed(
                DeploymentReason.CLUSTER_UNUSABLE,
                f"Cluster {row.name} is on a subnet, whose nodes accept only SSH connections."
                " Deploy on a cluster with a network of its own, or as pods.",
            )


def _of_earlier_release(deployment_id: str, jobs: Sequence[BatchJob]) -> dict[str, FoundJob]:
    """Return the jobs of root that are named as an earlier release named them, the newest of each replica."""
    named = {job.id: replica_job(deployment_id, job) for job in jobs}
    own = jobs_without_token(jobs, lambda job: named[job.id] is not None)
    return {each.replica: FoundJob(each.job) for job in own if (each := named[job.id]) is not None}


def _is_reported(scope: DeploymentScope, each: ReplicaJob) -> bool:
    """Return whether to report the job: one that has ended only while the replica's record names it."""
    if not each.job.has_ended:
        return True
    record = scope.records.get(each.replica)
    is_known = record is not None and record.job_id == each.job.id and not record.HasField("next_try_at")
    return is_known and each.job.state not in _INTENDED_ENDINGS


async def _port_block(scope: DeploymentScope) -> str:
    namespace = f"inference.ports/{scope.spec.slurm_cluster_id}"
    block = await scope.context.reserve(namespace, map(str, range(BLOCKS)))
    if block is None:
        raise Failed(
            DeploymentReason.CLUSTER_UNUSABLE,
            f"The cluster serves {BLOCKS} deployments, the most it can.",
        )
    return block


@asynccontextmanager
async def _translated_errors(scope: DeploymentScope) -> AsyncGenerator[None]:
    try:
        yield
    except ClusterUnreachable as error:
        raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
    except JobRefused as error:
        hint = (
            " No worker mounts the models folder: those of an older release do not."
            " Scale the cluster down and up."
            if "feature" in str(error).lower()
            else ""
        )
        raise Failed(DeploymentReason.JOB_REFUSED, f"Slurm refused the job: {error}.{hint}") from error


async def is_healthy(address: str, key: str) -> bool:
    """Return whether the model server proves that it has the key, and says that it is well."""
    try:
        transport = ProvenTransport(key)
        async with httpx.AsyncClient(trust_env=False, timeout=PROBE_SECONDS, transport=transport) as client:
            return (await client.get(f"http://{address}/health")).is_success
    except httpx.HTTPError:
        return False
