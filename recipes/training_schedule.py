"""Compute the rows of each step, the number of steps, and the learning rate of each.

Everything follows from the seed and a count of samples, so a resumed run continues exactly where
it was, and the order does not depend on the number of processes. Pure functions, no torch.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, rows: int) -> numpy.ndarray:
    """Return the rows of one pass over the data, in shuffled order."""
    return numpy.random.default_rng([seed, epoch]).permutation(rows)


def rows_at(position: int, count: int, rows: int, seed: int) -> list[int]:
    """Return the `count` rows from sample `position` on; epochs follow each other without a gap."""
    return [
        int(epoch_order(seed, sample // rows, rows)[sample % rows])
        for sample in range(position, position + count)
    ]


def total_steps(rows: int, epochs: float, max_steps: int, samples_per_step: int) -> int:
    """Return the optimiser steps of the whole run; the last step of the last epoch is a full one."""
    return max_steps or math.ceil(rows * epochs / samples_per_step)


def learning_rate_factor(step: int, total: int, kind: str, warmup_ratio: float) -> float:
    """Return the share of the peak rate at a step counted from 0."""
    warmup = math.ceil(total * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(total - warmup, 1)
    return {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[kind]
