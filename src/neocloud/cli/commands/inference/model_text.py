"""The words for a model: what it is made for, its size, and each field that `neo model get` shows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neocloud.cli.commands.inference.verify import quality_text
from neocloud.cli.output import size_text
from neocloud.cli.resources.lookup import state_of
from neocloud.messages.neocloud.inference.v1 import ModelStatus

if TYPE_CHECKING:
    from neocloud.messages.neocloud.inference.v1 import Model

_UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3))


def summary(model: "Model") -> str:
    status = model.status
    if status.lora_rank:
        modules = ", ".join(status.target_modules)
        return f"an adapter of rank {status.lora_rank} on {modules}, {size_text(status.size_bytes)}"
    made_for = {"embed": "embeddings", "rerank": "ranking"}.get(task_text(model), "")
    kind = f"{status.architecture} for {made_for}" if made_for else status.architecture
    parts = (kind, f"{parameters(status.parameters)} parameters", size_text(status.size_bytes))
    return ", ".join((*parts, f"context {status.context_length:,}"))


def details(model: "Model") -> Sequence[tuple[str, object]]:
    status = model.status
    return (
        ("Name", model.metadata.name),
        ("ID", model.metadata.id),
        ("State", state_of(model)),
        ("Message", status.message),
        ("Task", task_text(model)),
        ("Architecture", status.architecture),
        ("Parameters", f"{status.parameters:,}"),
        ("Size", size_text(status.size_bytes)),
        ("Type", status.dtype),
        ("Context", f"{status.context_length:,}"),
        ("Bytes per token", f"{status.kv_bytes_per_token:,}" if status.kv_bytes_per_token else ""),
        ("Base", model.spec.base_model_id),
        ("Rank", status.lora_rank or ""),
        ("License", model.spec.license),
        ("Description", model.spec.description),
        ("Adapters", ", ".join(status.adapter_ids)),
        ("Deployments", ", ".join(status.deployment_ids)),
        ("SHA-256", status.digest),
        ("Artifact", status.artifact_digest),
        ("Withheld by", model.spec.withheld_by),
        ("Gate overridden", _overridden(model)),
        ("Quality test", quality_text(model)),
    )


def _overridden(model: "Model") -> str:
    made = model.spec.gate_override
    return f"by {made.subject_name or made.subject_id}: {made.reason}" if made.subject_id else ""


def task_text(model: "Model") -> str:
    """Return what the model is made for: "generate", "embed" or "rerank"; "" where it is not known."""
    found = ModelStatus.Task.Name(model.status.task)
    return "" if found == "TASK_UNSPECIFIED" or model.spec.base_model_id else found.lower()


def parameters(count: int) -> str:
    """ "8.2B" for 8,190,735,360."""
    for unit, each in _UNITS:
        if count >= each:
            return f"{count / each:.1f}".removesuffix(".0") + unit
    return str(count) if count else ""
