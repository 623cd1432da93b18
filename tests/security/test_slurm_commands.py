"""What the control plane executes in a cluster goes through the image's `enter-root`: a tenant's rights."""

import ast
import re
from pathlib import Path

import pytest

from neocloud.engines.base import ExecResult
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.reconcile.access import SlurmAccess
from neocloud.services.slurm.render import ENTER_ROOT
from neocloud.services.slurm.resources import JobRefused, NewJob
from neocloud.services.slurm.sbatch import environment_problem

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "src/neocloud/services/slurm"
INSIDE = ROOT / "images/slurm/inside"
ROOTFS = ROOT / "images/slurm/rootfs"


class RecordingEngine:
    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    async def exec(self, pod, command, **options) -> ExecResult:
        self.commands.append(list(command))
        return ExecResult(0, b"", b"")


async def test_every_command_begins_with_the_helper() -> None:
    engine = RecordingEngine()
    access = SlurmAccess(engine, None)  # pyright: ignore[reportArgumentType]
    await access.run_in_login_shell("slurmcluster-e00one", ["tail", "log"])
    await access.run_in_shared_root("slurmcluster-e00one", "worker-0", ["python3", "-"])
    assert engine.commands == [[ENTER_ROOT, "tail", "log"], [ENTER_ROOT, "python3", "-"]]


def test_nothing_else_executes_in_a_cluster() -> None:
    callers = {
        path.relative_to(SLURM).as_posix()
        for path in SLURM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "exec"
    }
    assert callers == {"reconcile/access.py"}


def test_nobody_builds_a_chroot_command() -> None:
    """Neither the control plane, nor a script that runs in the daemons' root."""
    sources = [*(ROOT / "src").rglob("*.py"), *(path for path in ROOTFS.rglob("*") if path.is_file())]
    assert [path.name for path in sources if re.search(r"\bchroot\b", path.read_text())] == []


def test_scripts_touch_the_shared_root_by_shared_root_alone() -> None:
    """A path below /jail in a script of the daemons' root is one that users may have swapped for a link."""
    lines = [
        f"{path.name}: {line.strip()}"
        for path in ROOTFS.rglob("*")
        if path.is_file()
        for line in path.read_text().splitlines()
        if "/jail" in line and not line.lstrip().startswith("#")
    ]
    assert lines == [
        "sshd_config: ChrootDirectory /jail",
        'check-node: mountpoint -q /jail || { echo "shared root is not mounted" && return; }',
        "check-node: left=$(timeout 2 df --output=avail -m /jail | tail -1)",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "GCONV_PATH",
        "BASH_ENV",
        "ENV",
        "BASH_FUNC_x",
        "PYTHONSTARTUP",
    ],
)
def test_a_job_sets_no_variable_that_steers_programs_before_they_start(name: str) -> None:
    problem = environment_problem(["PATH", name])
    assert problem and f'"{name}"' in problem


def test_ordinary_variables_are_taken() -> None:
    assert (
        environment_problem(["PATH", "HOME", "PYTHONPATH", "NCCL_DEBUG", "OMP_NUM_THREADS", "WANDB_MODE"])
        is None
    )


async def test_jobs_of_other_services_are_held_to_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RecordingEngine()
    jobs = ClusterJobs(engine, None, SlurmAccess(engine, None))  # pyright: ignore[reportArgumentType]

    async def ready(cluster_id: str) -> None:
        pass

    monkeypatch.setattr(jobs, "_require_ready", ready)
    job = NewJob(
        name="x", script="#!/bin/sh\n", options=(), arguments=(), environment={"LD_PRELOAD": "/x.so"}
    )
    with pytest.raises(JobRefused, match="LD_PRELOAD"):
        await jobs.submit("slurmcluster-e00one", job)
    assert engine.commands == []
