"""A tenth of the iterations in `make test`, all of them in `make test-long`."""

import subprocess

import pytest

from tests import ROOT
from tests.iterations import VARIABLE, iterations


@pytest.mark.parametrize(("whole", "share"), [(50, 5), (100_000, 10_000), (4, 1), (51, 6)])
def test_a_tenth_and_never_none(whole: int, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert iterations(whole) == share
    assert iterations(whole, least=2) == max(2, share)
    monkeypatch.setenv(VARIABLE, "all")
    assert iterations(whole, least=2) == whole


def test_the_long_verb_does_all_iterations_and_selects_the_tests_that_have_them() -> None:
    said = subprocess.check_output(
        ["make", "--dry-run", "--assume-old=.venv/.stamps/test", "test-long"], cwd=ROOT, text=True
    )
    [line] = [line for line in said.splitlines() if "/pytest" in line]
    assert line.startswith(f"{VARIABLE}=all ") and '-m "long or repeated"' in line
