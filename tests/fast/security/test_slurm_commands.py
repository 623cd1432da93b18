"""Commands of the control plane in a cluster go through the image's `enter-root`: a tenant's rights."""

import ast
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neocloud.core.contract import ApiError
from neocloud.engines.base import ExecResult
from neocloud.services.compute.public import preset
from neocloud.services.slurm import api as slurm_api
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.api import check
from neocloud.services.slurm.batch_jobs import (
    MAX_REPLY_BYTES,
    ClusterJobs,
    environment_problem,
    job_id_in,
    sbatch_command,
    sbatch_input,
)
from neocloud.services.slurm.render import ENTER_ROOT
from neocloud.services.slurm.types import JobRefused, NewJob
from neocloud.services.slurm.worker_agents import INSTALL, PodAgents
from tests import ROOT

SLURM = ROOT / "src/neocloud/services/slurm"
INSIDE = ROOT / "images/slurm/inside"
ROOTFS = ROOT / "images/slurm/rootfs"


IN_PODS_WITHOUT_TENANTS = {
    "api/backup.py": "accounting",
    "reconcile/controllers.py": "controllers",
    "reconcile/elastic.py": "controllers",
    "worker_nodes.py": "controllers",
}
"""These run a program of the image in pods where no tenant has a process."""


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
    assert callers == {"access.py", "worker_agents.py", *IN_PODS_WITHOUT_TENANTS}


async def test_in_workers_only_the_agent_runs_beside_it_with_the_images_own_programs() -> None:
    """Tenants have processes in workers, too, so programs run by absolute paths, without the folders of
    modules in the environment, and with no word of a tenant in the command.
    """
    engine = RecordingEngine()
    agents = PodAgents(engine)  # pyright: ignore[reportArgumentType]
    await agents.ask("c", "worker-0", after=3, of="$(id)", trusted=["a", "b"], inventory="0f", seconds=1)
    await agents.install("c", "worker-0", b"program", 1)
    asked, installed = engine.commands
    assert asked[:3] == ["/usr/bin/python3", "-I", "/run/neocloud/agent/agent.pyz"]
    assert asked[-8:-2] == ["--after", "3", "--of", "$(id)", "--trusted", "a,b"], "words, and no shell"
    assert installed[:2] == ["/bin/sh", "-c"] and installed == [*INSTALL]
    assert not any("jail" in word for word in (*asked, *installed))


def files_of_the_image() -> list[Path]:
    """Return the files of the daemons' root; without what Python has compiled of them in other tests."""
    found = sorted(ROOTFS.rglob("*"))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def test_nobody_builds_a_chroot_command() -> None:
    """Neither the control plane, nor a script that runs in the daemons' root."""
    sources = [*(ROOT / "src").rglob("*.py"), *files_of_the_image()]
    assert [path.name for path in sources if re.search(r"\bchroot\b", path.read_text())] == []


def test_scripts_touch_the_shared_root_by_shared_root_alone() -> None:
    """A path below /jail in a script of the daemons' root is one that users may have swapped for a link."""
    lines = [
        f"{path.name}: {line.strip()}"
        for path in files_of_the_image()
        for line in path.read_text().splitlines()
        if "/jail" in line and not line.lstrip().startswith("#")
    ]
    assert lines == [
        "sessions_config: ChrootDirectory /jail",
        'check-node: mountpoint -q /jail || { echo "node problem: shared root is not mounted" && return; }',
        "check-node: left=$(timeout 2 df --output=avail -m /jail | tail -1)",
        "check-node: ! awk '$5 == \"/jail\" {options = $NF} END {exit options !~ /(^|,)ro(,|$)/}'"
        " /proc/self/mountinfo ||",
        "keep-agent: mounts='\"/jail\"'",
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
    problem = environment_problem({"PATH": "", name: ""})
    assert problem and f'"{name}"' in problem


def test_ordinary_variables_are_taken() -> None:
    names = ["PATH", "HOME", "PYTHONPATH", "NCCL_DEBUG", "OMP_NUM_THREADS", "WANDB_MODE"]
    assert environment_problem(dict.fromkeys(names, "x")) is None


def test_a_value_cannot_hold_another_variable() -> None:
    """Variables go to the login node with a NUL after each."""
    problem = environment_problem({"A": "1\0LD_PRELOAD=/x.so"})
    assert problem and "NUL" in problem


async def test_jobs_of_other_services_are_held_to_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RecordingEngine()
    access = SlurmAccess(engine, None)  # pyright: ignore[reportArgumentType]
    api = ClusterJobs(access)

    async def ready(cluster_id: str) -> None:
        pass

    monkeypatch.setattr(access, "ready_cluster", ready)
    job = NewJob(
        name="x", script="#!/bin/sh\n", options=(), arguments=(), environment={"LD_PRELOAD": "/x.so"}
    )
    with pytest.raises(JobRefused, match="LD_PRELOAD"):
        await api.submit("slurmcluster-e00one", job)
    assert engine.commands == []


# The environment of a job


async def test_no_argument_holds_the_environment_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine reads arguments."""
    sent = []

    class Engine(RecordingEngine):
        async def exec(self, pod, command, *, stdin=b"", **options) -> ExecResult:
            sent.append((" ".join(command), stdin))
            return ExecResult(0, b"7\n", b"")

    async def ready(cluster_id: str) -> None:
        pass

    engine = Engine()
    access = SlurmAccess(engine, None)  # pyright: ignore[reportArgumentType]
    batch = ClusterJobs(access)
    monkeypatch.setattr(access, "ready_cluster", ready)
    environment = {"API_KEY": "hunter2"}
    job = NewJob(name="x", script="#!/bin/sh\n", options=(), arguments=("one",), environment=environment)
    assert await batch.submit("slurmcluster-e00one", job) == 7
    ((command, stdin),) = sent
    assert "one" in command and "hunter2" not in command
    assert b"API_KEY=hunter2\0" in stdin


def test_sbatch_gets_options_script_arguments_and_environment(tmp_path: Path) -> None:
    """The command as the login node's shell runs it, around a stand-in for sbatch."""
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        f'printf "%s\\n" "$@" >{tmp_path}/arguments; /bin/cat "$3" >{tmp_path}/script\n'
        f"pwd >{tmp_path}/folder\n"
        f'/usr/bin/env -0 >{tmp_path}/environment; echo "42;cluster"; exit 3\n'
    )
    program.chmod(0o755)
    (tmp_path / ".bash_profile").write_text(
        f"PATH={tmp_path}/bin:$PATH\nFROM_PROFILE=1\nexport FROM_PROFILE\n"
    )
    script = "#!/bin/bash\necho a line\n\nno newline at the end"
    environment = {
        "A": "two\nlines and $HOME `id`",
        "EMPTY": "",
        "script": "mine",
        "options": "mine",
        "PATH": "/nowhere",
        "UID": "0",
    }
    ran = subprocess.run(
        sbatch_command(["--parsable", "--chdir=/x y"], ["first", "second one"], "-my $(job)", str(tmp_path)),
        input=sbatch_input(environment, script),
        capture_output=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert (ran.returncode, job_id_in(ran.stdout)) == (3, 42), ran.stderr
    given = (tmp_path / "arguments").read_text().splitlines()
    assert given[:2] + given[3:] == ["--parsable", "--chdir=/x y", "first", "second one"]
    assert (tmp_path / "script").read_text() == script
    assert Path(given[2]).name == "-my $(job)" and not Path(given[2]).parent.exists()
    assert (tmp_path / "folder").read_text().strip() == str(tmp_path)
    seen = dict(each.split("=", 1) for each in (tmp_path / "environment").read_text().split("\0") if each)
    expected = {name: value for name, value in environment.items() if name != "UID"} | {"FROM_PROFILE": "1"}
    assert {name: seen.get(name) for name in expected} == expected
    assert seen.keys() - expected.keys() <= {"HOME", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "UID", "_"}


# What tenants' programs print


@pytest.mark.parametrize("output", [b"", b"\n", b"hello", b"-1", b"99999999999", b"1 2", b"\xff", b"7\nbye"])
def test_no_number_of_a_job_is_an_error_of_its_own(output: bytes) -> None:
    with pytest.raises(ValueError, match="did not print a job id"):
        job_id_in(output)


def test_a_profile_that_prints_does_not_hide_the_number() -> None:
    assert job_id_in(b"welcome\n" * MAX_REPLY_BYTES + b"12;bank\n") == 12


class Printing:
    """A cluster whose programs print this."""

    def __init__(self, stdout: bytes, stderr: bytes = b"", exit_code: int = 0) -> None:
        self.result = ExecResult(exit_code, stdout, stderr)

    async def run_in_login_shell(self, *_: object, **__: object) -> ExecResult:
        return self.result

    run_in_shared_root = run_in_login_shell


LOGS = [
    b"",
    b"x y\n",
    b"1\n",
    b"1 2 3\n",
    b"-5 0\n",
    b"9" * 30 + b" 0\n",
    b"9" * 5000 + b" 1\n",
    b"\xff \xfe\n",
]


@pytest.mark.parametrize("output", [*LOGS, b"5 0\n" + b"y" * (slurm_api.LOG_CHUNK_BYTES + 1)])
async def test_a_log_that_is_none_is_refused(output: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class PrintedJobs(ClusterJobs):
        async def find(self, *_: object, **__: object) -> Any:
            job = {"id": 7, "user": "mona", "user_id": 5000, "output_path": "/home/log", "has_ended": True}
            return SimpleNamespace(**job, state="COMPLETED")

    printed = PrintedJobs(Printing(output))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(slurm_api, "_jobs", lambda _: printed)
    request = SimpleNamespace(cluster_id="slurmcluster-e00one", job_id=7, offset=0)
    with pytest.raises(ApiError, match="did not read the output of job 7"):
        await slurm_api.read_log(SimpleNamespace(), request)  # pyright: ignore[reportArgumentType]


HEALTHY = (
    '"cpus": 1, "memory_mib": 1, "gpus": null, "write_mib_per_second": 1, "read_mib_per_second": 1,'
    ' "tmp_device": 1, "shm_device": 2, "time": 1'
)
BAD_JSON = [b"", b"no", b"\xff", b"[]", b"[" * 100_000, b"{}", b"9" * 5000, b"null", b'{"results": [{}]}']
BAD_PROBES = [
    *BAD_JSON,
    *(
        ("{" + HEALTHY.replace(*change) + "}").encode()
        for change in (
            ('"cpus": 1', '"cpus": "1"'),
            ('"cpus": 1', '"cpus": true'),
            ('"cpus": 1', '"cpus": NaN'),
            ('"time": 1', '"time": Infinity'),
            ('"time": 1', '"time": 1' + "0" * 400),
            ('"memory_mib": 1', '"memory_mib": -1'),
            ("null", "[1, 2]"),
            ("null", '["' + "x" * 1000 + '"]'),
            ("null", '["a\\nb"]'),
            ("null", '"gpu"'),
            ("null", str(["x"] * 100).replace("'", '"')),
        )
    ),
]


@pytest.mark.parametrize("output", BAD_PROBES)
async def test_a_report_that_is_none_fails_its_node(output: bytes) -> None:
    findings, _ = await check._node_findings(
        Printing(output),  # pyright: ignore[reportArgumentType]
        "slurmcluster-e00one",
        {"worker-0": preset("cpu-e2", "2vcpu-8gb")},
        {},
    )
    assert [(each.check, each.verdict) for each in findings] == [("slurm", "fail"), ("probe", "fail")]
    assert "report cannot be used" in findings[1].message and len(findings[1].message) < 200


@pytest.mark.parametrize(("stderr", "said"), [(b"", "exit code 9"), (b"x" * 10**6, "x" * 300)])
async def test_a_probe_that_fails_says_why(stderr: bytes, said: str) -> None:
    findings, _ = await check._node_findings(
        Printing(b"", stderr, 9),  # pyright: ignore[reportArgumentType]
        "slurmcluster-e00one",
        {"worker-0": preset("cpu-e2", "2vcpu-8gb")},
        {},
    )
    assert findings[1].message == f"The node does not answer: {said}"


@pytest.mark.parametrize("output", [*BAD_JSON, b'{"node": "worker-0"}', b'{"node": "x\\n"}'])
async def test_what_a_job_reports_of_its_limits_is_not_believed_when_it_is_no_report(output: bytes) -> None:
    node = SimpleNamespace(takes_jobs=True)
    (found,) = await check._confinement(
        Printing(output),  # pyright: ignore[reportArgumentType]
        "slurmcluster-e00one",
        {"worker-0": preset("cpu-e2", "2vcpu-8gb")},
        {"worker-0": node},  # pyright: ignore[reportArgumentType]
        {},
    )
    assert found.verdict == "not_run" and "report of the job cannot be used" in found.message


ROW = '{"size_mib": 1, "right": true, "bus_mib_per_second": 1, "milliseconds": 1}'


@pytest.mark.parametrize(
    "output",
    [
        *BAD_JSON,
        *(
            text.encode()
            for text in (
                '{"backend": "mpi", "ranks": 2, "results": [' + ROW + "]}",
                '{"backend": ["nccl"], "ranks": 2, "results": [' + ROW + "]}",
                '{"backend": "nccl", "ranks": 2, "results": []}',
                '{"backend": "nccl", "ranks": 2, "results": [' + ",".join([ROW] * 100) + "]}",
                '{"backend": "nccl", "ranks": "2", "results": [' + ROW + "]}",
                '{"backend": "nccl", "ranks": 2, "results": [' + ROW.replace("true", "1") + "]}",
                '{"backend": "nccl", "ranks": 2, "results": [' + ROW.replace("1,", '"1",') + "]}",
            )
        ),
    ],
)
async def test_a_measurement_that_is_none_fails(output: bytes) -> None:
    node = SimpleNamespace(takes_jobs=True)
    (found,) = await check._all_reduce(
        Printing(output),  # pyright: ignore[reportArgumentType]
        "slurmcluster-e00one",
        ["worker-0", "worker-1"],
        {"worker-0": node, "worker-1": node},  # pyright: ignore[reportArgumentType]
    )
    assert found.verdict == "fail" and "report of the job cannot be used" in found.message
