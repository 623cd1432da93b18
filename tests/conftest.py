"""Rules for all tests: tiers, time limits, reports, and how the workers of pytest-xdist share them."""

import faulthandler
import gc
import os
import signal
import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import hypothesis
import jwt.algorithms
import pytest

from neocloud.engines.podman.storage.mounts import mounts_below
from tests.leftovers import forget, mark_run, record_folder, remove_leftovers
from tests.scheduling import GROUPS, GroupScheduling, group_of
from tests.tiers import tier_of
from tests.times import GroupTimes, end_of, start_of

FAST_SECONDS = 300
"""How long a test of the tier `fast` may take; for the others see `timeout` in pyproject.toml."""
END_TEST_SECONDS, END_SECONDS = 60.0, 300.0
"""How long the end of a test may take, and that of a process of tests."""
SLOW_SECONDS = 10.0
STDERR = pytest.StashKey[int]()
"""That of the run: while a test runs, 2 is the file that its output is kept in."""

hypothesis.settings.register_profile(
    "same everywhere",
    derandomize=True,  # the same examples in every run
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same everywhere")


def pytest_configure(config: pytest.Config) -> None:
    """Tests send signals that end a program: a shell that starts pytest in the background may ignore them."""
    config.stash[STDERR] = os.dup(2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    mark_run()
    _load_keys_quickly()


def _load_keys_quickly() -> None:
    """Spare each sign-in by a key file 40 ms: PyJWT has an RSA key that the tests made checked again."""
    module: Any = jwt.algorithms
    module.load_pem_private_key = partial(module.load_pem_private_key, unsafe_skip_rsa_key_validation=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while tests are collected: collected tests stay, so a search finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a worker whose test runs after its timeout: print the stacks of its threads.

    pytest-xdist names the test. pytest-timeout interrupts it once: where its fixtures then hang, too, or it
    hangs when it runs again, nothing else would.
    """
    end_later(item)
    start_of(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":
        end_of(item)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Pytest's own plugin has just cancelled it."""
    if isinstance(node, pytest.Item):
        end_later(node)


def end_later(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput"):
        seconds = 2 * seconds_of(item) + END_TEST_SECONDS
        faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[STDERR])


def seconds_of(item: pytest.Item) -> float:
    """Return how long a test may take with its fixtures."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Clouds of runs that were cut off would disturb this one."""
    is_worker = hasattr(session.config, "workerinput")
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not is_worker:
        session.config.pluginmanager.register(ReportsAtOnce(terminal))
        session.config.pluginmanager.register(GroupTimes(group_of, tuple(GROUPS)))
    if not is_worker and not session.config.option.collectonly:
        remove_leftovers()


@pytest.fixture(scope="session", autouse=True)
def recorded_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Record the folder: the next run unmounts what is still mounted at the end."""
    folder = tmp_path_factory.getbasetemp()
    record_folder(folder)
    yield
    if not mounts_below(folder):
        forget(folder)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that does not end once its tests have is ended, and says what it was waiting for."""
    faulthandler.dump_traceback_later(END_SECONDS, exit=True, file=session.config.stash[STDERR])


class ReportsAtOnce:
    """Print at once which test failed and why, and which was slow: a run that is cut off has no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._start = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failed = report.outcome in {"failed", "rerun"}
        if not failed and report.duration < SLOW_SECONDS:
            return
        now = (time.monotonic() - self._start) / 60
        words = f"{now:.0f} min: {report.outcome} ({report.when}, {report.duration:.0f} s): {report.nodeid}"
        if failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            words += ": " + " ".join((crash.message if crash else report.longreprtext).split())
        self._terminal.ensure_newline()
        self._terminal.write_line(words[:300])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why tests failed that passed when they ran again (`make test`)."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"first run of {report.nodeid}")
        report.toterminal(terminalreporter._tw)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = tier_of(item)
        if tier != "fast":
            item.add_marker(tier)
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FAST_SECONDS))


def pytest_collection_finish() -> None:
    """Ten thousand tests stay until the end: leave them out of every later search for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    return GroupScheduling(config, log)  # type: ignore[arg-type]
