"""Metrics of one model on test conversations. Results are kept when a run is interrupted."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice
from typing import TypeVar

from neocloud.cli.evaluation.client import Model, in_parallel
from neocloud.cli.evaluation.conversations import Conversation, Loss, NoLikelihood, Question
from neocloud.client.errors import ClientError

SCALED_TO = (1, 16)
"""Numbers of concurrent requests whose speeds are compared (EVAL-06)."""
T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[str], None]


class Metric(StrEnum):
    PERPLEXITY = "perplexity"
    GENERATION = "generation"
    SPEED = "speed"
    ACCURACY = "accuracy"
    SCALING = "scaling"


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
    seed: int
    """For drawing samples and for the bootstrap of confidence intervals."""


@dataclass
class Measured:
    """Results of one model so far."""

    losses: dict[int, Loss] = field(default_factory=dict[int, Loss])
    """The loss of each conversation, by its index."""
    answers: dict[int, str] = field(default_factory=dict[int, str])
    """Answers by the index of the question."""
    answer_tokens: int = 0
    labels: dict[int, str] = field(default_factory=dict[int, str])
    tokens_per_second: float | None = None
    speeds: dict[int, float] = field(default_factory=dict[int, float])
    """Tokens per second by the number of concurrent requests, for scaling."""
    errors: Counter[str] = field(default_factory=Counter[str])
    """Count of each error message."""
    remarks: list[str] = field(default_factory=list[str])

    @property
    def loss(self) -> Loss:
        """The loss of all conversations together."""
        found = self.losses.values()
        return Loss(sum(each.total for each in found), sum(each.tokens for each in found))

    @property
    def is_empty(self) -> bool:
        has_speed = self.tokens_per_second or self.speeds
        return not (self.loss.tokens or self.answers or self.labels or has_speed)


def measure(model: Model, plan: Plan, found: Measured, progress: Progress) -> None:
    """Measure each metric in turn and store the results in `found`."""
    steps = {
        Metric.PERPLEXITY: _perplexity,
        Metric.GENERATION: _answers,
        Metric.SPEED: _speed,
        Metric.ACCURACY: _labels,
        Metric.SCALING: _scaling,
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
        for place, loss in _tried(cost, plan.conversations, plan.batch, found, progress, "perplexity"):
            found.losses[place] = loss
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


def _scaling(model: Model, plan: Plan, found: Measured, progress: Progress) -> None:
    prompts = [question.messages for question in plan.questions]
    for streams in SCALED_TO:
        progress(f"speed, {streams} at a time")
        try:
            found.speeds[streams] = model.tokens_per_second(list(islice(cycle(prompts), streams)))
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
