"""Hyperparameters, graders and places that each method of a job takes. Pure."""

import json
from collections.abc import Iterable, Mapping

from neocloud.core.json_values import as_object
from neocloud.core.kind import Violation
from neocloud.core.store.group_commit import refuse_while_writing
from neocloud.messages.neocloud.tuning.v1 import FineTuningJobSpec

Method = FineTuningJobSpec.Method
NAMES: Mapping[int, str] = {
    Method.Value("METHOD_UNSPECIFIED"): "supervised",
    Method.Value("SUPERVISED"): "supervised",
    Method.Value("DPO"): "dpo",
    Method.Value("REINFORCEMENT"): "reinforcement",
}
"""The names of methods in the recipes and in the OpenAI API."""
GRADERS = ("string_check", "text_similarity", "json_schema", "tool_call", "multi")
REFUSED_GRADERS = {
    "python": "runs code of a user; the cloud does not, and the other graders are data",
    "score_model": "asks a model; that is not supported",
    "label_model": "asks a model; that is not supported",
}
_ONLY = {
    "beta": ("dpo", "reinforcement"),
    "num_generations": ("reinforcement",),
    "max_completion_tokens": ("reinforcement",),
    "temperature": ("reinforcement",),
    "early_stopping_patience": ("supervised",),
}
"""Hyperparameters that only some methods have."""


def method_of(spec: FineTuningJobSpec) -> str:
    return NAMES.get(spec.method, "supervised")


def trains_all(spec: FineTuningJobSpec) -> bool:
    """Return whether all weights are trained, so that the result is a whole model."""
    return spec.hyperparameters.HasField("lora") and not spec.hyperparameters.lora


def makes_whole_model(spec: FineTuningJobSpec) -> bool:
    return spec.merge or trains_all(spec)


def method_violations(spec: FineTuningJobSpec) -> Iterable[Violation]:
    method, requested, field = method_of(spec), spec.hyperparameters, "spec.hyperparameters"
    for name, methods in _ONLY.items():
        if requested.HasField(name) and method not in methods:
            yield Violation(f"{field}.{name}", f"is of the method {' and '.join(methods)}, not of {method}")
    if requested.HasField("packing") and requested.packing and method != "supervised":
        yield Violation(f"{field}.packing", f"joins conversations, which {method} has none of")
    if method == "dpo" and requested.HasField("beta") and not requested.beta:
        yield Violation(f"{field}.beta", "must be above 0: without it nothing holds the model")
    if trains_all(spec) and spec.merge:
        yield Violation("spec.merge", "merges an adapter; with lora false the model is whole already")
    if spec.nodes > 1 and method != "supervised":
        yield Violation("spec.nodes", f"{method} runs on one node; leave it out")
    yield from _grader_violations(spec, method)


def _grader_violations(spec: FineTuningJobSpec, method: str) -> Iterable[Violation]:
    if method != "reinforcement":
        if spec.grader:
            yield Violation("spec.grader", f"is of the method reinforcement, not of {method}")
        return
    if spec.gate:
        yield Violation("spec.gate", "reads perplexity and accuracy, which reinforcement does not measure")
    if not spec.grader:
        yield Violation("spec.grader", "is missing: reinforcement needs one to score answers by")


def grader_of(spec: FineTuningJobSpec) -> dict[str, object]:
    """Return the grader; {} for none. Raises ValueError, RecursionError. Not for a transaction."""
    refuse_while_writing("Parsing a grader")
    return as_object(json.loads(spec.grader)) if spec.grader else {}


def grader_problem(spec: FineTuningJobSpec) -> str:
    """Return what is wrong with the grader, as far as it shows without the data; "" for nothing."""
    if not spec.grader:
        return ""
    try:
        found = grader_of(spec)
    except (ValueError, RecursionError) as error:
        return f"is no JSON ({str(error)[:80]})"
    kind = found.get("type")
    if reason := REFUSED_GRADERS.get(str(kind)):
        return f"has the type {kind}, which {reason}"
    if kind not in GRADERS:
        return f"must be an object whose type is one of {', '.join(GRADERS)}"
    return ""
