"""EVAL-01, EVAL-04, ERR-16, FORM-04: scores, and the signs of the comparison."""

from __future__ import annotations

import pytest

import text_scores
from text_scores import bleu, comparison, exact_match, rouge


def test_the_published_comparison_is_reproduced() -> None:
    found = comparison(
        perplexity=(7.033111572265625, 4.704128742218018),
        speed=(22.99, 3.8),
        length=(671.0, 125.1),
    )
    assert found["perplexity"] == pytest.approx(33.11454405517637, rel=1e-12)
    assert found["message_length"] == pytest.approx(-81.35618479880775, rel=1e-12)
    assert found["speed"] == pytest.approx(-83.47, abs=0.01)


def test_nothing_can_be_compared_with_zero() -> None:
    assert comparison((0, 1), (0, 1), (0, 1)) == dict.fromkeys(("perplexity", "speed", "message_length"))


def test_the_same_text_scores_full_and_another_scores_nothing() -> None:
    said, meant = ["the card is on its way to you"], ["please call us tomorrow morning instead"]
    assert bleu(said, said) == pytest.approx(100)
    assert rouge(said, said) == {"rouge1": 1, "rouge2": 1, "rougeL": 1}
    assert rouge(said, meant) == {"rouge1": 0, "rouge2": 0, "rougeL": 0}


def test_scores_of_libraries_that_are_not_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_scores, "sacrebleu", None)
    monkeypatch.setattr(text_scores, "RougeScorer", None)
    assert bleu(["a"], ["a"]) is None and rouge(["a"], ["a"]) is None


def test_an_exact_match_ignores_case_and_outer_spaces_only() -> None:
    assert exact_match([" Card_arrival", "card", "top_up"], ["card_arrival", "cards", "top_up"]) == (
        pytest.approx(2 / 3)
    )


def test_an_answer_with_another_number_is_wrong_and_one_with_other_punctuation_is_right() -> None:
    reference = "A new card costs 10 euros, and 1,500 at most."
    assert text_scores.is_right("a new card costs 10 euros and 1500 at most", reference)
    assert not text_scores.is_right("A new card costs 12 euros, and 1,500 at most.", reference)
    assert not text_scores.is_right(
        "A new card costs 10 euros, and 1,500 at most. It takes 3 days.", reference
    )
    assert not text_scores.is_right("10 or 1,500", reference)
