"""The number of repetitions in tests that repeat themselves: kill loops, random walks, made-up requests.

`make test` runs a tenth of each, `make test-long` all of it: it sets the variable, and selects such a test by
its marker `repeated`.
"""

import os

VARIABLE = "NEOCLOUD_TEST_ITERATIONS"
"""`all`, or unset."""
SHARE = 10


def iterations(whole: int, *, least: int = 1) -> int:
    """Return how many of `whole` iterations this run does, at least `least`."""
    if os.environ.get(VARIABLE, "") == "all":
        return whole
    return max(least, -(-whole // SHARE))
