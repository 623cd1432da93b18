"""Progress without a terminal: a log has one line for each change, and none for what does not change."""

from dataclasses import dataclass

import pytest

from neocloud.cli.output import counted
from neocloud.cli.progress import StepsView, duration, stage


def test_a_detail_is_printed_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    with stage("Instance web") as show:
        for detail in ("", "its pod is starting", "its pod is starting", "", "the guest runs"):
            show(detail)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:-1] == ["Instance web ...", "  its pod is starting", "  the guest runs"]
    assert lines[-1].startswith("Instance web: done in")


@dataclass
class Step:
    name: str
    outcome: str
    message: str = ""


def test_a_change_shows_only_the_steps_that_had_something_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    view = StepsView("Scale lab: 3 x worker", is_change=True)
    with view.shown():
        view.update([Step("Create the network", "ok"), Step("Wait for the workers", "waiting")])
        view.update([Step("Create the network", "ok"), Step("Wait for the workers", "ok")])
    title, line = capsys.readouterr().err.splitlines()
    assert title == "Scale lab: 3 x worker ..." and line.endswith("Wait for the workers")


def test_one_is_not_many() -> None:
    assert [counted(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]


def test_a_duration_has_the_two_units_that_matter() -> None:
    minute, hour = 60, 3600
    given = (0.84, 12, 2 * minute, 2 * hour - 1, 2 * hour, 3 * hour + 5 * minute, 48 * hour - 1, 74 * hour)
    assert [duration(seconds) for seconds in given] == [
        "0.8 s",
        "12 s",
        "2 min 00 s",
        "119 min 59 s",
        "2 h 00 min",
        "3 h 05 min",
        "47 h 59 min",
        "3 d 02 h",
    ]
