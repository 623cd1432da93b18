"""`neo fleet simulate --compare`, and the script that CI calls: both need no cloud."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neocloud.cli.main import run
from tests import ROOT

pytestmark = pytest.mark.slow

QUICK = (
    "fleet",
    "simulate",
    "--gpus",
    "256",
    "--days",
    "10",
    "--rate",
    "20",
    "--spares",
    "8",
    "--seeds",
    "3",
)
STOPS_DRAINS = "limits:\n  smallest_cluster_limit: 0\n  cluster_drains: 0\n  cluster_out: 0\n"


@pytest.fixture(autouse=True)
def nobody(user_folders: Path) -> None:
    """There is no cloud and no profile."""


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(STOPS_DRAINS)
    return str(path)


def test_the_table_shows_intervals_and_that_it_is_simulated(
    bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*QUICK, "--compare", bad]) == 0
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("ettr"))
    assert row.endswith("worse") and " to -" in row
    assert "Simulated: this release before, bad.yaml after; 3 pairs" in shown


def test_a_change_for_the_worse_fails_when_asked(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--compare", bad, "--fail-if-worse"]) == 1
    assert "less time is useful" in capsys.readouterr().err
    assert run([*QUICK, "--against", bad, "--fail-if-worse", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["evidence"] == "simulated" and document["before"] == "bad.yaml"
    assert document["seeds"] == [1, 2, 3] and document["limits_before"]["cluster_out"] == 0
    assert {each["name"]: each["verdict"] for each in document["differences"]}["ettr"] == "better"


def test_files_that_cannot_be_used_are_refused(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("limits:\n  cooldown: 2h\n")
    assert run([*QUICK, "--compare", str(wrong)]) == 2
    assert "wrong.yaml, line 2: 'cooldown' is not a limit" in capsys.readouterr().err
    assert run([*QUICK, "--compare", str(tmp_path / "none.yaml")]) == 2
    assert run([*QUICK, "--compare", bad, "--compare", bad]) == 2
    wrong.write_bytes(b"\xff")
    assert run([*QUICK, "--compare", str(wrong)]) == 2
    assert "not a text file" in capsys.readouterr().err


def test_the_script_of_ci_compares_a_tree_with_a_commit(tmp_path: Path) -> None:
    """In a copy of the two files with a history of its own."""
    room = "src/neocloud/fleet/policy"
    for name in (f"{room}/policy.yaml", f"{room}/limits.py", "scripts/compare-policy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)

    def script() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, tmp_path / "scripts/compare-policy", "HEAD", *QUICK[2:]]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "before")
    same = script()
    assert same.returncode == 0 and "Neither the fault policy nor the limits differ" in same.stdout
    limits = tmp_path / "src/neocloud/fleet/policy/limits.py"
    text = limits.read_text()
    for line in (
        "cluster_drains: float = 0.05",
        "cluster_out: float = 0.15",
        "smallest_cluster_limit: int = 2",
    ):
        assert line in text
        text = text.replace(line, line.rpartition("= ")[0] + "= 0")
    limits.write_text(text)
    worse = script()
    assert worse.returncode == 1 and "less time is useful" in worse.stderr, worse.stderr
    assert "limits-HEAD.yaml before" in worse.stdout
