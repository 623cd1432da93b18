"""The body of OpenAI's POST /v1/fine_tuning/jobs as the spec of a FineTuningJob.

What cannot be served is refused with the field and the reason; nothing is dropped.
"""

import json
from collections.abc import Mapping

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import bad_request
from neocloud.model_gateway.openai_files.handlers import metadata, reject_unknown, text

WHOLE_NUMBERS = (
    *("n_epochs", "batch_size", "context_length", "lora_r", "lora_alpha", "num_generations"),
    *("max_completion_tokens", "early_stopping_patience"),
)
NUMBERS = (
    *("learning_rate", "learning_rate_multiplier", "warmup_ratio", "weight_decay", "max_grad_norm"),
    *("lora_dropout", "beta", "temperature"),
)
SWITCHES = ("packing", "lora")
METHODS = {"supervised": "SUPERVISED", "dpo": "DPO", "reinforcement": "REINFORCEMENT"}
"""The methods of the OpenAI API, with their names in the spec."""
OF_METHOD = {"supervised": {"hyperparameters"}, "dpo": {"hyperparameters"},
             "reinforcement": {"hyperparameters", "grader"}}  # fmt: skip
REFUSED = {
    "compute_multiplier": "Set num_generations, the answers to each prompt.",
    "reasoning_effort": "The models trained here have none.",
    "eval_interval": "The evaluation is made once, at the end.",
    "eval_samples": "The evaluation is made once, at the end, with 16 samples.",
}
"""Hyperparameters of the OpenAI API that have no meaning here, with what to do."""
KNOWN = {
    *("model", "training_file", "validation_file", "suffix", "seed", "method", "hyperparameters"),
    *("integrations", "metadata", "neocloud"),
}
PLACEMENT = {"platform", "preset", "slurm_cluster_id", "nodes", "merge", "gate"}
"""Fields of the object `neocloud` in the body, which OpenAI does not have: where the job runs, what it
produces, and the gate that its model must pass."""


def job_spec(body: Mapping[str, Json]) -> JsonObject:
    """Return a FineTuningJobSpec in JSON form, without `model_id`. Raises OpenAiError that names the
    field."""
    body = dict(body)
    reject_unknown(body, KNOWN)
    _no_integrations(body.get("integrations"))
    spec: JsonObject = {
        "training_file": text(body, "training_file", required=True),
        "validation_file": text(body, "validation_file"),
        "suffix": text(body, "suffix"),
        "job_metadata": {**metadata(body)},
        **_method(body),
    }
    if body.get("seed") is not None:
        spec["seed"] = _whole(body["seed"], "seed")
    placement = body.get("neocloud") or {}
    if not isinstance(placement, dict):
        raise bad_request("neocloud must be an object.", param="neocloud")
    reject_unknown(placement, PLACEMENT)
    if (gate := placement.get("gate")) is not None:
        if not isinstance(gate, dict):
            raise bad_request('gate must be an object: {"rules": [...]}.', param="neocloud.gate")
        placement = {**placement, "gate": json.dumps(gate)}
    return {**spec, **placement}


def _no_integrations(given: Json) -> None:
    if not given:
        return
    first = given[0] if isinstance(given, list) else given
    kind = first.get("type") if isinstance(first, dict) else first
    raise bad_request(
        f"The integration {kind!r} is not supported. Metrics are in the events and result files of the job.",
        param="integrations",
    )


def _method(body: Mapping[str, Json]) -> JsonObject:
    """Return the method with its hyperparameters and grader. Nebius and older OpenAI clients send
    `hyperparameters` alone, for the supervised one."""
    method, plain = body.get("method"), body.get("hyperparameters")
    if method is None:
        return {"hyperparameters": _hyperparameters(_object(plain, "hyperparameters"))}
    method = _object(method, "method")
    kind = method.get("type")
    if not isinstance(kind, str) or kind not in METHODS:
        known = ", ".join(METHODS)
        raise bad_request(f"The method {kind!r} is not supported. Use one of {known}.", param="method")
    reject_unknown(method, {"type", kind})
    if plain:
        raise bad_request("Set hyperparameters only once, in method.", param="hyperparameters")
    settings = _object(method.get(kind), f"method.{kind}")
    reject_unknown(settings, OF_METHOD[kind])
    found: JsonObject = {"method": METHODS[kind]}
    found["hyperparameters"] = _hyperparameters(_object(settings.get("hyperparameters"), "hyperparameters"))
    if (grader := settings.get("grader")) is not None:
        found["grader"] = json.dumps(_object(grader, "method.reinforcement.grader"))
    return found


def method_of(spec: JsonObject) -> str:
    """Return the OpenAI API's name of the method of a spec."""
    wanted = spec.get("method", "SUPERVISED")
    return next(name for name, each in METHODS.items() if each == wanted)


def _object(value: Json, name: str) -> JsonObject:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object.", param=name)
    return value


def _hyperparameters(given: JsonObject) -> JsonObject:
    for name, instead in REFUSED.items():
        if given.get(name) not in (None, "auto", "default"):
            raise bad_request(f"{name} is not supported. {instead}", param=name)
    given = {name: value for name, value in given.items() if name not in REFUSED}
    reject_unknown(given, {*WHOLE_NUMBERS, *NUMBERS, *SWITCHES})
    found: JsonObject = {}
    for name, value in given.items():
        if value is None or value == "auto":
            continue
        if name in WHOLE_NUMBERS:
            found[name] = _whole(value, name)
        elif name in SWITCHES:
            if not isinstance(value, bool):
                raise bad_request(f'{name} is {value!r}; it must be true, false or "auto".', param=name)
            found[name] = value
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_request(f'{name} is {value!r}; it must be a number or "auto".', param=name)
        else:
            found[name] = value
    return found


def _whole(value: Json, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise bad_request(f'{name} is {value!r}; it must be an integer or "auto".', param=name)
    return value
