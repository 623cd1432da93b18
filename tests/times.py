"""Wall and processor time of each group of tests, printed at the end of a run.

Processor time is that of the process that runs the tests and of its children that ended: not of containers
and machines, whose parents are other processes. The last line compares it with that of the whole host.
"""

import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PROPERTY = "processor_seconds"
"""Also in the file of `--junit-xml`."""
SLOWEST_FILES = 10
_used_before = pytest.StashKey[float]()


def processor_seconds() -> float:
    """Return the processor time of this process and its children that ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def start_of(item: pytest.Item) -> None:
    item.stash[_used_before] = processor_seconds()


def end_of(item: pytest.Item) -> None:
    """Add what the test used since `start_of` to its reports; a test that runs again has one sum."""
    used = processor_seconds() - item.stash[_used_before]
    item.user_properties[:] = [each for each in item.user_properties if each[0] != PROPERTY]
    item.user_properties.append((PROPERTY, round(used, 3)))


@dataclass
class Times:
    """The sum of some tests; `start` and `end` are seconds since the start of the run."""

    tests: int = 0
    wall: float = 0.0
    processor: float = 0.0
    start: float = float("inf")
    end: float = 0.0

    def add(self, other: "Times") -> None:
        self.tests += other.tests
        self.wall += other.wall
        self.processor += other.processor
        self.start, self.end = min(self.start, other.start), max(self.end, other.end)

    def row(self, name: str) -> str:
        minutes = f"{self.start / 60:4.0f} to {self.end / 60:3.0f}"
        return f"{name:<56} {self.tests:6} {self.wall:8.1f} {self.processor:10.1f} {minutes:>12}"


HEADER = f"{'':<56} {'tests':>6} {'wall s':>8} {'processor s':>10} {'minutes':>11}"


class GroupTimes:
    """Collects the times of tests, and prints their sums by group and by file."""

    def __init__(
        self,
        group_of: Callable[[str], str],
        groups: tuple[str, ...],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group_of, self._groups, self._now = group_of, groups, now
        self._begin, self._busy = now(), _busy_seconds()
        self._files: defaultdict[str, Times] = defaultdict(Times)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        end = self._now() - self._begin
        is_last = report.when == "teardown"
        used = sum(
            float(str(value)) for name, value in report.user_properties if is_last and name == PROPERTY
        )
        file = report.nodeid.partition("::")[0]
        self._files[file].add(Times(is_last, report.duration, used, end - report.duration, end))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._files:
            return
        terminalreporter.write_sep("=", "wall and processor time")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> Iterator[str]:
        yield HEADER
        groups: defaultdict[str, Times] = defaultdict(Times)
        for file, times in self._files.items():
            group = self._group_of(f"{file}::")
            groups[group if group in self._groups else f"{_folder_of(file)} (other files)"].add(times)
        for name, times in sorted(groups.items(), key=lambda each: -each[1].wall):
            yield times.row(name)
        yield f"The {SLOWEST_FILES} slowest files"
        slowest = sorted(self._files.items(), key=lambda each: -each[1].wall)[:SLOWEST_FILES]
        for file, times in slowest:
            yield times.row(file)
        wall, busy = self._now() - self._begin, _busy_seconds() - self._busy
        used = sum(times.processor for times in self._files.values())
        yield (
            f"In {wall:.0f} s the tests used {used:.0f} s of processor time,"
            f" the host {busy:.0f} of {wall * (os.cpu_count() or 1):.0f} s."
        )


def _folder_of(file: str) -> str:
    return "/".join(file.split("/")[:3]) if file.count("/") > 2 else "/".join(file.split("/")[:2])


def _busy_seconds() -> float:
    """Return the processor time that all processes of this host have used."""
    user, nice, system, _idle, _waiting, *interrupts = (
        int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:8]
    )
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
