"""The image's `serve-jobs`: slurmd is started again beside steps that run; its container ends otherwise."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import ROOT

SERVE_JOBS = ROOT / "images/slurm/rootfs/usr/local/lib/neocloud/serve-jobs"


def start(folder: Path, *, slurmd: str, has_steps: bool) -> "subprocess.Popen[str]":
    """Run it with a shell script as slurmd, in a container whose steps are said to run or not."""
    programs = {
        "slurmd": f'trap "touch {folder}/stopped; exit 0" TERM\necho "$@" >>{folder}/started\n{slurmd}',
        "confine-daemon": 'exec "$@"',
        "pgrep": f'[ "$*" = "-x -U 0 slurmstepd" ] && exit {0 if has_steps else 1}; exit 2',  # of root alone
        "sleep": "exec /bin/sleep 0.05",
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    text = SERVE_JOBS.read_text().replace("/usr/sbin/slurmd", str(folder / "slurmd"))
    (folder / "serve-jobs").write_text(text.replace("/usr/local/lib/neocloud", str(folder)))
    variables = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "NODE_REPORTS_BOOTS": "yes"}
    command = ["bash", folder / "serve-jobs", "-N", "worker-0"]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)


def started(folder: Path) -> list[str]:
    return (folder / "started").read_text().splitlines() if (folder / "started").exists() else []


def wait_for_starts(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(started(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("end", ["exit 1", "kill -SEGV $$", "exit 0"])
def test_the_container_ends_with_slurmd_where_no_step_runs(tmp_path: Path, end: str) -> None:
    with start(tmp_path, slurmd=end, has_steps=False) as process:
        assert process.wait(20) == {"exit 1": 1, "exit 0": 0}.get(end, 128 + signal.SIGSEGV)
    assert started(tmp_path) == ["-D -b -N worker-0"]


def test_slurmd_is_started_again_where_steps_run_and_says_nothing_of_a_boot(tmp_path: Path) -> None:
    """Slurm would end jobs of a node that says that it has booted."""
    with start(tmp_path, slurmd="exit 1", has_steps=True) as process:
        wait_for_starts(tmp_path, 3)
        process.terminate()
        process.wait(20)
        assert process.stdout and "beside steps that run; it is started again" in process.stdout.read()
    assert started(tmp_path)[:3] == ["-D -b -N worker-0", *["-D -N worker-0"] * 2]


def test_who_stops_the_container_stops_slurmd_and_waits_for_it(tmp_path: Path) -> None:
    with start(tmp_path, slurmd="while :; do /bin/sleep 0.05; done", has_steps=True) as process:
        wait_for_starts(tmp_path, 1)
        process.terminate()
        assert process.wait(20) == 0
    assert (tmp_path / "stopped").exists() and len(started(tmp_path)) == 1
