"""Batch jobs of clusters, for users and for other services: submit, list, cancel, run on the login node.

slurmrestd takes a job's script but ignores its #SBATCH lines, so a submission runs the real `sbatch` on the
login node, which takes any script that Slurm takes (rfd 0007). Everything else goes through slurmrestd. Slurm
is the only record of jobs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from neocloud.core.service import Dependencies
from neocloud.core.untrusted.files import whole_lines
from neocloud.engines.base import MAX_OUTPUT_BYTES, CommandInterrupted, EngineError, ExecResult
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.job_output import OutputRefused, Piece, read_output
from neocloud.services.slurm.slurm_records import SlurmJob
from neocloud.services.slurm.slurmrestd import SlurmApi
from neocloud.services.slurm.types import (
    CONTROL_PLANE_USER,
    CONTROL_PLANE_USER_ID,
    DEFAULT_WORKING_DIRECTORY,
    BatchJob,
    ClusterUnreachable,
    CommandResult,
    JobRefused,
    NewJob,
    PrintedText,
    SubmissionUnknown,
)

TAIL_BYTES = 256 * 1024
"""Most bytes of a file that `tail` returns, however long its lines are."""
_NOTHING = Piece(0, 0, b"")
MAX_REPLY_BYTES = 2000
"""Length of the end of sbatch's output that is read or shown."""

SUBMISSION_PREFIX = "neocloud:"
"""The comment of a job that a service submitted starts with it; its token follows."""

_SUBMIT = """
variables=()
while IFS= read -r -d "" each && [ -n "$each" ]; do variables+=("$each"); done
folder=$(mktemp -d) || exit 1
script=$folder/$1
cat >"$script" && cd -- "$2" || { rm -rf "$folder"; exit 1; }
options=$3; shift 3
set -- "$(type -P sbatch)" "${@:1:options}" "$script" "${@:options+1}"
(
    for each in "${variables[@]}"; do export "$each"; done
    exec "$@"
) </dev/null
code=$?; rm -rf "$folder"; exit $code
"""
"""$1 is the name of the script's file, which is the job's default name, $2 the default working directory, $3
the number of sbatch options that follow; the rest are the script's arguments. Standard input has each
NAME=value and a NUL after it, one more NUL, and the script."""

CHECK_LOGIN_NODE = (
    "Its programs were changed, or something prints in the profile of its shell: look on the login node."
)

_JOB_ID = re.compile(rb"(?:^|\n)([0-9]{1,10})(;[^\n]*)?\s*$")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEERS_PROGRAMS = re.compile(
    r"LD_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|MALLOC_.*|GLIBC_TUNABLES"
    r"|ENV|BASH_.*|BASHOPTS|SHELLOPTS|PS4|IFS|PYTHON(HOME|STARTUP|INSPECT)|PERL5(OPT|LIB)"
)
"""Names that make the loader, the C library or an interpreter run code before the first line of a program.
A job's script sets them itself where it needs them; then they reach nothing but the job."""


class EnvironmentRefused(JobRefused):
    """A job may not set this variable."""


class UnexpectedReply(JobRefused):
    """sbatch succeeded, but its output is not its own."""


class ClusterJobs:
    """Implements `public.BatchJobs`."""

    def __init__(self, access: SlurmAccess) -> None:
        self._access = access

    @classmethod
    def of(cls, dependencies: Dependencies) -> "ClusterJobs":
        return cls(SlurmAccess.of(dependencies))

    async def submit(self, cluster_id: str, job: NewJob) -> int:
        await self._access.ready_cluster(cluster_id)
        problem = environment_problem(job.environment)
        if problem:
            raise EnvironmentRefused(problem)
        if not job.script.startswith("#!"):
            raise JobRefused('must start with a "#!" line, for example "#!/bin/bash"')
        options = ["--parsable"]  # an option wins over the script's #SBATCH lines
        if job.working_directory:
            options.append(f"--chdir={job.working_directory}")
        if job.name:
            options.append(f"--job-name={job.name}")
        if job.submission:
            options.append(f"--comment={SUBMISSION_PREFIX}{job.submission}")
        command = sbatch_command([*options, *job.options], job.arguments, job.file_name)
        stdin = sbatch_input(job.environment, job.script)
        try:
            result = await self._execute(cluster_id, command, stdin=stdin)
        except ClusterUnreachable as error:
            if isinstance(error.__cause__, CommandInterrupted):
                raise SubmissionUnknown(
                    f"the login node did not say whether it took the job: {error}"
                ) from error
            raise
        if result.exit_code:
            raise JobRefused(refusal(result.stderr))
        try:
            return job_id_in(result.stdout)
        except ValueError as error:
            raise UnexpectedReply(f"{error}. {CHECK_LOGIN_NODE}") from error

    async def jobs(self, cluster_id: str) -> Sequence[BatchJob]:
        async with self._access.ready_api(cluster_id) as slurm:
            jobs = await slurm.jobs()
        observed = await self._access.observe(cluster_id)
        addresses = {pod.reference.name: pod.ip or "" for pod in observed.pods}
        return [_batch_job(job, addresses) for job in sorted(jobs, key=lambda each: each.id)]

    async def all_jobs(self, cluster_id: str) -> Sequence[SlurmJob]:
        """Return the jobs in the queue and in the accounting database, oldest first."""
        async with self._access.ready_api(cluster_id) as slurm:
            jobs = {job.id: job for job in await slurm.finished_jobs()}
            jobs.update({job.id: job for job in await slurm.jobs()})
        return [jobs[job_id] for job_id in sorted(jobs)]

    async def active_jobs(self, cluster_id: str) -> Sequence[SlurmJob]:
        """Return the jobs that wait or run, oldest first."""
        async with self._access.ready_api(cluster_id) as slurm:
            jobs = await slurm.jobs()
        return sorted((job for job in jobs if not job.has_ended), key=lambda job: job.id)

    async def find(self, cluster_id: str, job_id: int) -> SlurmJob | None:
        async with self._access.ready_api(cluster_id) as slurm:
            return await find_job(slurm, job_id)

    async def cancel(self, cluster_id: str, job_id: int) -> None:
        async with self._access.ready_api(cluster_id) as slurm:
            job = await slurm.job(job_id)
            if job is not None and not job.has_ended and job.user_id == CONTROL_PLANE_USER_ID:
                await slurm.cancel_job(job_id)

    async def tail(self, cluster_id: str, job_id: int, lines: int) -> PrintedText:
        piece, _ = await self._own_output(cluster_id, job_id, -TAIL_BYTES)
        return PrintedText(_last_lines(piece.data, lines), piece.offset + len(piece.data))

    async def printed(self, cluster_id: str, job_id: int, offset: int) -> PrintedText:
        piece, has_ended = await self._own_output(cluster_id, job_id, offset)
        if not piece.size:
            return PrintedText("", offset)
        if piece.size < offset:
            offset = 0
            piece, has_ended = await self._own_output(cluster_id, job_id, offset)
        is_end = offset + len(piece.data) >= piece.size
        data = piece.data if has_ended and is_end else whole_lines(piece.data, TAIL_BYTES)
        return PrintedText(data.decode(errors="replace"), offset + len(data))

    async def _own_output(self, cluster_id: str, job_id: int, offset: int) -> tuple[Piece, bool]:
        """Return a piece of what a job of the control plane printed, and whether the job has ended."""
        job = await self.find(cluster_id, job_id)
        if job is None or job.user != CONTROL_PLANE_USER:
            return _NOTHING, True
        try:
            piece = await read_output(self, cluster_id, job, offset, TAIL_BYTES)
        except OutputRefused:
            return _NOTHING, job.has_ended
        return piece or _NOTHING, job.has_ended

    async def output(self, cluster_id: str, job: SlurmJob, offset: int, most_bytes: int) -> Piece | None:
        """Return a piece of what a job printed, read as its user; None while there is no file. A negative
        offset counts from the end. Raises OutputRefused, and ClusterUnreachable."""
        return await read_output(self, cluster_id, job, offset, most_bytes)

    async def run(
        self, cluster_id: str, command: Sequence[str], *, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> CommandResult:
        result = await self._execute(cluster_id, command, max_output_bytes=max_output_bytes)
        return CommandResult(result.exit_code, result.stdout, result.stderr)

    async def _execute(
        self,
        cluster_id: str,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        try:
            return await self._access.run_in_login_shell(
                cluster_id, command, stdin=stdin, max_output_bytes=max_output_bytes
            )
        except EngineError as error:
            raise ClusterUnreachable(f"the login node does not answer: {error}") from error


async def find_job(slurm: SlurmApi, job_id: int) -> SlurmJob | None:
    """Return a job from the queue, else from the accounting database."""
    return await slurm.job(job_id) or await slurm.finished_job(job_id)


def environment_problem(environment: Mapping[str, str]) -> str | None:
    """Return what is wrong with the first variable that a job may not set; None when all are allowed."""
    for name, value in environment.items():
        if not _ENVIRONMENT_NAME.fullmatch(name):
            return f'"{name}" is not a valid name of an environment variable'
        if _STEERS_PROGRAMS.fullmatch(name):
            return f'"{name}" changes what programs load before they start; export it in the script instead'
        if "\0" in value:
            return f'the value of "{name}" has a NUL character in it, which no variable can hold'
    return None


def sbatch_command(
    options: Sequence[str],
    arguments: Iterable[str],
    file_name: str = "job",
    directory: str = DEFAULT_WORKING_DIRECTORY,
) -> list[str]:
    """Return the command for the login node. It reads `sbatch_input` on standard input: every user of the
    machine can read arguments, and the environment often holds keys."""
    count = str(len(options))
    return ["/bin/bash", "-l", "-c", _SUBMIT, "sbatch", file_name, directory, count, *options, *arguments]


def sbatch_input(environment: Mapping[str, str], script: str) -> bytes:
    """Return the standard input of the command. `environment_problem` has accepted the environment."""
    variables = [f"{name}={value}\0" for name, value in sorted(environment.items())]
    return "".join([*variables, "\0", script]).encode()


def refusal(stderr: bytes) -> str:
    """Return sbatch's own message, shortened."""
    return stderr[-MAX_REPLY_BYTES:].decode(errors="replace").strip()


def job_id_in(output: bytes) -> int:
    """Return the job id in the output of `sbatch --parsable`. Raises ValueError: a tenant may replace it."""
    found = _JOB_ID.search(output[-MAX_REPLY_BYTES:])
    if not found:
        raise ValueError("sbatch did not print a job id")
    return int(found[1])


def _last_lines(data: bytes, lines: int) -> str:
    return "".join(data.decode(errors="replace").splitlines(keepends=True)[-max(1, lines) :])


def _batch_job(job: SlurmJob, addresses: Mapping[str, str]) -> BatchJob:
    node = job.nodes[0] if job.nodes else ""
    is_marked = job.comment.startswith(SUBMISSION_PREFIX)
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
        user_id=job.user_id,
        submission=job.comment.removeprefix(SUBMISSION_PREFIX) if is_marked else "",
    )
