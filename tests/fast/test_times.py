"""The sums of wall and processor time that a run prints."""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests import ROOT
from tests.scheduling import GROUPS, group_of
from tests.times import PROPERTY, GroupTimes


def report(
    nodeid: str, when: Literal["setup", "call", "teardown"], seconds: float, used: float = 0.0
) -> pytest.TestReport:
    properties = [(PROPERTY, used)] if when == "teardown" else []
    return pytest.TestReport(
        nodeid, (nodeid, 0, ""), {}, "passed", None, when, (), seconds, user_properties=properties
    )


def test_times_are_summed_by_group_and_by_file() -> None:
    clock = iter([0.0, 10.0, 15.0, 20.0, 140.0, 200.0]).__next__
    times = GroupTimes(group_of, tuple(GROUPS), clock)
    for each in (
        report("tests/real/emulator/test_a.py::test_one", "setup", 4),
        report("tests/real/emulator/test_a.py::test_one", "teardown", 1, 0.5),
        report("tests/real/emulator/test_b.py::test_two", "teardown", 2, 1.5),
        report("tests/fast/cli/test_c.py::test_three", "teardown", 20, 30),
    ):
        times.pytest_runtest_logreport(each)
    words = [" ".join(line.split()) for line in times.lines()]
    assert words[1:3] == ["tests/fast/cli (other files) 1 20.0 30.0 2 to 2", "emulator 2 7.0 2.0 0 to 0"]
    assert words[4:7] == [
        "tests/fast/cli/test_c.py 1 20.0 30.0 2 to 2",
        "tests/real/emulator/test_a.py 1 5.0 0.5 0 to 0",
        "tests/real/emulator/test_b.py 1 2.0 1.5 0 to 0",
    ]
    assert words[7].startswith("In 200 s the tests used 32 s of processor time")


def test_processor_time_includes_that_of_children(tmp_path: Path) -> None:
    """A run of pytest reports both."""
    (tmp_path / "test_used.py").write_text(
        "import subprocess, sys, time\n"
        "LOOP = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "def test_used():\n"
        "    subprocess.run([sys.executable, '-c', LOOP], check=True)\n"
        "    while time.process_time() < 0.1: pass\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from tests.times import end_of, start_of\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_protocol(item):\n"
        "    start_of(item)\n"
        "    return (yield)\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_makereport(item, call):\n"
        "    if call.when == 'teardown': end_of(item)\n"
        "def pytest_runtest_logreport(report):\n"
        "    for name, value in report.user_properties: print(f'\\n{name}={value}')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    output = subprocess.run(
        [*command, "--rootdir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    used = next(line for line in output.splitlines() if line.startswith(PROPERTY))
    assert float(used.partition("=")[2]) >= 0.3
