"""The duration and order of the standing attacker's work: the same settings for all that it attacks."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, HypothesisWarning

from tests.iterations import iterations

WHOLE = int(os.environ.get("FUZZ_EXAMPLES", "4"))
EXAMPLES = iterations(WHOLE, least=2)
"""Requests per method and front of the API, of which the first is empty; the other fronts multiply it."""
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
"""Continue with new seeds for so many seconds; 0 means one round."""
SEED = int(os.environ.get("FUZZ_SEED", "8"))

HEALTH_CHECKS: Any = list(HealthCheck)

T = TypeVar("T")


def rounds(share: float) -> Iterator[int]:
    """Yield seeds: one, or as many as this share of the time allows."""
    end = time.monotonic() + SECONDS * share
    yield SEED
    number = SEED
    while time.monotonic() < end:
        number += 1
        yield number


def search(
    number: int,
    attacks: st.SearchStrategy[T],
    attack: Callable[[T], str],
    examples: int,
    phases: Sequence[Phase] = (Phase.generate, Phase.shrink),
) -> str:
    """Make some attacks. Return the complaint about the last one that succeeded, or ""."""
    found: list[str] = []

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=HEALTH_CHECKS,
    )
    @given(attacks)
    def make(one: T) -> None:
        complaint = attack(one)
        if complaint:
            found.append(complaint)
        assert not complaint

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)  # of large requests, which are wanted
            make()
    except (AssertionError, Flaky):  # flaky is what breaks once, which is once too often
        return found[-1]
    return ""
