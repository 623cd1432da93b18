"""Sharing out of tests among the workers of pytest-xdist.

`make test` runs all tiers but `long` in one pytest: one worker builds the images and takes the tests that
share a Slurm cluster, another one the emulator's, a third those that start clusters, machines or clouds, each
in sequence, and whichever is free served models and the rest. The first is as long as the whole run was, so
what needs no shared cluster is not in it. Clouds beside each other have address ranges of their own.
"""

from collections import OrderedDict

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.tiers import REAL, is_below

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
    "served models": (
        *(
            f"tests/e2e/inference/test_{name}.py"
            for name in ("dataset", "documentation", "evaluation", "openai_clients", "serving", "tuning")
        ),
        *("tests/e2e/test_bucket_mounts.py", "tests/e2e/test_fleet.py"),
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
FIRST = ("shared cluster", "emulator", "own clouds", "served models", "podman")
"""Groups that start before all others, in this order: those with clouds wait for the images, which the first
one builds, and the other workers take those before that need none."""


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((name for name, paths in GROUPS.items() if is_below(file, paths)), file)


def rank_of(name: str, tests: int) -> tuple[int, int]:
    """Return the key that sorts groups and files, first to run first.

    Files with real parts hold few tests that may take a minute each, so they do not come last: a worker takes
    the next file before its last two tests have ended, and the other worker would wait for it.
    """
    groups = sorted(GROUPS, key=lambda group: FIRST.index(group) if group in FIRST else len(FIRST))
    if name in GROUPS:
        return groups.index(name), 0
    return len(groups) + (0 if is_below(name, REAL) else 1), -tests


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
