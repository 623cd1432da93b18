"""The tables of tiers name files that exist, and leftovers of dead test runs are found."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers
from tests.conftest import E2E, GROUPS, REAL

ROOT = Path(__file__).parents[1]
NAMED = sorted({*E2E, *REAL, *(path for group in GROUPS.values() for path in group)})


@pytest.mark.parametrize("path", NAMED)
def test_what_the_tables_name_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_a_home_of_a_killed_run_is_removed_and_one_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []
    monkeypatch.setattr(leftovers, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(leftovers, "_remove", removed.append)
    own, other = tmp_path / "own", tmp_path / "other"
    leftovers.record(own)
    script = (
        "import pathlib, sys, time; from tests import leftovers;"
        " leftovers.RECORDS = pathlib.Path(sys.argv[1]); leftovers.record(pathlib.Path(sys.argv[2]));"
        " print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "records"), str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as run:
        assert run.stdout is not None and run.stdout.readline()
        assert leftovers.remove_leftovers() == []
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    assert leftovers.remove_leftovers() == removed == [other]
    assert leftovers.remove_leftovers() == []
    leftovers.forget(own)
