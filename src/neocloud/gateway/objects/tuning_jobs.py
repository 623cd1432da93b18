"""OpenAI's fine-tuning jobs and the published Nebius ones, from and to neocloud.tuning.v1. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from neocloud.gateway.errors import bad_request
from neocloud.gateway.objects.answering import metadata, only_known, text

WHOLE_NUMBERS = ("n_epochs", "batch_size", "context_length", "lora_r", "lora_alpha")
NUMBERS = (
    *("learning_rate", "learning_rate_multiplier", "warmup_ratio", "weight_decay", "max_grad_norm"),
    "lora_dropout",
)
SWITCHES = ("packing", "lora")
KNOWN = {
    *("model", "training_file", "validation_file", "suffix", "seed", "method", "hyperparameters"),
    *("integrations", "metadata", "neocloud"),
}
PLACEMENT = {"platform", "preset", "slurm_cluster_id", "nodes", "merge"}
"""What OpenAI has no words for: where it runs, and what comes out. In the body's object `neocloud`."""


def job_spec(body: Mapping[str, Any]) -> dict[str, Any]:
    """FineTuningJobSpec in JSON form, without `model_id`. Raises OpenAiError that names the wrong part."""
    body = dict(body)
    only_known(body, KNOWN)
    _no_integrations(body.get("integrations"))
    spec: dict[str, Any] = {
        "training_file": text(body, "training_file", required=True),
        "validation_file": text(body, "validation_file"),
        "suffix": text(body, "suffix"),
        "job_metadata": metadata(body),
        "hyperparameters": _hyperparameters(_given(body)),
    }
    if body.get("seed") is not None:
        spec["seed"] = _whole(body["seed"], "seed")
    placement = body.get("neocloud") or {}
    if not isinstance(placement, dict):
        raise bad_request("neocloud must be an object.", param="neocloud")
    only_known(placement, PLACEMENT)
    return {**spec, **placement}


def _no_integrations(given: Any) -> None:
    if not given:
        return
    first = given[0] if isinstance(given, list) else given
    kind = first.get("type") if isinstance(first, dict) else first
    raise bad_request(
        f"The integration {kind!r} is not supported. Metrics are in the events and result files of the job.",
        param="integrations",
    )


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    """From `method`, or from `hyperparameters` as the Nebius body and older clients of OpenAI have it."""
    method, plain = body.get("method"), body.get("hyperparameters")
    if method is None:
        given = plain or {}
    elif not isinstance(method, dict) or method.get("type") != "supervised":
        kind = method.get("type") if isinstance(method, dict) else method
        raise bad_request(f"The method {kind!r} is not supported. Use supervised.", param="method")
    else:
        supervised = method.get("supervised") or {}
        given = (supervised.get("hyperparameters") if isinstance(supervised, dict) else None) or {}
        if plain:
            raise bad_request("Set hyperparameters only once, in method.", param="hyperparameters")
    if not isinstance(given, dict):
        raise bad_request("hyperparameters must be an object.", param="hyperparameters")
    return given


def _hyperparameters(given: dict[str, Any]) -> dict[str, Any]:
    only_known(given, {*WHOLE_NUMBERS, *NUMBERS, *SWITCHES})
    found: dict[str, Any] = {}
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


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise bad_request(f'{name} is {value!r}; it must be an integer or "auto".', param=name)
    return value


def as_job(job: Any, model: str, tenant_id: str) -> dict[str, Any]:
    """`model` is the name of what it was trained on."""
    status, spec = job.status, job.spec
    used = _used(status.hyperparameters if status.HasField("hyperparameters") else spec.hyperparameters)
    return {
        "id": job.metadata.id,
        "object": "fine_tuning.job",
        "created_at": _seconds(job.metadata, "created_at") or 0,
        "started_at": _seconds(status, "started_at"),
        "finished_at": _seconds(status, "finished_at"),
        "estimated_finish": _seconds(status, "estimated_finish"),
        "model": model,
        "fine_tuned_model": status.fine_tuned_model or None,
        "organization_id": tenant_id,
        "status": _state(job),
        "training_file": spec.training_file,
        "validation_file": spec.validation_file or None,
        "hyperparameters": {
            "n_epochs": "auto",
            "batch_size": "auto",
            "learning_rate_multiplier": "auto",
            **used,
        },
        "method": {"type": "supervised", "supervised": {"hyperparameters": used}},
        "result_files": list(status.result_files),
        "trained_tokens": status.trained_tokens or None,
        "seed": spec.seed,
        "user_provided_suffix": spec.suffix or None,
        "integrations": [],
        "metadata": dict(spec.job_metadata) or None,
        "error": _error(status.error) if status.HasField("error") else None,
        "warnings": list(status.warnings),
        "evaluation": _plain(status.evaluation) if status.HasField("evaluation") else None,
        "step": status.step,
        "total_steps": status.total_steps,
    }


def _state(job: Any) -> str:
    name: str = (
        job.status.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[job.status.state].name
    )
    return {"STATE_UNSPECIFIED": "validating_files", "DELETING": "cancelled"}.get(name) or name.lower()


def _used(hyperparameters: Any) -> dict[str, Any]:
    return {field.name: value for field, value in hyperparameters.ListFields()}


def _error(error: Any) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "param": error.param or None}


def _plain(message: Any) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _seconds(message: Any, name: str) -> int | None:
    return getattr(message, name).seconds if message.HasField(name) else None


def as_event(event: Any) -> dict[str, Any]:
    return {
        "id": event.id,
        "object": "fine_tuning.job.event",
        "created_at": event.created_at.seconds,
        "level": event.level,
        "message": event.message,
        "type": event.type or "message",
        "data": json.loads(event.data) if event.data else None,
    }


def as_checkpoint(checkpoint: Any, job: Any) -> dict[str, Any]:
    metrics = {"step": checkpoint.step_number, "train_loss": checkpoint.train_loss}
    if checkpoint.HasField("valid_loss"):
        metrics["valid_loss"] = checkpoint.valid_loss
    name = job.status.fine_tuned_model or job.metadata.id
    return {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": checkpoint.created_at.seconds,
        "fine_tuned_model_checkpoint": f"{name}:step-{checkpoint.step_number}",
        "fine_tuning_job_id": job.metadata.id,
        "step_number": checkpoint.step_number,
        "metrics": metrics,
    }
