"""JobService.Diagnose: look at all ranks of a running job from a step of that job.

Files and processes of a job are its user's. So the program that looks at them, and py-spy, which it starts,
run as that user, in a step beside the job's own (`srun --overlap`): a link or a made-up process leads to
nothing that the user could not read without us, and only numbers and names of functions come back.
"""

import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from neocloud.core import contract
from neocloud.core.service import Call
from neocloud.engines.base import EngineError, ExecResult, OutputTooLarge
from neocloud.messages.neocloud.slurm.v1 import (
    DiagnoseJobRequest,
    RankFinding,
    RankState,
)
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.api.check import probe_program
from neocloud.services.slurm.api.diagnosis import (
    SHOWN_FRAMES,
    Diagnosis,
    DiagnosisFinding,
    RankView,
    diagnose,
)
from neocloud.services.slurm.api.findings import BadReport, last_line
from neocloud.services.slurm.api.rank_reports import MOST_NODES, MOST_OUTPUT_BYTES, rank_reports
from neocloud.services.slurm.slurm_records import SlurmJob
from neocloud.services.slurm.slurmrestd import SlurmApi

STEP_SECONDS = 90
CALL_SECONDS = STEP_SECONDS + 30.0
OUR_REASONS = ("neocloud: ", "[neocloud] ")
"""Prefixes of the reasons of drains that the cloud itself made."""

_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,63}\$?", re.IGNORECASE)

_LOOK = """
user=$1 job=$2 nodes=$3 seconds=$4 bytes=$5
group=$(id -g -- "$user") || exit 1
exec setpriv --reuid="$user" --regid="$group" --init-groups --reset-env /bin/bash -c '
    umask 077; cd / && folder=$(mktemp -d "$HOME/.neocloud-diagnose.XXXXXX") || exit 1
    trap "rm -rf \\"$folder\\"" EXIT
    head -c "$4" >"$folder/ranks.py" && cat >"$folder/py-spy" && chmod 700 "$folder/py-spy" || exit 1
    timeout "$3" srun --overlap --jobid="$1" --nodes="$2" --ntasks="$2" --ntasks-per-node=1 --mpi=none \\
        --input=none --job-name=neocloud-diagnose --gres=none --cpu-bind=none --chdir=/ \\
        python3 -I "$folder/ranks.py" "$folder/py-spy"
' look "$job" "$nodes" "$seconds" "$bytes"
"""
"""The first shell is the tenant's root, who alone can become the job's user; it starts nothing else."""


def py_spy() -> Path | None:
    """Return the program of the pinned package, beside the Python that runs the control plane."""
    found = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    return Path(found) if found else None


async def diagnose_job(
    call: Call, request: DiagnoseJobRequest, job: SlurmJob, slurm: SlurmApi
) -> tuple[Sequence[RankState], Sequence[RankFinding], Sequence[str]]:
    """Return what was found of a job. Raises ApiError for one that does not run."""
    _require_running(request, job)
    program = py_spy()
    if program is None:
        raise contract.unavailable(
            "py-spy is missing beside the control plane's Python; install its package."
        )
    result = await _look(call, request.cluster_id, job, program.read_bytes())
    if result.exit_code:
        text = last_line(result.stderr, result.exit_code)
        raise contract.bad_state(
            request.cluster_id, f"The ranks of job {job.id} could not be looked at: {text}"
        )
    try:
        reports = rank_reports(result.stdout, job.nodes)
    except BadReport as error:
        text = f"The report of job {job.id}'s ranks cannot be used: {error}."
        raise contract.bad_state(request.cluster_id, text) from error
    found = diagnose(reports, await _suspects(slurm, job.nodes))
    return _messages(found)


def _require_running(request: DiagnoseJobRequest, job: SlurmJob) -> None:
    if job.state != "RUNNING" or not job.nodes:
        text = f"Job {job.id} is {job.state}; only a running job has ranks to look at."
        raise contract.bad_state(request.cluster_id, text)
    if len(job.nodes) > MOST_NODES:
        raise contract.bad_state(
            request.cluster_id,
            f"Job {job.id} has {len(job.nodes)} nodes; at most {MOST_NODES} are looked at.",
        )
    if not _USER.fullmatch(job.user):
        raise contract.bad_state(request.cluster_id, f"Job {job.id} is of a user whose name cannot be used.")


async def _look(call: Call, cluster_id: str, job: SlurmJob, program: bytes) -> ExecResult:
    probe = probe_program("ranks.py")
    arguments = [job.user, str(job.id), str(len(job.nodes)), str(STEP_SECONDS), str(len(probe))]
    try:
        return await SlurmAccess.of(call.dependencies).run_in_login_shell(
            cluster_id,
            ["/bin/bash", "-l", "-c", _LOOK, "look", *arguments],
            stdin=probe + program,
            timeout_seconds=CALL_SECONDS,
            max_output_bytes=MOST_OUTPUT_BYTES,
        )
    except OutputTooLarge as error:
        raise contract.bad_state(cluster_id, f"The report of job {job.id}'s ranks is too long.") from error
    except EngineError as error:
        raise contract.unavailable(f"The login node does not answer: {error}") from error


async def _suspects(slurm: SlurmApi, nodes: Sequence[str]) -> Mapping[str, str]:
    """Return why the cloud itself took nodes of the job out: Slurm's reasons that are not the tenant's."""
    return {
        node.name: node.reason[:200]
        for node in await slurm.nodes()
        if node.name in nodes and node.reason.startswith(OUR_REASONS)
    }


def _messages(found: Diagnosis) -> tuple[Sequence[RankState], Sequence[RankFinding], Sequence[str]]:
    return [_rank(view) for view in found.ranks], [_finding(each) for each in found.findings], found.not_run


def _rank(view: RankView) -> RankState:
    return RankState(
        rank=view.report.rank,
        node=view.report.node,
        steps=len(view.report.times),
        last_step=view.last_step,
        step_seconds=view.step_seconds,
        own_seconds=view.own_seconds,
        z=view.z,
        place=view.place,
        collective=view.collective,
        is_still=view.is_still,
        stack=[frame.place for frame in view.stack[:SHOWN_FRAMES]],
    )


def _finding(finding: DiagnosisFinding) -> RankFinding:
    return RankFinding(kind=finding.kind, ranks=finding.ranks, nodes=finding.nodes, message=finding.message)
