"""Metrics of one model on test conversations, and the scores computed from its answers.

Results are kept when a run is interrupted. BLEU and ROUGE come from `sacrebleu` and `rouge_score`, which
`pip install neocloud[train]` installs; without one of them its score is None. A test compares the scores with
those of the recipe.
"""

import importlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from neocloud.cli.evaluation.client import Model, in_parallel
from neocloud.cli.evaluation.conversations import Conversation, Loss, NoLikelihood, Question
from neocloud.client.errors import ClientError

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[str], None]


class Metric(StrEnum):
    PERPLEXITY = "perplexity"
    GENERATION = "generation"
    SPEED = "speed"
    ACCURACY = "accuracy"


@dataclass(frozen=True)
class Plan:
    """The requests made to both models."""

    conversations: Sequence[Conversation]
    questions: Sequence[Question]
    labels: Sequence[Question]
    """Each conversation's last answer."""
    metrics: frozenset[Metric]
    max_new_tokens: int
    max_label_tokens: int
    batch: int
    context: int


@dataclass
class Measured:
    """Results of one model so far."""

    loss: Loss = field(default_factory=Loss)
    answers: dict[int, str] = field(default_factory=dict[int, str])
    """Answers by the index of the question."""
    answer_tokens: int = 0
    labels: dict[int, str] = field(default_factory=dict[int, str])
    tokens_per_second: float | None = None
    errors: Counter[str] = field(default_factory=Counter[str])
    """Count of each error message."""
    remarks: list[str] = field(default_factory=list[str])

    @property
    def is_empty(self) -> bool:
        return not (self.loss.tokens or self.answers or self.labels or self.tokens_per_second)


def measure(model: Model, plan: Plan, found: Measured, progress: Progress) -> None:
    """Measure each metric in turn and store the results in `found`."""
    steps = {
        Metric.PERPLEXITY: _perplexity,
        Metric.GENERATION: _answers,
        Metric.SPEED: _speed,
        Metric.ACCURACY: _labels,
    }
    for metric, step in steps.items():
        if metric in plan.metrics:
            step(model, plan, found, progress)


def _perplexity(model: Model, plan: Plan, found: Measured, progress: Progress) -> None:
    def cost(conversation: Conversation) -> Loss:
        loss = Loss()
        loss.add(conversation, model.prompt(conversation), plan.context)
        return loss

    try:
        for _, loss in _tried(cost, plan.conversations, plan.batch, found, progress, "perplexity"):
            found.loss.total += loss.total
            found.loss.tokens += loss.tokens
    except NoLikelihood as error:
        found.remarks.append(f"no perplexity: {error}")


def _answers(model: Model, plan: Plan, found: Measured, progress: Progress) -> None:
    def ask(question: Question) -> tuple[str, int]:
        answer = model.answer(question.messages, plan.max_new_tokens)
        return answer.text, answer.tokens

    for place, (text, tokens) in _tried(ask, plan.questions, plan.batch, found, progress, "answers"):
        found.answers[place] = text
        found.answer_tokens += tokens


def _labels(model: Model, plan: Plan, found: Measured, progress: Progress) -> None:
    def ask(question: Question) -> str:
        return model.answer(question.messages, plan.max_label_tokens).text

    for place, text in _tried(ask, plan.labels, plan.batch, found, progress, "labels"):
        found.labels[place] = text


def _speed(model: Model, plan: Plan, found: Measured, progress: Progress) -> None:
    progress("speed")
    prompts = [question.messages for question in plan.questions[: plan.batch]]
    try:
        found.tokens_per_second = model.tokens_per_second(prompts)
    except ClientError as error:
        found.errors[str(error)] += 1


def _tried(
    work: Callable[[T], R], items: Sequence[T], batch: int, found: Measured, progress: Progress, title: str
) -> Iterator[tuple[int, R]]:
    """Iterate over the successful results and count the errors."""

    def attempt(item: T) -> R | ClientError:
        try:
            return work(item)
        except ClientError as error:
            return error

    for done, (place, result) in enumerate(in_parallel(attempt, items, batch), 1):
        if done == len(items) or done % batch == 0:
            progress(f"{title} {done} of {len(items)}")
        if isinstance(result, ClientError):
            found.errors[str(result)] += 1
        else:
            yield place, result


def _module(name: str) -> Any:
    """Return the module, which has few types; None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_sacrebleu, _rouge_scorer = _module("sacrebleu"), _module("rouge_score.rouge_scorer")
_ROUGE = ["rouge1", "rouge2", "rougeL"]

Pair = tuple[float | None, float | None]


def bleu(generated: Sequence[str], references: Sequence[str]) -> float | None:
    """Return the BLEU score of the whole corpus, 0 to 100."""
    if _sacrebleu is None or not generated:
        return None
    return _sacrebleu.corpus_bleu(list(generated), [list(references)]).score


def rouge(generated: Sequence[str], references: Sequence[str]) -> dict[str, float] | None:
    """Return the mean F1 of each ROUGE score, 0 to 1."""
    if _rouge_scorer is None or not generated:
        return None
    scorer = _rouge_scorer.RougeScorer(_ROUGE)
    scores = [scorer.score(right, text) for text, right in zip(generated, references, strict=True)]
    return {name: statistics.fmean(score[name].fmeasure for score in scores) for name in _ROUGE}


def exact_match(generated: Sequence[str], references: Sequence[str]) -> float | None:
    """Return the share of answers equal to the reference, ignoring case and surrounding spaces."""
    pairs = list(zip(generated, references, strict=True))
    if not pairs:
        return None
    return statistics.fmean(text.strip().lower() == right.strip().lower() for text, right in pairs)


def growth_percent(base: float | None, candidate: float | None) -> float | None:
    return (candidate - base) / base * 100 if base and candidate is not None else None


def comparison(perplexity: Pair, speed: Pair, length: Pair) -> dict[str, float | None]:
    """Return per cent, base first: DECREASE of perplexity, INCREASE of the others (FORM-04)."""
    grown = growth_percent(*perplexity)
    return {
        "perplexity": None if grown is None else -grown,
        "speed": growth_percent(*speed),
        "message_length": growth_percent(*length),
    }
