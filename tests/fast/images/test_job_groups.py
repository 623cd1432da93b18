"""Files written to the control group of a job: compiled from the image's own source, on a folder of files.

Where a machine has control groups of version 2, `neo slurm cluster check` shows that the kernel
takes it.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

HERE = Path(__file__).resolve().parent
INSIDE = ROOT / "images/slurm/inside"
FILES = ("memory.max", "memory.swap.max", "cpuset.cpus", "cgroup.procs", "cgroup.kill")


class Groups:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jobs"
        compiler = shutil.which("cc") or shutil.which("tcc")
        if compiler is None:
            pytest.skip("not_run: there is no C compiler")
        self.program = folder / "program"
        defined = f'-DGROUPS="{self.folder}"'
        command = [
            compiler,
            "-Wall",
            defined,
            f"-I{INSIDE}",
            "-o",
            self.program,
            HERE / "job_groups_program.c",
        ]
        subprocess.run(command, check=True)

    def run(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=10)
        return done.returncode, done.stdout.strip()

    def make(self, job: str, *files: str) -> Path:
        """Make the group as the kernel does: with its files."""
        group = self.folder / job
        group.mkdir(parents=True)
        for name in files:
            (group / name).touch()
        return group


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def test_without_a_parent_there_are_no_groups(groups: Groups) -> None:
    assert groups.run("make", "7", "64")[0] == 3 and not groups.folder.exists()


@pytest.mark.parametrize(
    ("mib", "limit"), [("64", str(64 << 20)), ("0", "max"), ("2000000", str(2_000_000 << 20))]
)
def test_a_job_is_limited_to_its_memory_without_swap(groups: Groups, mib: str, limit: str) -> None:
    group = groups.make("7", *FILES)
    assert groups.run("make", "7", mib)[0] == 0
    assert (group / "memory.max").read_text() == limit and (group / "memory.swap.max").read_text() == "0"


def test_a_kernel_without_swap_has_no_limit_of_it(groups: Groups) -> None:
    group = groups.make("7", "memory.max")
    assert groups.run("make", "7", "64")[0] == 0 and not (group / "memory.swap.max").exists()


def test_a_limit_that_cannot_be_set_is_told(groups: Groups) -> None:
    groups.make("7")
    assert groups.run("make", "7", "64")[0] != 0
    assert groups.run("write", "7", "cpuset.cpus", "2,3")[0] != 0
    assert groups.run("join", "8")[0] != 0


def test_a_task_joins_and_the_end_kills_what_is_left(groups: Groups) -> None:
    group = groups.make("7", *FILES)
    assert groups.run("write", "7", "cpuset.cpus", "2,3")[0] == groups.run("join", "7")[0] == 0
    assert (group / "cpuset.cpus").read_text() == "2,3" and (group / "cgroup.procs").read_text() == "0"
    assert groups.run("end", "7")[0] != 0, "a folder with files stays, unlike a group"
    assert (group / "cgroup.kill").read_text() == "1"
    groups.make("8")
    assert groups.run("end", "8")[0] == groups.run("end", "9")[0] == 0
    assert not (groups.folder / "8").exists()


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n", "2"),
        ("low 0\noom 3\noom_kill 0\n", "0"),
        ("oom_group_kill 5\n", "0"),
        ("", "0"),
    ],
)
def test_what_the_kernel_ended_for_memory_is_counted(groups: Groups, events: str, count: str) -> None:
    (groups.make("7") / "memory.events").write_text(events)
    assert groups.run("ended", "7") == (0, count)
    assert groups.run("ended", "8") == (0, "0")
