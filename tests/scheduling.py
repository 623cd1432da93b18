"""Sharing out of tests among the workers of pytest-xdist.

`make test` runs all tiers but `long` in one pytest: one worker builds the images and takes the tests that
share a Slurm cluster, another one the emulator's, a third those that start clusters, machines or clouds, each
in sequence, and whichever is free served models and the rest. The first is as long as the whole run was, so
what needs no shared cluster is not in it. Clouds beside each other have address ranges of their own.
"""

from collections import OrderedDict
from functools import cache

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.tiers import tier_of_file


def files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


GROUPS = {
    "own clouds": (
        *files("e2e", "ai_workloads", "bad_machine", "cluster_on_subnet", "lifecycle", "machines"),
        *files("e2e/security", "slurm_escape"),
        *files("long", "bucket_mounts", "cluster_backup", "maintenance", "outside_audit", "preemption"),
        *files("long", "two_clouds"),
    ),
    "served models": (
        *files(
            "e2e/inference", "documentation", "embeddings", "openai_clients", "serving", "smollm2", "tuning"
        ),
        *("tests/e2e/test_fleet.py", "tests/long/inference"),
    ),
    "machines": (
        *("tests/e2e/images", "tests/long/images", "tests/long/conformance"),
        "tests/e2e/security/test_machine_sandbox.py",
    ),
    "shared cluster": (
        "tests/e2e",
        *files("long", "active_checks", "elastic", "training"),
    ),
    "podman": (
        "tests/fast/engines/podman",
        "tests/real/engines/podman",
        "tests/fast/security/test_egress.py",
    ),
    "studio": ("tests/real/conformance/openai",),
    "pages": ("tests/real/model_gateway/pages",),
    "emulator": ("tests/real/emulator", "tests/long/emulator"),
    "metrics": ("tests/fast/monitoring",),
    "active checks": ("tests/fast/fleet/active", "tests/real/fleet/active"),
    "databases": (
        "tests/fast/core/store",
        "tests/fast/core/reconcile/test_reservations.py",
        "tests/fast/core/reconcile/test_databases.py",
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


@cache  # asked for each test, and again for each group whenever a worker takes one: half a minute in all
def is_below(file: str, paths: tuple[str, ...]) -> bool:
    return any(file == path or file.startswith(f"{path}/") for path in paths)


def rank_of(name: str, tests: int) -> tuple[int, int]:
    """Return the key that sorts groups and files, first to run first.

    Files with real parts hold few tests that may take a minute each, so they do not come last: a worker takes
    the next file before its last two tests have ended, and the other worker would wait for it.
    """
    groups = sorted(GROUPS, key=lambda group: FIRST.index(group) if group in FIRST else len(FIRST))
    if name in GROUPS:
        return groups.index(name), 0
    return len(groups) + (1 if tier_of_file(name) == "fast" else 0), -tests


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
