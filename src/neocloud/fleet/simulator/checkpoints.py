"""Checkpoint intervals: the closed forms, and what a recorded run would have been with another interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def young(save: float, mtti: float) -> float:
    return math.sqrt(2 * save * mtti)


def daly(save: float, mtti: float) -> float:
    """Return Daly's higher-order optimum of the computing time between two checkpoints."""
    if save >= 2 * mtti:
        return mtti
    ratio = save / (2 * mtti)
    return math.sqrt(2 * save * mtti) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def expected_ettr(interval: float, save: float, mtti: float, recovery: float) -> float:
    """Return the share of useful time when interruptions are a Poisson process, exactly (Daly 2006).

    An interruption during a recovery starts it again; the recovery takes the same time whatever the cause.
    """
    rate = 1 / mtti
    return interval * rate / (math.exp(recovery * rate) * math.expm1((interval + save) * rate))


def first_order_ettr(interval: float, save: float, mtti: float, recovery: float) -> float:
    """Return the first-order approximation, for interruptions that are rare against interval and recovery."""
    return max(0.0, 1 - save / interval - (interval / 2 + recovery) / mtti)


@dataclass(frozen=True, slots=True)
class JobRun:
    """The job ran from start to end; a graceful end was announced in time to save."""

    seconds: float
    is_graceful: bool


def useful_seconds(runs: Iterable[JobRun], interval: float, save: float) -> float:
    """Return the computing time that checkpoints kept."""
    useful = 0.0
    for run in runs:
        cycles = math.floor(run.seconds / (interval + save))
        useful += cycles * interval
        if run.is_graceful:
            useful += min(interval, max(0.0, run.seconds - cycles * (interval + save) - save))
    return useful


def best_interval(runs: Sequence[JobRun], save: float, around: float) -> float:
    """Return the interval that would have kept most of these runs; the interruptions do not depend on it."""
    candidates = [around * 2 ** (step / 8) for step in range(-16, 17)]
    return max(candidates, key=lambda interval: useful_seconds(runs, interval, save))
