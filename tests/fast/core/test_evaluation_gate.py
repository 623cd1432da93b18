"""EVAL-08: a gate is several rules on several scores. A file with a mistake is refused, and a score that was
not measured fails its rule."""

import json
import math
from typing import Any

import pytest

from neocloud.core.evaluation_gate import (
    JOB_METRICS,
    METRICS,
    BadGate,
    Verdict,
    decide,
    parse_gate,
)

Bounds = dict[str, list[float]]
UNKNOWN: Bounds = {}


def score(base: float, finetuned: float, better: str = "higher", bounds: Bounds = UNKNOWN) -> dict[str, Any]:
    """A score whose difference has these bounds by confidence; those in per cent are the same."""
    percent = (finetuned - base) / base * 100 if base else None
    return {
        "better": better,
        "base_model": {"value": base},
        "finetuned_model": {"value": finetuned},
        "difference": {"value": finetuned - base, "bounds": bounds},
        "percent": {"value": percent, "bounds": bounds},
    }


def judged(rule: dict[str, Any], scores: dict[str, Any], **details: Any) -> Verdict:
    gate = parse_gate(json.dumps({"rules": [rule]}), METRICS)
    return decide({"details": {"scores": scores, **details}}, gate)


def test_ten_per_cent_better_means_a_lower_perplexity() -> None:
    rule = {"rule": "better", "metric": "perplexity", "percent": 10}
    assert judged(rule, {"perplexity": score(10, 9, "lower")}).passed
    assert not judged(rule, {"perplexity": score(10, 9.1, "lower")}).passed
    [worse] = judged(rule, {"perplexity": score(10, 12, "lower")}).rules
    assert not worse.passed and "-20 %" in worse.why


def test_a_confidence_needs_the_bound_and_not_what_was_measured() -> None:
    rule = {"rule": "not_worse", "metric": "accuracy", "confidence": 95}
    surely, perhaps = {"95": [0.0, 0.2]}, {"95": [-0.05, 0.2]}
    assert judged(rule, {"accuracy": score(0.7, 0.8, bounds=surely)}).passed
    [failed] = judged(rule, {"accuracy": score(0.7, 0.8, bounds=perhaps)}).rules
    assert not failed.passed and "with 95 % confidence" in failed.why and "-0.05" in failed.why
    assert judged({**rule, "by": 0.05}, {"accuracy": score(0.7, 0.8, bounds=perhaps)}).passed
    assert judged({**rule, "confidence": None}, {"accuracy": score(0.7, 0.7)}).passed


def test_the_bound_of_a_score_where_less_is_better_is_its_upper_one() -> None:
    rule = {"rule": "better", "metric": "perplexity", "percent": 10, "confidence": 90}
    assert judged(rule, {"perplexity": score(10, 8, "lower", {"90": [-30.0, -11.0]})}).passed
    assert not judged(rule, {"perplexity": score(10, 8, "lower", {"90": [-30.0, -9.0]})}).passed


def test_too_few_samples_for_a_bound_fail_and_say_so() -> None:
    rule = {"rule": "better", "metric": "accuracy", "percent": 1, "confidence": 99}
    [found] = judged(rule, {"accuracy": score(0.5, 0.9)}).rules
    assert not found.passed and "too few samples" in found.why


def test_no_answer_may_be_longer_than_a_limit() -> None:
    rule = {"rule": "at_most", "metric": "longest_message", "value": 800}
    assert judged(rule, {"longest_message": score(900, 800, "")}).passed
    [above] = judged(rule, {"longest_message": score(900, 801, "")}).rules
    assert (above.passed, above.why) == (False, "above the limit of 800")
    least = {"rule": "at_least", "metric": "rougeL", "value": 0.3}
    assert judged(least, {"rougeL": score(0.1, 0.3)}).passed
    [below] = judged(least, {"rougeL": score(0.1, 0.29)}).rules
    assert (below.passed, below.why) == (False, "below the limit of 0.3")


def test_the_whole_may_get_better_although_one_score_falls() -> None:
    rule = {"rule": "overall", "metrics": ["accuracy", "rougeL", "perplexity"], "percent": 5}
    one_fell = {
        "accuracy": score(0.5, 0.45),
        "rougeL": score(0.4, 0.5),
        "perplexity": score(10, 9, "lower"),
    }
    [found] = judged(rule, one_fell).rules
    assert found.passed and "although accuracy fell" in found.why
    assert not judged({**rule, "worse_by_percent": 9}, one_fell).passed
    assert not judged({**rule, "most_worse": 0}, one_fell).passed
    [two] = judged(rule, {**one_fell, "rougeL": score(0.4, 0.39)}).rules
    assert not two.passed and "accuracy, rougeL fell" in two.why and "the mean is" in two.why


def test_a_base_of_zero_is_beaten_by_anything_but_not_part_of_a_mean() -> None:
    rule = {"rule": "better", "metric": "accuracy", "percent": 50}
    assert judged(rule, {"accuracy": score(0, 0.1)}).passed
    assert not judged(rule, {"accuracy": score(0, 0)}).passed
    whole = {"rule": "overall", "metrics": ["accuracy", "rougeL"], "percent": 0}
    [found] = judged(whole, {"accuracy": score(0, 1), "rougeL": score(0.1, 0.2)}).rules
    assert not found.passed and "accuracy of the base is 0" in found.why


@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"accuracy": score(0.5, math.nan)},
        {"accuracy": score(math.inf, 1.0)},
        {"accuracy": {**score(0.5, 0.9), "finetuned_model": {"value": "0.9"}}},
        {"accuracy": {"base_model": {"value": 0.1}}},
        ["accuracy"],
        None,
    ],
)
def test_what_was_not_measured_never_passes(scores: Any) -> None:
    for rule in (
        {"rule": "not_worse", "metric": "accuracy", "by": 1e9},
        {"rule": "at_most", "metric": "accuracy", "value": 1e9},
    ):
        [found] = judged(rule, scores).rules
        assert not found.passed and found.measured == "not measured"


def test_a_report_that_is_none_or_with_missing_samples_fails() -> None:
    rule = {"rule": "not_worse", "metric": "accuracy"}
    gate = parse_gate(json.dumps({"rules": [rule]}))
    assert not decide([], gate).passed and not decide(None, gate).passed
    fine = {"accuracy": score(0.5, 0.9)}
    assert judged(rule, fine, is_complete=True, base_model={"errors": {}}).passed
    assert not judged(rule, fine, is_complete=False).passed
    [_, unanswered] = judged(rule, fine, finetuned_model={"errors": {"timeout": 3}}).rules
    assert "requests of the finetuned model failed" in unanswered.measured


def test_tasks_of_lm_eval_are_known_by_their_names() -> None:
    text = json.dumps({"rules": [{"rule": "better", "metric": "bank/acc", "percent": 1}]})
    gate = parse_gate(text, (), ("bank",))
    assert decide({"details": {"scores": {"bank/acc": score(0.5, 0.6)}}}, gate).passed
    assert not decide({"details": {"scores": {"bank/acc": score(0.5, 0.6, "lower")}}}, gate).passed
    with pytest.raises(BadGate, match="there are other/METRIC"):
        parse_gate(text, (), ("other",))


ACCURATE = '"metric": "accuracy"'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("{}", "missing required field `rules`"),
        ("[]", "Expected `object`, got `array`"),
        ('{"rules": []}', "length >= 1"),
        ('{"rules": "all"}', "Expected `array`"),
        ('{"rules": [{"rule": "nicer", "metric": "accuracy"}]}', "each rule is one of better, not_worse"),
        (
            '{"rules": [{"rule": "not_worse", "metric": "acuracy"}]}',
            r'"acuracy".* accuracy, bleu',
        ),
        (f'{{"rules": [{{"rule": "better", {ACCURATE}}}]}}', "missing required field `percent`"),
        (f'{{"rules": [{{"rule": "better", {ACCURATE}, "percent": "10"}}]}}', "got `str`"),
        (f'{{"rules": [{{"rule": "better", {ACCURATE}, "percent": true}}]}}', "got `bool`"),
        (f'{{"rules": [{{"rule": "better", {ACCURATE}, "percent": -1}}]}}', ">= 0"),
        (f'{{"rules": [{{"rule": "better", {ACCURATE}, "percent": 1e999}}]}}', "Expected `float`"),
        (f'{{"rules": [{{"rule": "better", {ACCURATE}, "percent": NaN}}]}}', "NaN is no number"),
        (f'{{"rules": [{{"rule": "not_worse", {ACCURATE}, "sure": 95}}]}}', "unknown field `sure`"),
        (f'{{"rules": [{{"rule": "not_worse", {ACCURATE}, "confidence": 80}}]}}', "Invalid enum value 80"),
        (f'{{"rules": [{{"rule": "not_worse", {ACCURATE}, {ACCURATE}}}]}}', "a key is there twice"),
        ('{"rules": [{"rule": "better", "metric": "longest_message", "percent": 1}]}', "use at_most"),
        (
            '{"rules": [{"rule": "not_worse", "metric": "tokens_per_second", "confidence": 95}]}',
            "no confidence",
        ),
        ('{"rules": [{"rule": "overall", "metrics": ["accuracy"], "percent": 1}]}', "length >= 2"),
        ('{"rules": [{"rule": "overall", "metrics": ["bleu", "bleu"], "percent": 1}]}', "named twice"),
        ("[" * 16_000, "no JSON of a gate"),
        (" " * 17_000, "more than 16,384 bytes"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_reason(text: str, complaint: str) -> None:
    with pytest.raises(BadGate, match=complaint):
        parse_gate(text)


def test_a_job_has_no_judge() -> None:
    text = json.dumps({"rules": [{"rule": "at_least", "metric": "judge_preference", "value": 0.5}]})
    assert parse_gate(text).metrics == {"judge_preference"}
    with pytest.raises(BadGate, match='there is no metric "judge_preference" here'):
        parse_gate(text, JOB_METRICS)
