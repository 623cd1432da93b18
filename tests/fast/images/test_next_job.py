"""The image's `next-job`: after a slurmctld that was killed, no job gets the number of another."""

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import ROOT

NEXT_JOB = ROOT / "images/slurm/rootfs/usr/local/lib/neocloud/next-job"
TIME = 1_800_000_000


def next_job(
    folder: Path, *, saved: int | None, batch: Sequence[int] = (), accounting: str = "exit 1"
) -> str:
    """Return its output beside files of Slurm 24.11 and an accounting that answers with a shell command."""
    state = folder / "slurmctld"
    for number in batch:
        (state / f"hash.{number % 10}" / f"job.{number}").mkdir(parents=True)
    state.mkdir(exist_ok=True)
    if saved is not None:
        header = struct.pack(">I17sHQI", 17, b"PROTOCOL_VERSION\0", 42 << 8, TIME, saved)
        (state / "job_state").write_bytes(header + bytes(8))
        os.utime(state / "job_state", (TIME, TIME))
    sacct = folder / "sacct"
    sacct.write_text(f'#!/bin/sh\necho "$*" >{folder}/asked\n{accounting}\n')
    sacct.chmod(0o755)
    variables = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CONTROLLER_STATE": str(folder)}
    done = subprocess.run([NEXT_JOB], env=variables, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize(
    ("saved", "batch", "accounting", "said"),
    [
        (8, [5, 7], "printf '5\\n6\\n7\\n'", ""),  # it ended well: the state knows them all
        (6, [5, 7], "printf '5\\n6\\n7\\n'", "8\n"),
        (6, [5], "printf '5\\n6\\n'", "7\n"),  # srun leaves no files
        (6, [5, 10, 9], "exit 1", "11\n"),  # accounting is away
        (6, [5], "exit 1", ""),
        (None, [], "exit 1", ""),  # a new cluster
        (None, [1], "echo 1", "2\n"),  # killed before its first state was saved
        (6, [5], "printf '67000000\\n99999999999999999999\\n-7\\n8.batch\\nx9\\n'", ""),
    ],
)
def test_the_next_job_gets_a_number_that_none_had(
    tmp_path: Path, saved: int | None, batch: list[int], accounting: str, said: str
) -> None:
    assert next_job(tmp_path, saved=saved, batch=batch, accounting=accounting) == said


def test_accounting_is_asked_only_for_jobs_since_the_state_was_saved(tmp_path: Path) -> None:
    """A cluster may have millions of older ones."""
    next_job(tmp_path, saved=6)
    moment = subprocess.run(
        ["date", "-d", f"@{TIME - 60}", "+%FT%T"], capture_output=True, text=True, check=True, timeout=10
    )
    assert f"--starttime={moment.stdout.strip()} " in (tmp_path / "asked").read_text()


def test_a_state_that_is_no_state_gives_no_number_away(tmp_path: Path) -> None:
    (tmp_path / "slurmctld").mkdir()
    (tmp_path / "slurmctld" / "job_state").write_bytes(b"short")
    assert next_job(tmp_path, saved=None, batch=[3], accounting="echo 4") == "5\n"
