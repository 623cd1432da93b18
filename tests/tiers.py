"""Tiers of tests: the folder that a test file lies in is its tier.

fast   nothing outside of Python and short-lived tools: `make test-fast`
real   Podman, PostgreSQL, a browser, network namespaces, clients and servers in processes of their own
e2e    clouds with Slurm, QEMU or vLLM
long   what takes a minute or more by its nature: `make test-long`, and no other verb

Below that the folders are those of `src/neocloud`. A tier may import from those before it. A test that runs
on several databases is in `fast`, and `real` where it has PostgreSQL; one test of a file that takes minutes
has the marker `long`. What takes seconds of processor time is `slow`: `make test-fast` leaves it out.
"""

import pytest

TIERS = ("fast", "real", "e2e", "long")
REAL_FIXTURES = {"busybox_root", "metrics_program", "postgres"}
"""A test in `fast` that uses one of these is `real`, and so is one with the parameter "postgresql"."""


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test."""
    tier = tier_of_file(item.nodeid)
    if tier != "fast":
        return tier
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.values() if callspec else ()
    fixtures = REAL_FIXTURES & set(getattr(item, "fixturenames", ()))
    has_database = any(value == "postgresql" for value in parameters if isinstance(value, str))
    return "real" if fixtures or has_database else "fast"


def tier_of_file(nodeid: str) -> str:
    """Return the folder below `tests` that the file of a test's id lies in.

    Raises `pytest.UsageError` if it is none of `TIERS`.
    """
    tier = nodeid.partition("::")[0].split("/")[1]
    if tier not in TIERS:
        raise pytest.UsageError(f"{nodeid}: a test lies in one of the folders {', '.join(TIERS)} of tests")
    return tier
