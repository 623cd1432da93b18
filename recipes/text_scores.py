"""Score generated texts against references, and compare two models sample by sample.

Pure functions on text and numbers. BLEU and ROUGE come from `sacrebleu` and `rouge_score`; where
one is not installed its score is None. Intervals come from a paired bootstrap over the samples: both
models are resampled together, so a difference is as certain as the samples show.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

try:
    import sacrebleu
except ImportError:
    sacrebleu = None
try:
    from rouge_score.rouge_scorer import RougeScorer
except ImportError:
    RougeScorer = None

ROUGE = ("rouge1", "rouge2", "rougeL")
BETTER = {
    "perplexity": "lower",
    **dict.fromkeys(("accuracy", "exact_match", "bleu", *ROUGE), "higher"),
    "judge_preference": "higher",
    "tokens_per_second": "higher",
    "message_length_avg": "",
    "longest_message": "",
}
"""The direction in which each score is better; "" where neither is."""
RESAMPLES = 1000
LEAST_RESAMPLES = 200
MOST_DRAWS = 5_000_000
"""Samples drawn for one score in all: of many samples fewer resamples suffice."""
LEAST_SAMPLES = 10
"""Fewer samples say nothing about what another draw of them would give, so no interval is made of them."""
CONFIDENCE = 95
"""Per cent, of the intervals that are shown."""
LEVELS = (90, 95, 99)
"""Per cent, of the one-sided bounds that a gate may ask for."""
MOST_REGRESSIONS = 20
MODELS = ("base_model", "finetuned_model")

Row = Sequence[float]
Value = Callable[[Sequence[float], int], float | None]
"""Makes a score of the sums of its samples' rows, and of their number."""


def bleu(generated: Sequence[str], references: Sequence[str]) -> float | None:
    """Return corpus BLEU, 0 to 100."""
    if sacrebleu is None or not generated:
        return None
    return sacrebleu.corpus_bleu(list(generated), [list(references)]).score


def bleu_rows(generated: Sequence[str], references: Sequence[str]) -> list[Row] | None:
    """Return the counts of each pair of texts, whose sums make corpus BLEU."""
    if sacrebleu is None:
        return None
    scored = [
        sacrebleu.sentence_bleu(text, [right]) for text, right in zip(generated, references, strict=True)
    ]
    return [(*one.counts, *one.totals, one.sys_len, one.ref_len) for one in scored]


def bleu_of(sums: Sequence[float], count: int) -> float:
    """Return corpus BLEU from the sums of `bleu_rows`."""
    assert sacrebleu is not None, "The rows were made with it."
    whole = [int(one) for one in sums]
    orders = (len(whole) - 2) // 2
    made = sacrebleu.BLEU.compute_bleu(
        whole[:orders], whole[orders:-2], sys_len=whole[-2], ref_len=whole[-1], smooth_method="exp"
    )
    return made.score


def rouge_scores(generated: Sequence[str], references: Sequence[str]) -> list[dict[str, float]] | None:
    """Return F1 of ROUGE-1, ROUGE-2 and ROUGE-L of each pair of texts, 0 to 1."""
    if RougeScorer is None:
        return None
    scorer = RougeScorer(list(ROUGE))
    scores = [scorer.score(right, text) for text, right in zip(generated, references, strict=True)]
    return [{name: score[name].fmeasure for name in ROUGE} for score in scores]


def rouge(generated: Sequence[str], references: Sequence[str]) -> dict[str, float] | None:
    """Return the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L, 0 to 1."""
    scores = rouge_scores(generated, references)
    return {name: statistics.fmean(one[name] for one in scores) for name in ROUGE} if scores else None


def is_exact(text: str, reference: str) -> bool:
    """Return whether an answer equals the reference, apart from case and outer spaces."""
    return text.strip().lower() == reference.strip().lower()


def exact_match(generated: Sequence[str], references: Sequence[str]) -> float | None:
    """Return the share of exact answers; None without any."""
    pairs = list(zip(generated, references, strict=True))
    return statistics.fmean(is_exact(*pair) for pair in pairs) if pairs else None


def change_percent(base: float | None, finetuned: float | None) -> float | None:
    """Return the growth from base to fine-tuned in per cent; None if the base is 0 or one is missing."""
    return (finetuned - base) / base * 100 if base and finetuned is not None else None


Pair = tuple[float | None, float | None]


def comparison(perplexity: Pair, speed: Pair, length: Pair) -> dict[str, float | None]:
    """Return changes in per cent; in each pair the base comes first. Perplexity is the decrease (positive
    is better), speed and message length are the increase."""
    fell = change_percent(*perplexity)
    return {
        "perplexity": None if fell is None else -fell,
        "speed": change_percent(*speed),
        "message_length": change_percent(*length),
    }


@dataclass(frozen=True)
class Outputs:
    """Results of one model for each sample, by the sample's place; those without a result are left out."""

    losses: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """The summed loss of a conversation's answers, and their tokens."""
    answers: Mapping[int, str] = field(default_factory=dict)
    labels: Mapping[int, str] = field(default_factory=dict)
    """Answers to the last question of each conversation, whose references are labels."""
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class References:
    """The questions that were asked, and the right answers."""

    inputs: Sequence[str]
    answers: Sequence[str]
    labels: Sequence[str] = ()


def mean(sums: Sequence[float], count: int) -> float:
    return sums[0] / count


def perplexity_of(sums: Sequence[float], count: int) -> float | None:
    """Return the perplexity of the sums of loss and tokens."""
    return math.exp(min(sums[0] / sums[1], 700)) if sums[1] else None


def compare(
    base: Outputs,
    finetuned: Outputs,
    references: References,
    seed: int,
    preferences: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """Return `scores`, each with its intervals, and `regressions`, of the samples that both models have.

    `preferences` has the verdict of a judge on the fine-tuned model's answers: 1 better, 0.5 a tie, 0 worse.
    """
    both = (base, finetuned)
    scores: dict[str, Any] = {}

    def add(name: str, rows: Sequence[Sequence[Row]], value: Value = mean) -> None:
        if rows[0]:
            scores[name] = {"better": BETTER[name], **interval(rows[0], rows[1], value, seed)}

    losses = sorted(base.losses.keys() & finetuned.losses.keys())
    add("perplexity", [[one.losses[place] for place in losses] for one in both], perplexity_of)
    labels = sorted(base.labels.keys() & finetuned.labels.keys())
    right = [[float(is_exact(one.labels[at], references.labels[at])) for at in labels] for one in both]
    add("accuracy", [[(score,) for score in each] for each in right])
    places = sorted(base.answers.keys() & finetuned.answers.keys())
    texts = [[one.answers[place] for place in places] for one in both]
    expected = [references.answers[place] for place in places]
    columns = _answer_scores(texts, expected)
    for name, found in columns.items():
        add(name, [[(score,) for score in each] for each in found])
    counts = [bleu_rows(each, expected) or [] for each in texts]
    add("bleu", counts, bleu_of)
    add("message_length_avg", [[(float(len(text)),) for text in each] for each in texts])
    if preferences:
        verdicts = [preferences[place] for place in sorted(preferences)]
        add("judge_preference", [[(1 - one,) for one in verdicts], [(one,) for one in verdicts]])
    longest = [max(map(len, one.answers.values()), default=None) for one in both]
    scores |= _alone("longest_message", longest, len(places))
    scores |= _alone("tokens_per_second", [one.tokens_per_second for one in both], None)
    if preferences:
        columns["judge_preference"] = [
            [1 - preferences.get(place, 0.5) for place in places],
            [preferences.get(place, 0.5) for place in places],
        ]
    samples = [(references.inputs[place], references.answers[place]) for place in places]
    return {
        "confidence": CONFIDENCE,
        "seed": seed,
        "scores": scores,
        "regressions": regressions(samples, texts, columns),
    }


def _answer_scores(texts: Sequence[Sequence[str]], expected: Sequence[str]) -> dict[str, list[list[float]]]:
    """Return the scores of single answers by name: those of the base, and those of the fine-tuned model."""
    exact = [[float(is_exact(*pair)) for pair in zip(each, expected, strict=True)] for each in texts]
    columns = {"exact_match": exact}
    scored = [rouge_scores(each, expected) for each in texts]
    for name in ROUGE:
        found = [[one[name] for one in each] for each in scored if each is not None]
        if len(found) == len(texts):
            columns[name] = found
    return columns


def _alone(name: str, values: Sequence[float | None], samples: int | None) -> dict[str, Any]:
    """Return a score that is one number of each model, which has no interval."""
    first, second = values
    if first is None or second is None:
        return {}
    shown = {model: {"value": value} for model, value in zip(MODELS, values, strict=True)}
    changes = {"difference": {"value": second - first}, "percent": {"value": change_percent(first, second)}}
    return {name: {"better": BETTER[name], "samples": samples, **shown, **changes}}


def interval(base: Sequence[Row], finetuned: Sequence[Row], value: Value, seed: int) -> dict[str, Any]:
    """Return the score of both models, its difference and its change in per cent, each with an interval."""
    count = len(base)
    columns = [list(zip(*rows, strict=True)) for rows in (base, finetuned)]

    def scores(pick: Callable[[Sequence[float]], Sequence[float]]) -> dict[str, float | None]:
        first, second = (value([sum(pick(column)) for column in each], count) for each in columns)
        difference = second - first if first is not None and second is not None else None
        names = (*MODELS, "difference", "percent")
        return dict(zip(names, (first, second, difference, change_percent(first, second)), strict=True))

    points = scores(lambda column: column)
    found: dict[str, Any] = {"samples": count} | {name: {"value": one} for name, one in points.items()}
    if count < LEAST_SAMPLES:
        return found
    generator, everything = random.Random(seed), range(count)
    resamples = max(LEAST_RESAMPLES, min(RESAMPLES, MOST_DRAWS // count))
    drawn = [scores(itemgetter(*generator.choices(everything, k=count))) for _ in range(resamples)]
    for name in points:
        values = sorted(one for each in drawn if (one := each[name]) is not None)
        if len(values) < len(drawn):  # the score cannot be made of some draws
            continue
        half = (100 - CONFIDENCE) / 2
        found[name] |= {"low": _quantile(values, half), "high": _quantile(values, 100 - half)}
        if name in ("difference", "percent"):
            found[name]["bounds"] = {
                str(level): [_quantile(values, 100 - level), _quantile(values, level)] for level in LEVELS
            }
    return found


def _quantile(values: Sequence[float], percent: float) -> float:
    """Return the value below which this share of the sorted values lies."""
    return values[min(len(values) - 1, max(0, math.ceil(len(values) * percent / 100) - 1))]


def regressions(
    samples: Sequence[tuple[str, str]],
    texts: Sequence[Sequence[str]],
    columns: Mapping[str, Sequence[Sequence[float]]],
) -> dict[str, Any]:
    """Return the samples with a score that fell, the largest fall first, and their number."""
    found: list[tuple[float, dict[str, Any]]] = []
    for place, (asked, reference) in enumerate(samples):
        scores = {name: [each[place] for each in found] for name, found in columns.items()}
        fall = max((first - second for first, second in scores.values()), default=0.0)
        if fall <= 0:
            continue
        answers = {model: texts[number][place] for number, model in enumerate(MODELS)}
        shown = {
            model: {name: pair[number] for name, pair in scores.items()}
            for number, model in enumerate(MODELS)
        }
        found.append((fall, {"input": asked, "reference": reference, "generated": answers, "scores": shown}))
    found.sort(key=lambda each: -each[0])
    return {
        "count": len(found),
        "among": len(samples),
        "samples": [sample for _, sample in found[:MOST_REGRESSIONS]],
    }
