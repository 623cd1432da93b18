"""Tiers of tests, and how pytest-xdist shares them out among its workers.

fast   nothing outside of Python and short-lived tools: `make test-fast`
real   Podman, PostgreSQL, a browser, network namespaces, clients and servers in processes of their own
e2e    clouds with Slurm, QEMU or vLLM
long   what takes a minute or more by its nature: `make test-long`, and no other verb

`make test` runs the first three in one pytest: one worker builds the images and takes the tests that share a
Slurm cluster, another one the emulator's, and whichever is free those that start clusters, machines or
clouds, each in sequence, and the rest. Clouds beside each other have address ranges of their own.
"""

import faulthandler
import gc
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Generator
from functools import cache

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.leftovers import mark_run, remove_leftovers

E2E = (
    "tests/e2e",
    "tests/conformance/test_dstack.py",
    "tests/conformance/test_skypilot.py",
    "tests/images/machines",
    "tests/objects/oci/test_more_programs.py",
    "tests/objects/s3/test_more_programs.py",
    "tests/security/test_machine_sandbox.py",
    "tests/security/test_slurm_escape.py",
)
REAL = (
    "tests/cli/test_machine.py",
    "tests/cli/test_storage_mount.py",
    "tests/conformance/openai",
    "tests/emulator",
    "tests/engines/podman/test_lan.py",
    "tests/engines/podman/test_named_namespaces.py",
    "tests/guides/test_on_emulator.py",
    "tests/guides/test_teams_cloud.py",
    "tests/fleet/test_outside_audit.py",
    "tests/gateway/metering/test_crash.py",
    "tests/gateway/test_other_machines.py",
    "tests/gateway/compiled/test_real_compiler.py",
    "tests/gateway/openai_files/test_batch_survives_kill.py",
    "tests/gateway/pages",
    "tests/gateway/routing/test_responses.py",
    "tests/gateway/api/test_bad_input.py",
    "tests/gateway/routing/test_faults.py",
    "tests/objects/s3/test_programs.py",
    "tests/recipes/test_finetune.py",
    "tests/recipes/test_lm_eval_tasks.py",
    "tests/recipes/test_tuning_job.py",
    "tests/security/test_fuzz.py",
    "tests/security/test_fuzz_gateway.py",
    "tests/security/test_gateway_capacity.py",
    "tests/security/test_gateway_connections.py",
    "tests/security/test_gateway_hosts.py",
    "tests/security/test_gateway_requests.py",
    "tests/security/test_gateway_rights.py",
    "tests/security/test_gateway_source.py",
    "tests/security/test_home.py",
    "tests/security/test_secrets.py",
    "tests/server/test_killed_server.py",
    "tests/services/billing/test_pricing_policies.py",
    "tests/services/slurm/test_kill.py",
    "tests/test_wheel.py",
)
REAL_FIXTURES = {"busybox_root", "metrics_program", "postgres"}
"""Whatever uses one of these is of the tier `real`, too, and so is what has the parameter "postgresql"."""
LONG = (
    "tests/conformance/test_dstack.py",
    "tests/conformance/test_skypilot.py",
    "tests/e2e/inference/test_dataset.py",
    "tests/e2e/inference/test_evaluation.py",
    "tests/e2e/inference/test_serving.py::test_an_engine_that_is_killed",
    "tests/e2e/inference/test_tuning.py::test_a_job_on_two_nodes",
    "tests/e2e/inference/test_tuning.py::test_a_job_whose_pod_is_killed",
    "tests/e2e/test_cluster_backup.py",
    "tests/e2e/test_active_checks.py",
    "tests/e2e/test_cluster_people.py::test_a_drained_login_node",
    "tests/e2e/test_cluster_people.py::test_users_come_and_go_by_the_hundred",
    "tests/e2e/test_container_faults.py::test_a_step_that_waits_for_a_registry",
    "tests/e2e/test_controllers.py::test_one",
    "tests/e2e/test_controllers.py::test_two",
    "tests/e2e/test_elastic.py",
    "tests/e2e/test_maintenance.py",
    "tests/e2e/test_outside_audit.py::test_the_audit_of_a_machine",
    "tests/e2e/test_preemption.py",
    "tests/e2e/test_training.py",
    "tests/e2e/test_topology.py::test_a_job_that_fits_into_one_block",
    "tests/e2e/test_two_clouds.py",
    "tests/emulator/test_terraform.py",
    "tests/emulator/test_upgrade.py::test_a_release",
    "tests/emulator/test_upgrade.py::test_an_upgrade_that_a_power_cut_ended",
    "tests/fleet/test_long_walk.py",
    "tests/images/machines/test_boot.py::test_a_full_machine",
    "tests/images/machines/test_cloud_config.py",
    "tests/core/reconcile/test_crash.py::test_fifty_crashes",
    "tests/objects/test_crash.py::test_killed_at_every_step",
    "tests/services/fleet/test_kill.py",
    "tests/services/slurm/test_kill.py",
    "tests/objects/oci/test_more_programs.py",
    "tests/objects/s3/test_more_programs.py",
)
"""What the ids of these tests begin with. Most are of the tier `e2e`, too (decision 0028)."""
GROUPS = {
    "own clouds": (
        *(
            f"tests/e2e/test_{name}.py"
            for name in (
                *("ai_workloads", "bad_machine", "cluster_backup", "cluster_on_subnet", "lifecycle"),
                *("machines", "maintenance", "outside_audit", "preemption", "two_clouds"),
            )
        ),
        "tests/security/test_slurm_escape.py",
    ),
    "shared cluster": ("tests/e2e",),
    "machines": (
        "tests/conformance/test_dstack.py",
        "tests/conformance/test_skypilot.py",
        "tests/images/machines",
        "tests/security/test_machine_sandbox.py",
    ),
    "podman": ("tests/engines/podman", "tests/security/test_egress.py"),
    "studio": ("tests/conformance/openai",),
    "pages": ("tests/gateway/pages",),
    "emulator": ("tests/emulator",),
    "metrics": ("tests/monitoring",),
    "active checks": ("tests/fleet/active",),
    "databases": (
        "tests/core/store",
        "tests/core/reconcile/test_reservations.py",
        "tests/core/reconcile/test_databases.py",
    ),
}
"""Files that one worker runs in sequence: they share a part that is slow to start, or disturb each other.
The first that names a file or its folder counts; every other file is its own group."""
FIRST = ("shared cluster", "emulator", "podman", "own clouds")
"""Groups that start before all others, in this order: those with clouds wait for the images, which the first
one builds, and the other workers take those before that need none."""

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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: a search for garbage in it finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a worker whose test goes on after its timeout: print the stacks of its threads.

    pytest-xdist names the test. pytest-timeout interrupts it once: where its fixtures then hang, too, or it
    hangs when it runs again, nothing else would.
    """
    end_later(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


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
    if not is_worker and not session.config.option.collectonly:
        remove_leftovers()


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
        if item.nodeid.startswith(LONG):
            item.add_marker("long")


def pytest_collection_finish() -> None:
    """Ten thousand tests stay until the end: leave them out of every later search for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def tier_of(item: pytest.Item) -> str:
    file = item.nodeid.partition("::")[0]
    if _is_below(file, E2E):
        return "e2e"
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.values() if callspec else ()
    fixtures = REAL_FIXTURES & set(getattr(item, "fixturenames", ()))
    has_database = any(value == "postgresql" for value in parameters if isinstance(value, str))
    return "real" if fixtures or has_database or _is_below(file, REAL) else "fast"


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((name for name, paths in GROUPS.items() if _is_below(file, paths)), file)


@cache  # asked of each test, and again of each group whenever a worker takes one: half a minute in all
def _is_below(file: str, paths: tuple[str, ...]) -> bool:
    return any(file == path or file.startswith(f"{path}/") for path in paths)


def rank_of(name: str, tests: int) -> tuple[int, int]:
    """Return the key that sorts groups and files, first to run first.

    Files with real parts hold few tests that may take a minute each, so they do not come last: a worker takes
    the next file before its last two tests have ended, and the other worker would wait for it.
    """
    groups = sorted(GROUPS, key=lambda group: FIRST.index(group) if group in FIRST else len(FIRST))
    if name in GROUPS:
        return groups.index(name), 0
    return len(groups) + (0 if _is_below(name, REAL) else 1), -tests


class GroupScheduling(LoadScopeScheduling):
    """Groups, `FIRST` before others, then files with real parts, then the other files; most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        def rank(unit: tuple[str, dict[str, bool]]) -> tuple[int, int]:
            name, tests = unit
            return rank_of(name, len(tests))

        self.workqueue = OrderedDict(sorted(self.workqueue.items(), key=rank))
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    return GroupScheduling(config, log)  # type: ignore[arg-type]
