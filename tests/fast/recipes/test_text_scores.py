"""EVAL-01, EVAL-04, ERR-16, FORM-04: scores, and the signs of the comparison."""

from __future__ import annotations

import dataclasses
import random

import pytest

import text_scores
from neocloud.core.evaluation_gate import METRICS
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


def outputs(answers: list[str], labels: list[str], losses: list[float]) -> text_scores.Outputs:
    lost = {place: (loss, 10) for place, loss in enumerate(losses)}
    return text_scores.Outputs(lost, dict(enumerate(answers)), dict(enumerate(labels)), 10.0)


def two_models(count: int = 40) -> tuple[text_scores.Outputs, text_scores.Outputs, text_scores.References]:
    """A base, and a model that names more labels but answers two questions worse."""
    right = [f"your card number {place} is on its way" for place in range(count)]
    base = outputs(
        [f"card number {place} is on its way" for place in range(count)],
        ["card" if place % 4 else "top_up" for place in range(count)],
        [20.0 + place % 3 for place in range(count)],
    )
    finetuned = outputs(
        ["no" if place < 2 else text for place, text in enumerate(right)],
        ["card" if place % 9 else "top_up" for place in range(count)],
        [10.0 + place % 3 for place in range(count)],
    )
    asked = [f"where is card {place}?" for place in range(count)]
    return base, finetuned, text_scores.References(asked, right, ["card"] * count)


def test_each_score_has_an_interval_around_what_was_measured() -> None:
    base, finetuned, references = two_models()
    scores = text_scores.compare(base, finetuned, references, seed=1)["scores"]
    assert scores.keys() == text_scores.BETTER.keys() - {"judge_preference"}
    for name in scores.keys() - {"longest_message", "tokens_per_second"}:
        for part in (*text_scores.MODELS, "difference"):
            each = scores[name][part]
            assert each["low"] <= each["value"] <= each["high"], (name, part)
    answers = list(finetuned.answers.values()), references.answers
    assert scores["bleu"]["finetuned_model"]["value"] == pytest.approx(bleu(*answers))
    assert scores["rougeL"]["finetuned_model"]["value"] == pytest.approx((rouge(*answers) or {})["rougeL"])
    assert scores["accuracy"]["base_model"]["value"] == 0.75
    assert scores["longest_message"]["finetuned_model"] == {"value": len("your card number 39 is on its way")}


def test_a_difference_is_paired_and_its_bounds_are_one_sided() -> None:
    base, finetuned, references = two_models()
    found = text_scores.compare(base, finetuned, references, seed=1)["scores"]["perplexity"]
    # Each conversation lost exactly 1 per token, so the change is the same whichever are drawn.
    assert (
        found["percent"]["low"] == pytest.approx(found["percent"]["high"]) == pytest.approx(-63.212, abs=1e-3)
    )
    assert found["base_model"]["high"] - found["base_model"]["low"] > 0.1
    accuracy = text_scores.compare(base, finetuned, references, seed=1)["scores"]["accuracy"]["difference"]
    (low_90, high_90), (low_99, high_99) = (accuracy["bounds"][level] for level in ("90", "99"))
    assert low_99 < low_90 < accuracy["value"] < high_90 < high_99


def test_the_same_seed_gives_the_same_interval() -> None:
    first, second, other = (text_scores.compare(*two_models(), seed=seed)["scores"] for seed in (7, 7, 8))
    assert first == second and first["accuracy"] != other["accuracy"]


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    generator = random.Random(3)
    held = 0
    for trial in range(100):
        drawn = [float(generator.random() < 0.6) for _ in range(60)]
        found = text_scores.interval([(0.0,)] * 60, [(one,) for one in drawn], text_scores.mean, trial)[
            "finetuned_model"
        ]
        held += found["low"] <= 0.6 <= found["high"]
    assert 87 <= held <= 100


def test_few_samples_have_a_score_and_no_interval() -> None:
    scores = text_scores.compare(*two_models(9), seed=1)["scores"]
    assert "value" in scores["accuracy"]["difference"] and "low" not in scores["accuracy"]["difference"]


def test_answers_that_got_worse_are_listed_the_worst_first() -> None:
    base, finetuned, references = two_models()
    worse = text_scores.compare(base, finetuned, references, seed=1)["regressions"]
    assert (worse["count"], worse["among"]) == (2, 40)
    first = worse["samples"][0]
    assert (
        first["input"] in ("where is card 0?", "where is card 1?")
        and first["reference"] in references.answers
    )
    assert first["generated"]["finetuned_model"] == "no"
    assert "card number" in first["generated"]["base_model"]
    assert first["scores"]["base_model"]["rougeL"] > first["scores"]["finetuned_model"]["rougeL"] == 0


def test_only_samples_that_both_models_have_are_compared() -> None:
    base, finetuned, references = two_models()
    part = dataclasses.replace(base, answers={place: base.answers[place] for place in range(2, 30)})
    found = text_scores.compare(part, finetuned, references, seed=1)
    assert found["scores"]["rougeL"]["samples"] == 28 and found["regressions"]["count"] == 0
    assert text_scores.compare(text_scores.Outputs(), finetuned, references, seed=1)["scores"] == {}


def test_a_judge_s_preferences_are_a_score_of_both() -> None:
    preferences = {place: (1.0, 0.5, 0.0, 1.0)[place % 4] for place in range(40)}
    found = text_scores.compare(*two_models(), 1, preferences)
    assert found["scores"]["judge_preference"]["finetuned_model"]["value"] == 0.625
    assert found["scores"]["judge_preference"]["base_model"]["value"] == 0.375
    assert (
        found["regressions"]["count"] == 2 + 10 - 0
    )  # the two, and every fourth answer that the judge liked less


def test_the_recipe_has_the_same_scores_and_directions() -> None:
    assert {name: metric.better for name, metric in METRICS.items()} == text_scores.BETTER
