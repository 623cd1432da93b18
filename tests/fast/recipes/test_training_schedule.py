"""The order of rows and the number of steps follow from the seed and a position alone."""

from __future__ import annotations

import pytest

from training_schedule import learning_rate_factor, rows_at, total_steps


def test_each_epoch_shows_every_row_once_in_its_own_order() -> None:
    first, second = rows_at(0, 10, 10, seed=1), rows_at(10, 10, 10, seed=1)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_any_position_can_be_taken_up_again() -> None:
    whole = rows_at(0, 35, 10, seed=3)
    assert rows_at(0, 17, 10, seed=3) + rows_at(17, 18, 10, seed=3) == whole


def test_one_row_is_repeated() -> None:
    assert rows_at(0, 3, 1, seed=1) == [0, 0, 0]


@pytest.mark.parametrize(
    ("rows", "epochs", "max_steps", "per_step", "steps"),
    [(100, 1, 0, 8, 13), (100, 2.5, 0, 8, 32), (100, 1, 7, 8, 7), (1, 1, 0, 8, 1)],
)
def test_the_number_of_steps(rows: int, epochs: float, max_steps: int, per_step: int, steps: int) -> None:
    assert total_steps(rows, epochs, max_steps, per_step) == steps


@pytest.mark.parametrize(
    ("step", "kind", "factor"),
    [
        (0, "cosine", 0.1),
        (9, "cosine", 1.0),
        (55, "cosine", 0.5),
        (55, "linear", 0.5),
        (99, "constant", 1),
    ],
)
def test_the_learning_rate_warms_up_and_falls(step: int, kind: str, factor: float) -> None:
    assert learning_rate_factor(step, 100, kind, 0.1) == pytest.approx(factor)
