"""The program that looks at a job's ranks, on real processes, with py-spy. The job is hostile."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from neocloud.services.slurm.api.diagnose import py_spy
from neocloud.services.slurm.api.rank_reports import MOST_LINE_BYTES, RankReport, rank_reports
from neocloud.testing.waiting import wait_until
from tests import ROOT

PROBE = ROOT / "src/neocloud/services/slurm/api/probes/ranks.py"
JOB = str(os.getpid())
"""Tests run beside each other."""
NODE = "worker-0"
RANK = """
import sys, time
def load_batch():
    open(sys.argv[1], "w").close()
    time.sleep(600)
load_batch()
"""
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process of the job; return when it runs its program."""
    started: list[subprocess.Popen[bytes]] = []

    def run(rank: int | str, command: Sequence[str] = (), **changes: Any) -> "subprocess.Popen[bytes]":
        ready = tmp_path / f"ready-{len(started)}"
        variables = {"SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank)}
        variables |= changes.pop("variables", {})
        full = [*(command or (sys.executable, "-c", RANK)), str(ready)]
        environment = {"PATH": os.environ["PATH"], **variables}
        process: subprocess.Popen[bytes] = subprocess.Popen(  # pyright: ignore[reportAssignmentType]
            full, cwd=tmp_path, env=environment, start_new_session=True, **changes
        )
        started.append(process)
        wait_until(ready.exists, "the rank runs")
        return started[-1]

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def look(**changes: str) -> list[RankReport]:
    variables = {"SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "7", "SLURMD_NODENAME": NODE, **changes}
    found = subprocess.run(
        [sys.executable, "-I", PROBE, py_spy() or "missing"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert len(found.stdout) < MOST_LINE_BYTES and not found.stderr
    return rank_reports(found.stdout, [NODE])


def write(folder: Path, rank: int, text: str) -> Path:
    path = folder / f"step-times-{JOB}" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def lines(count: int) -> str:
    rows = ({"step": number, "seconds": 1.5, "waited": 0.5, "more": "x"} for number in range(count))
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_ranks_are_found_with_their_stacks_and_step_times(start: Start, tmp_path: Path) -> None:
    start(0)
    start(1, variables={"NEOCLOUD_STEP_TIMES": str(tmp_path / "mine")})
    write(tmp_path, 0, lines(3) + '{"step": 3, "sec')
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rank-1.jsonl").write_text(lines(250))
    first, second = look()
    assert (first.rank, first.node, first.moved) == (0, NODE, False)
    assert [(time.step, time.own) for time in first.times] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert [frame.name for frame in first.stacks[0]] == ["load_batch", "<module>"] and len(first.stacks) == 3
    assert [time.step for time in second.times] == list(range(50, 250))


def test_a_launcher_and_its_helpers_are_no_ranks(start: Start) -> None:
    """The processes of one rank have its number in common; the outermost Python with it is the rank."""
    start(0)  # such as torchrun
    start(0, ["/bin/sh", "-c", 'touch "$0"; exec sleep 600'], variables={"RANK": "5"})
    rank = start(0, variables={"RANK": "5"})
    loader = f"import os, sys, time\nif os.fork(): time.sleep(600)\n{RANK}"
    start(0, [sys.executable, "-c", loader], variables={"RANK": "6"})
    found = look()
    assert [each.rank for each in found] == [5, 6]
    assert found[0].stacks[0][0].name == "load_batch" and rank.poll() is None
    assert found[1].stacks[0][0].name == "<module>", "not that of the child"


def test_processes_of_other_jobs_of_this_step_and_of_other_users_are_left_alone(
    start: Start, tmp_path: Path
) -> None:
    start(0, variables={"SLURM_JOB_ID": f"{JOB}0"})
    start(1, variables={"SLURM_STEP_ID": "7"})
    if os.geteuid() == 0:
        tmp_path.chmod(0o777)
        for parent in tmp_path.parents[:3]:
            parent.chmod(0o755)
        start(2, ["/usr/bin/python3", "-c", RANK], user=65534, group=65534, extra_groups=[])
    start(3)
    assert [each.rank for each in look()] == [3]


def test_a_file_of_step_times_that_is_a_link_a_pipe_or_a_folder_is_not_read(
    start: Start, tmp_path: Path
) -> None:
    for number in range(4):
        start(number)
    secret = tmp_path / "secret"
    secret.write_text(lines(5))
    folder = write(tmp_path, 0, "").parent
    (folder / "rank-0.jsonl").unlink()
    (folder / "rank-0.jsonl").symlink_to(secret)
    os.mkfifo(folder / "rank-1.jsonl")
    (folder / "rank-2.jsonl").mkdir()
    (folder / "rank-3.jsonl").symlink_to("/dev/zero")
    found = look()
    assert [len(each.times) for each in found] == [0, 0, 0, 0]
    assert all(any("step times" in why for why in each.why) for each in found)


def test_a_huge_file_is_read_at_its_end_and_hostile_lines_are_skipped(start: Start, tmp_path: Path) -> None:
    start(0)
    path = write(tmp_path, 0, "")
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no room
        file.seek(0, os.SEEK_END)
        rows = ["", "[" * 5000, '{"step": true, "seconds": 1}', '{"step": 1, "seconds": NaN}', "\x1b[2J", "7"]
        rows += [
            '{"step": 1e3, "seconds": 1}',
            '{"step": 8, "seconds": 1, "waited": 2}',
            '{"step": -1, "seconds": 1}',
        ]
        file.write("\n".join([*rows, '{"step": 9, "seconds": 1}', ""]).encode())
    (found,) = look()
    assert [(time.step, time.waited) for time in found.times] == [(9, None)]


@pytest.mark.parametrize("rank", ["-1", "1e3", "9" * 30, "", "0x1", "../0", "１"])
def test_a_rank_that_is_no_number_is_none(start: Start, rank: str) -> None:
    start(rank)
    assert look() == []


def test_a_process_that_is_no_python_has_no_stack_and_says_so(start: Start) -> None:
    start(0, ["/bin/sh", "-c", 'touch "$0"; sleep 600 & wait'])
    (found,) = look()
    assert not found.stacks and "it is not a Python process" in found.why


def test_the_job_goes_on_while_it_is_looked_at(start: Start, tmp_path: Path) -> None:
    program = (
        "import json, sys, time\nfile = open(sys.argv[1], 'w', buffering=1)\n"
        "for step in range(10**6):\n"
        "    print(json.dumps({'step': step, 'seconds': 0.01}), file=file)\n    time.sleep(0.01)\n"
    )
    folder = tmp_path / f"step-times-{JOB}"
    folder.mkdir()
    (folder / "rank-0.jsonl").symlink_to(tmp_path / "ready-0")
    start(0, [sys.executable, "-c", program])
    (folder / "rank-0.jsonl").unlink()
    os.link(tmp_path / "ready-0", folder / "rank-0.jsonl")
    (found,) = look()
    assert found.moved is True
