"""The report of two measured models: the keys of the recipe's report, and ours under `details`."""

import statistics
from collections.abc import Mapping, Sequence

from neocloud.cli.evaluation import scores
from neocloud.cli.evaluation.metrics import SCALED_TO, Measured, Metric, Plan
from neocloud.cli.evaluation.scores import bleu, comparison, exact_match, rouge
from neocloud.cli.output import JsonObject, View, table

SIGNS = {
    "perplexity": "per cent it fell; positive is better",
    "speed": "per cent of growth in generated tokens per second; positive is faster",
    "message_length": "per cent of growth in mean characters per answer",
}
_CHANGE = "difference, 95 %"
_ROWS = (
    ("perplexity", "perplexity", 3),
    ("accuracy, exact match", "accuracy", 3),
    ("exact answers", "exact_match", 3),
    ("BLEU", "bleu", 1),
    ("ROUGE-L", "rougeL", 3),
    ("characters per answer", "message_length_avg", 1),
    ("tokens per answer", "tokens_per_message", 1),
    ("tokens per second", "tokens_per_second", 1),
    ("16 requests, % of linear", "percent_of_linear", 1),
    ("preferred by the judge", "judge_preference", 3),
)


def report(
    plan: Plan,
    base: Measured,
    candidate: Measured,
    show: int,
    facts: JsonObject,
    preferences: Mapping[int, float] | None = None,
) -> JsonObject:
    """Return the report; `preferences` are a judge's verdicts on the candidate's answers."""
    known = [_known(plan, each, show) for each in (base, candidate)]
    return {
        "base_model": known[0],
        "finetuned_model": known[1],
        "comparison": comparison(
            perplexity=(known[0]["perplexity"], known[1]["perplexity"]),
            speed=(base.tokens_per_second, candidate.tokens_per_second),
            length=(known[0]["message_length_avg"], known[1]["message_length_avg"]),
        ),
        "details": {
            "base_model": _added(plan, base),
            "finetuned_model": _added(plan, candidate),
            "comparison_signs": SIGNS,
            "test_conversations": len(plan.conversations),
            "generated_messages": len(plan.questions),
            "batch": plan.batch,
            "max_new_tokens": plan.max_new_tokens,
            **_compared(plan, base, candidate, preferences),
            **facts,
        },
    }


def _compared(
    plan: Plan, base: Measured, candidate: Measured, preferences: Mapping[int, float] | None
) -> JsonObject:
    """Return the scores with their confidence intervals, and the answers that got worse."""
    references = scores.references(
        [question.input for question in plan.questions],
        [question.reference for question in plan.questions],
        [question.reference for question in plan.labels],
    )
    first, second = (
        scores.outputs(
            {place: (loss.total, loss.tokens) for place, loss in found.losses.items() if loss.tokens},
            found.answers,
            found.labels,
            found.tokens_per_second,
        )
        for found in (base, candidate)
    )
    return scores.compare(first, second, references, plan.seed, preferences)


def _known(plan: Plan, found: Measured, show: int) -> JsonObject:
    places = sorted(found.answers)
    lengths = [len(text) for text in found.answers.values()]
    return {
        "perplexity": found.loss.perplexity,
        "message_length_avg": statistics.fmean(lengths) if lengths else None,
        "sample_generations": [
            {
                "input": plan.questions[place].input,
                "reference": plan.questions[place].reference,
                "generated": found.answers[place],
            }
            for place in places[:show]
        ],
    }


def _added(plan: Plan, found: Measured) -> JsonObject:
    places = sorted(found.answers)
    generated = [found.answers[place] for place in places]
    references = [plan.questions[place].reference for place in places]
    added: JsonObject = {
        "tokens_per_second": found.tokens_per_second,
        "tokens_per_message": found.answer_tokens / len(places) if places else None,
        "bleu": bleu(generated, references),
        "rouge": rouge(generated, references),
    }
    if Metric.ACCURACY in plan.metrics:
        said = sorted(found.labels)
        added["accuracy"] = exact_match(
            [found.labels[place] for place in said], [plan.labels[place].reference for place in said]
        )
    if Metric.SCALING in plan.metrics:
        added["scaling"] = _scaling(found.speeds)
    return added | {"errors": dict(found.errors), "remarks": list(found.remarks)}


def _scaling(speeds: Mapping[int, float]) -> JsonObject | None:
    """Return the speeds of one request and of many, and how much of a linear growth the latter are."""
    few, many = SCALED_TO
    if few not in speeds or many not in speeds:
        return None
    percent = speeds[many] / (speeds[few] * many) * 100
    return {"one_request": speeds[few], f"{many}_requests": speeds[many], "percent_of_linear": percent}


def report_view(report: JsonObject, names: Sequence[str]) -> View:
    """Return the report as a table, base beside candidate."""
    rows: list[tuple[str, ...]] = []
    for label, key, decimals in _ROWS:
        values = [_value(report, model, key) for model in ("base_model", "finetuned_model")]
        if any(value is not None for value in values):
            shown = ["" if value is None else f"{value:,.{decimals}f}" for value in values]
            rows.append((label, *shown, _interval(report, key, decimals)))
    columns = [*names, _CHANGE]
    return table(["", *columns], rows, right=columns)


def _interval(report: JsonObject, key: str, decimals: int) -> str:
    """Return the confidence interval of the difference, candidate minus base; "" without one."""
    difference: JsonObject = report["details"]["scores"].get(key, {}).get("difference", {})
    if "low" not in difference:
        return ""
    return f"{difference['low']:+,.{decimals}f} to {difference['high']:+,.{decimals}f}"


def _value(report: JsonObject, model: str, key: str) -> float | None:
    found = {**report["details"][model], **report[model]}
    values: JsonObject = found["rouge"] or {} if key == "rougeL" else found
    if key == "percent_of_linear":
        scaling: JsonObject = found.get("scaling") or {}
        return scaling.get(key)
    if key in ("exact_match", "judge_preference"):
        return report["details"]["scores"].get(key, {}).get(model, {}).get("value")
    return values.get(key)
