"""Jobs of clusters for other services: they take the same path as users' jobs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Store
from neocloud.engines.base import MAX_OUTPUT_BYTES, Engine, EngineError
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.public import BatchJob, ClusterUnreachable, CommandResult, JobRefused, NewJob
from neocloud.services.slurm.sbatch import (
    DEFAULT_WORKING_DIRECTORY,
    environment_problem,
    job_id_in,
    refusal,
    sbatch_command,
    sbatch_input,
)
from neocloud.services.slurm.slurmrestd import (
    SlurmApi,
    SlurmError,
    SlurmJob,
    SlurmUnreachable,
)
from neocloud.services.slurm.types import CLUSTER, USABLE_STATES, namespace

TAIL_BYTES = 256 * 1024
"""Most bytes of a file that `tail` returns, however long its lines are."""


class ClusterJobs:
    """Implements `public.BatchJobs`."""

    def __init__(self, engine: Engine, store: Store, access: SlurmAccess) -> None:
        self._engine = engine
        self._store = store
        self._access = access

    @classmethod
    def of(cls, dependencies: Dependencies) -> "ClusterJobs":
        return cls(dependencies.engine, dependencies.store, SlurmAccess.of(dependencies))

    async def submit(self, cluster_id: str, job: NewJob) -> int:
        await self._require_ready(cluster_id)
        options = [
            "--parsable",
            f"--chdir={DEFAULT_WORKING_DIRECTORY}",
            f"--job-name={job.name}",
            *job.options,
        ]
        problem = environment_problem(job.environment)
        if problem:
            raise JobRefused(problem)
        command = sbatch_command(options, job.arguments)
        stdin = sbatch_input(job.environment, job.script)
        try:
            result = await self._access.run_in_login_shell(cluster_id, command, stdin=stdin)
        except EngineError as error:
            raise ClusterUnreachable(f"the login node does not answer: {error}") from error
        if result.exit_code:
            raise JobRefused(refusal(result.stderr))
        try:
            return job_id_in(result.stdout)
        except ValueError as error:
            raise JobRefused(f"{error}; look at /usr/bin/sbatch on the login node") from error

    async def jobs(self, cluster_id: str) -> Sequence[BatchJob]:
        async with self._slurm(cluster_id) as slurm:
            jobs = await slurm.jobs()
        seen = await self._engine.observe(namespace(cluster_id))
        addresses = {pod.reference.name: pod.ip or "" for pod in seen.pods}
        return [_batch_job(job, addresses) for job in sorted(jobs, key=lambda each: each.id)]

    async def cancel(self, cluster_id: str, job_id: int) -> None:
        async with self._slurm(cluster_id) as slurm:
            if any(job.id == job_id and not job.has_ended for job in await slurm.jobs()):
                await slurm.cancel_job(job_id)

    async def tail(self, cluster_id: str, path: str, lines: int) -> str:
        script = 'tail -n "$1" -- "$2" | tail -c "$3"'
        command = ["/bin/sh", "-c", script, "tail", str(lines), path, str(TAIL_BYTES)]
        result = await self.run(cluster_id, command)
        return result.stdout.decode(errors="replace")

    async def run(
        self, cluster_id: str, command: Sequence[str], *, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> CommandResult:
        try:
            result = await self._access.run_in_login_shell(
                cluster_id, command, max_output_bytes=max_output_bytes
            )
        except EngineError as error:
            raise ClusterUnreachable(f"the login node does not answer: {error}") from error
        return CommandResult(result.exit_code, result.stdout, result.stderr)

    @asynccontextmanager
    async def _slurm(self, cluster_id: str) -> AsyncIterator[SlurmApi]:
        await self._require_ready(cluster_id)
        try:
            async with self._access.api(cluster_id) as slurm:
                yield slurm
        except SlurmUnreachable as error:
            raise ClusterUnreachable(f"Slurm does not answer: {error}") from error
        except SlurmError as error:
            raise JobRefused(str(error)) from error

    async def _require_ready(self, cluster_id: str) -> None:
        row = await self._store.read(lambda tx: tx.get(cluster_id))
        if row is None or row.kind != CLUSTER:
            raise ClusterUnreachable(f"there is no cluster {cluster_id}")
        if row.state not in USABLE_STATES:
            raise ClusterUnreachable(f"cluster {row.name} is {row.state}, not READY")


def _batch_job(job: SlurmJob, addresses: dict[str, str]) -> BatchJob:
    node = job.nodes[0] if job.nodes else ""
    return BatchJob(
        id=job.id,
        name=job.name,
        state=job.state,
        has_ended=job.has_ended,
        reason="" if job.reason == "None" else job.reason,
        node=node,
        address="" if job.has_ended else addresses.get(node, ""),
        started_at=job.started_at,
        exit_code=job.exit_code,
        output_path=job.output_path,
    )
