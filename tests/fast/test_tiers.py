"""The tables of tiers name files that exist, and leftovers of dead test runs are found."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neocloud.engines.podman.storage.mounts import mount_tmpfs, mounts_below
from tests import ROOT, leftovers
from tests.scheduling import GROUPS, rank_of
from tests.tiers import TIERS, tier_of_file

NAMED = sorted({path for group in GROUPS.values() for path in group})


@pytest.mark.parametrize("path", NAMED)
def test_what_the_tables_name_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_a_tier_imports_from_those_before_it() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {later}"
        for number, tier in enumerate(TIERS)
        for path in (ROOT / "tests" / tier).rglob("*.py")
        for later in TIERS[number + 1 :]
        if re.search(rf"^(from|import) tests\.{later}\b", path.read_text(), re.M)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_test_outside_of_the_folders_of_tiers_is_refused() -> None:
    assert tier_of_file("tests/real/test_one.py::test_two") == "real"
    with pytest.raises(pytest.UsageError, match="tests/test_one.py"):
        tier_of_file("tests/test_one.py::test_two")


def test_files_with_few_long_tests_do_not_run_last() -> None:
    files = {
        "tests/fast/core/test_wire.py": 90,
        "tests/real/security/test_fuzz.py": 1,
        "own clouds": 80,
        "podman": 200,
        "emulator": 150,
    }
    files |= {"tests/fast/client/test_tokens.py": 10, "tests/real/recipes/test_finetune.py": 5}
    assert sorted(files, key=lambda name: rank_of(name, files[name])) == [
        *("emulator", "own clouds", "podman"),
        *("tests/real/recipes/test_finetune.py", "tests/real/security/test_fuzz.py"),
        *("tests/fast/core/test_wire.py", "tests/fast/client/test_tokens.py"),
    ]


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


def test_what_a_killed_run_left_mounted_is_unmounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its folder could not be removed: by the next run, nor by pytest, which keeps three."""
    monkeypatch.setattr(leftovers, "_run", lambda command, variables: None)
    mount_tmpfs(tmp_path / "home" / "overlay" / "merged")
    with (tmp_path / "home" / "overlay" / "merged" / "in-use").open("w"):
        leftovers._remove(tmp_path / "home")
    assert mounts_below(tmp_path) == []


@pytest.mark.parametrize("is_ours", [True, False])
def test_runs_in_other_pid_namespaces_are_left_alone(tmp_path: Path, is_ours: bool) -> None:
    """A process of a run there has the mark of a process that is another one here, or none."""
    own = os.readlink("/proc/self/ns/pid")
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "pid").symlink_to(own if is_ours else "pid:[1]")
    mark = f"{os.getpid()}-{leftovers.began(os.getpid()) - 1}"
    (tmp_path / "environ").write_text(f"HOME=/root\0{leftovers.RUN}={mark}\0")
    assert leftovers._is_of_dead_run(tmp_path) == is_ours


def test_processes_of_runs_that_have_died_are_ended() -> None:
    began = leftovers.began(os.getpid())
    alive, dead = f"{os.getpid()}-{began}", f"{os.getpid()}-{began - 1}"
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with contextlib.ExitStack() as stack:
        ours, left, other = (
            stack.enter_context(subprocess.Popen(sleep, env={**os.environ, leftovers.RUN: mark}))
            for mark in (alive, dead, "")
        )
        for each in (ours, left, other):
            stack.callback(each.kill)
        leftovers.end_processes()
        assert left.wait(60) == -signal.SIGKILL
        assert not {ours.pid, other.pid} & leftovers.end_processes()
        assert ours.poll() is None and other.poll() is None
