"""The report of two measured models: the keys of the recipe's report, and ours under `details`."""

import statistics
from collections.abc import Sequence

from neocloud.cli.evaluation.metrics import Measured, Metric, Plan, bleu, comparison, exact_match, rouge
from neocloud.cli.output import JsonObject, View, table

SIGNS = {
    "perplexity": "per cent it fell; positive is better",
    "speed": "per cent of growth in generated tokens per second; positive is faster",
    "message_length": "per cent of growth in mean characters per answer",
}
_ROWS = (
    ("perplexity", "perplexity", 3),
    ("accuracy, exact match", "accuracy", 3),
    ("BLEU", "bleu", 1),
    ("ROUGE-L", "rougeL", 3),
    ("characters per answer", "message_length_avg", 1),
    ("tokens per answer", "tokens_per_message", 1),
    ("tokens per second", "tokens_per_second", 1),
)


def report(plan: Plan, base: Measured, candidate: Measured, show: int, facts: JsonObject) -> JsonObject:
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
            **facts,
        },
    }


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
    return added | {"errors": dict(found.errors), "remarks": list(found.remarks)}


def report_view(report: JsonObject, names: Sequence[str]) -> View:
    """Return the report as a table, base beside candidate."""
    rows: list[tuple[str, ...]] = []
    for label, key, decimals in _ROWS:
        values = [_value(report, model, key) for model in ("base_model", "finetuned_model")]
        if any(value is not None for value in values):
            rows.append((label, *("" if value is None else f"{value:,.{decimals}f}" for value in values)))
    return table(["", *names], rows, right=list(names))


def _value(report: JsonObject, model: str, key: str) -> float | None:
    found = {**report["details"][model], **report[model]}
    values: JsonObject = found["rouge"] or {} if key == "rougeL" else found
    return values.get(key)
