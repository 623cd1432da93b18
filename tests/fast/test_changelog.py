"""CHANGELOG.md is cut into releases, newest first, and `neo --version` names the one at its top."""

import re
from datetime import datetime

import pytest

from neocloud import __version__
from neocloud.cli.main import run
from neocloud.core.releases import Release
from tests import ROOT

PAGE = (ROOT / "CHANGELOG.md").read_text()
SECTIONS = re.findall(r"^## (\d+\.\d+\.\d+) — (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE)
LINES_OF_A_RELEASE = 60


def test_each_release_has_a_number_a_date_and_few_lines() -> None:
    assert len(SECTIONS) == len(re.findall(r"^## ", PAGE, re.MULTILINE)) >= 2
    numbers = [tuple(map(int, number.split("."))) for number, _, _ in SECTIONS]
    assert numbers == sorted(set(numbers), reverse=True)
    for _, date, _ in SECTIONS[1:]:
        assert datetime.strptime(date, "%d %B %Y")
    assert not [number for number, _, text in SECTIONS if len(text.splitlines()) > LINES_OF_A_RELEASE]


def test_the_version_is_that_of_the_release_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    number, date, _ = SECTIONS[0]
    assert __version__ == (f"{number}.dev0" if date == "unreleased" else number)
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"neo {__version__}\n"


def test_the_version_names_a_release_that_others_compare_with() -> None:
    assert str(Release.of(__version__)) == ".".join(__version__.split(".")[:2])
