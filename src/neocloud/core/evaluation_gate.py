"""The gate of a model: rules on the scores of an evaluation, and the verdict on a report. Pure.

`neo evaluate --gate` and the control plane decide with it. A rule fails when its score was not measured: only
what a report shows passes.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from neocloud.core.json_values import as_object

LARGEST_GATE_BYTES = 16 << 10
MOST_RULES = 50
LARGEST_NUMBER = 1e9


@dataclass(frozen=True)
class Metric:
    better: Literal["lower", "higher", ""]
    """The direction that is better; "" where neither is, so that only limits make sense."""
    has_interval: bool = True
    """Whether it is made of samples; others are one number."""


_HIGHER = Metric("higher")
METRICS: Mapping[str, Metric] = {
    "perplexity": Metric("lower"),
    **dict.fromkeys(("accuracy", "exact_match", "bleu", "rouge1", "rouge2", "rougeL"), _HIGHER),
    "judge_preference": _HIGHER,
    "tokens_per_second": Metric("higher", has_interval=False),
    "message_length_avg": Metric(""),
    "longest_message": Metric("", has_interval=False),
}
JOB_METRICS = METRICS.keys() - {"judge_preference"}
"""The metrics that the evaluation inside a fine-tuning job measures; it has no judge."""

Number = Annotated[float, msgspec.Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
Confidence = Literal[90, 95, 99]


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule"):
    """One line of a gate file; its key `rule` says which."""


class Better(_Rule, frozen=True, tag="better"):
    metric: str
    percent: NotNegative
    confidence: Confidence | None = None
    """Per cent: require the one-sided bound of the change, not the change that was measured."""


class NotWorse(_Rule, frozen=True, tag="not_worse"):
    metric: str
    by: NotNegative = 0
    """How much worse it may be, in the unit of the metric."""
    confidence: Confidence | None = None


class AtMost(_Rule, frozen=True, tag="at_most"):
    metric: str
    value: Number


class AtLeast(_Rule, frozen=True, tag="at_least"):
    metric: str
    value: Number


class Overall(_Rule, frozen=True, tag="overall"):
    """Better in the mean of several metrics, although some fall (EVAL-08)."""

    metrics: Annotated[tuple[str, ...], msgspec.Meta(min_length=2, max_length=MOST_RULES)]
    percent: NotNegative
    """The least mean change for the better."""
    most_worse: Annotated[int, msgspec.Meta(ge=0, le=MOST_RULES)] = 1
    """The number of metrics that may fall."""
    worse_by_percent: NotNegative | None = None
    """How far each of them may fall."""


Rule = Better | NotWorse | AtMost | AtLeast | Overall
RULES = ("better", "not_worse", "at_most", "at_least", "overall")


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: Annotated[tuple[Rule, ...], msgspec.Meta(min_length=1, max_length=MOST_RULES)]

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(name for rule in self.rules for name in _metrics_of(rule))


class BadGate(ValueError):
    """A gate cannot be used; the message says where and why."""


@dataclass(frozen=True)
class RuleVerdict:
    asked: str
    measured: str
    passed: bool
    why: str


@dataclass(frozen=True)
class Verdict:
    rules: tuple[RuleVerdict, ...]

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)

    @property
    def failures(self) -> Sequence[str]:
        """The rules that failed, as sentences."""
        return [f"{rule.asked}: {rule.why}" for rule in self.rules if not rule.passed]


def parse_gate(text: str | bytes, known: Collection[str] = METRICS, tasks: Collection[str] = ()) -> Gate:
    """Read the JSON of a gate. `tasks` are lm-eval tasks, whose metrics are "TASK/METRIC". Raises BadGate."""
    if len(text) > LARGEST_GATE_BYTES:
        raise BadGate(f"it has more than {LARGEST_GATE_BYTES:,} bytes")
    if not text.strip():
        raise BadGate('it is empty; it needs {"rules": [...]}')
    try:
        content = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
        gate = msgspec.convert(content, Gate)
    except msgspec.ValidationError as error:
        raise BadGate(f"{error}; each rule is one of {', '.join(RULES)}") from error
    except (ValueError, RecursionError) as error:
        raise BadGate(f"it is no JSON of a gate: {error}") from error
    for place, rule in enumerate(gate.rules):
        if problem := _problem(rule, known, tasks):
            raise BadGate(f"rules[{place}]: {problem}")
    return gate


def decide(report: object, gate: Gate) -> Verdict:
    """Return the verdict on a report of the recipe or of `neo evaluate`."""
    details = as_object(as_object(report).get("details"))
    try:
        scores = msgspec.convert(details.get("scores"), dict[str, _Score])
    except msgspec.ValidationError:
        scores = dict[str, _Score]()
    found = [_verdict(rule, scores) for rule in gate.rules]
    if details.get("is_complete") is False:
        found.append(RuleVerdict("a complete evaluation", "interrupted", False, "run it again"))
    models = ("base_model", "finetuned_model")
    failed = {name: as_object(details.get(name)).get("errors") for name in models}
    if any(failed.values()):
        of = " and ".join(name.replace("_", " ") for name, errors in failed.items() if errors)
        why = "samples are missing, so the scores are not those of the data; run it again"
        found.append(RuleVerdict("an answer to each request", f"requests of the {of} failed", False, why))
    return Verdict(tuple(found))


class _Change(msgspec.Struct, frozen=True):
    value: float | None = None
    bounds: dict[str, tuple[float, float]] = {}


class _Score(msgspec.Struct, frozen=True):
    base_model: _Change
    finetuned_model: _Change
    difference: _Change
    percent: _Change
    better: str = ""


def _metrics_of(rule: Rule) -> tuple[str, ...]:
    return rule.metrics if isinstance(rule, Overall) else (rule.metric,)


def _problem(rule: Rule, known: Collection[str], tasks: Collection[str]) -> str:
    """Return why a rule makes no sense; "" where it does."""
    names = _metrics_of(rule)
    if len(set(names)) < len(names):
        return "a metric is named twice"
    for name in names:
        if "/" in name and name.partition("/")[0] in tasks:
            metric = Metric("higher", has_interval=False)
        elif name not in known:
            offered = [*sorted(known), *(f"{task}/METRIC" for task in sorted(tasks))]
            return f'there is no metric "{name[:80]}" here; there are {", ".join(offered)}'
        else:
            metric = METRICS[name]
        if not metric.better and not isinstance(rule, AtMost | AtLeast):
            return f"more of {name} is neither better nor worse; use at_most or at_least"
        if not metric.has_interval and getattr(rule, "confidence", None):
            return f"{name} is one number without samples, so it has no confidence; leave that out"
    return ""


def _without_repeats(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _verdict(rule: Rule, scores: Mapping[str, _Score]) -> RuleVerdict:
    asked = describe(rule)
    missing = [name for name in _metrics_of(rule) if not _is_measured(scores.get(name))]
    if missing:
        there = ", ".join(sorted(name for name, each in scores.items() if _is_measured(each))) or "nothing"
        why = f"{', '.join(missing)} was not measured; {there} was measured"
        return RuleVerdict(asked, "not measured", False, why)
    match rule:
        case Overall():
            return _overall(rule, asked, scores)
        case Better():
            return _better(rule, asked, scores[rule.metric])
        case NotWorse():
            return _not_worse(rule, asked, scores[rule.metric])
        case AtMost() | AtLeast():
            value = _value(scores[rule.metric].finetuned_model)
            is_most = isinstance(rule, AtMost)
            passed = value <= rule.value if is_most else value >= rule.value
            side = "within" if passed else "above" if is_most else "below"
            why = f"{side} the limit of {_number(rule.value)}"
            return RuleVerdict(asked, _number(value), passed, why)


def _not_worse(rule: NotWorse, asked: str, score: _Score) -> RuleVerdict:
    gain, bound = _gain(score, rule.metric, score.difference, rule.confidence)
    if bound is None:
        return RuleVerdict(asked, _change(score), False, _no_bound(rule.confidence))
    if rule.confidence:
        why = _bound_words("it changed for the better by at least", bound, rule.confidence)
    else:
        why = f"it changed for the better by {_signed(gain)}"
    return RuleVerdict(asked, _change(score), bound >= -rule.by, why)


def _better(rule: Better, asked: str, score: _Score) -> RuleVerdict:
    change = _change(score)
    if score.percent.value is None:  # the base has 0: no share of it can be made
        gain, bound = _gain(score, rule.metric, score.difference, rule.confidence)
        passed = bound is not None and bound > 0
        why = "better than 0" if passed else f"the base has 0, and it is not better ({_signed(gain)})"
        return RuleVerdict(asked, change, passed, why)
    gain, bound = _gain(score, rule.metric, score.percent, rule.confidence)
    measured = f"{change}: {_signed(gain)} %"
    if bound is None:
        return RuleVerdict(asked, measured, False, _no_bound(rule.confidence))
    if rule.confidence:
        why = _bound_words("it changed for the better by at least", bound, rule.confidence) + " %"
    else:
        why = f"{_signed(gain)} % against {_number(rule.percent)} % that were asked for"
    return RuleVerdict(asked, measured, bound >= rule.percent, why)


def _overall(rule: Overall, asked: str, scores: Mapping[str, _Score]) -> RuleVerdict:
    unusable = [name for name in rule.metrics if scores[name].percent.value is None]
    if unusable:
        why = f"{', '.join(unusable)} of the base is 0, so no change in per cent can be made; leave it out"
        return RuleVerdict(asked, "not comparable", False, why)
    gains = {name: _gain(scores[name], name, scores[name].percent, None)[0] for name in rule.metrics}
    mean = sum(gains.values()) / len(gains)
    worse = {name: gain for name, gain in gains.items() if gain < 0}
    problems: list[str] = []
    if mean < rule.percent:
        problems.append(f"the mean is {_signed(mean)} % instead of {_number(rule.percent)} %")
    if len(worse) > rule.most_worse:
        problems.append(f"{', '.join(worse)} fell, and {rule.most_worse} may")
    limit = rule.worse_by_percent
    if limit is not None and (far := [name for name, gain in worse.items() if -gain > limit]):
        problems.append(f"{', '.join(far)} fell by more than {_number(limit)} %")
    shown = ", ".join(f"{name} {_signed(gain)} %" for name, gain in gains.items())
    fine = f"the mean is {_signed(mean)} %" + (f", although {', '.join(worse)} fell" if worse else "")
    return RuleVerdict(asked, shown, not problems, "; ".join(problems) or fine)


def describe(rule: Rule) -> str:
    """Return what a rule asks for, in words."""
    match rule:
        case Better():
            return f"{rule.metric} at least {_number(rule.percent)} % better{_surely(rule.confidence)}"
        case NotWorse():
            by = f" by more than {_number(rule.by)}" if rule.by else ""
            return f"{rule.metric} not worse{by}{_surely(rule.confidence)}"
        case AtMost():
            return f"{rule.metric} at most {_number(rule.value)}"
        case AtLeast():
            return f"{rule.metric} at least {_number(rule.value)}"
        case Overall():
            limit = rule.worse_by_percent
            by = f" by at most {_number(limit)} %" if limit is not None else ""
            return (
                f"{', '.join(rule.metrics)} at least {_number(rule.percent)} % better in the mean,"
                f" {rule.most_worse} of them may fall{by}"
            )


def _surely(confidence: int | None) -> str:
    return f", with {confidence} % confidence" if confidence else ""


def _is_measured(score: _Score | None) -> bool:
    values = () if score is None else (score.base_model.value, score.finetuned_model.value)
    return bool(values) and all(value is not None and math.isfinite(value) for value in values)


def _change(score: _Score) -> str:
    return f"{_number(_value(score.base_model))} to {_number(_value(score.finetuned_model))}"


def _value(change: _Change) -> float:
    assert change.value is not None, "Only measured scores are compared."
    return change.value


def _gain(score: _Score, name: str, change: _Change, confidence: int | None) -> tuple[float, float | None]:
    """Return how far the score became better, and the bound of that: the same number without a confidence,
    None where the samples give no bound."""
    better = METRICS[name].better if name in METRICS else score.better
    sign = -1 if better == "lower" else 1
    gain = math.nan if change.value is None else sign * change.value
    if not confidence:
        return gain, None if math.isnan(gain) else gain
    bounds = change.bounds.get(str(confidence))
    least = None if bounds is None else min(sign * bound for bound in bounds)
    return gain, least if least is not None and math.isfinite(least) else None


def _bound_words(words: str, bound: float, confidence: int | None) -> str:
    return f"with {confidence} % confidence {words} {_signed(bound)}"


def _no_bound(confidence: int | None) -> str:
    return f"there are too few samples for {confidence} % confidence; evaluate on more"


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{_number(value)}"
