"""Which memory a replica has, and the plan of a model on it: what rules and reconciler ask alike. Pure."""

from typing import Any

from neocloud.engines.base import Capabilities
from neocloud.fleet.gpu_models import gpu_type
from neocloud.services.compute.public import Preset, preset
from neocloud.services.inference.resources import is_fast
from neocloud.services.inference.rules.memory import GIB, ModelSize, Plan, Shape, Wish, plan, served_bytes

LARGEST_RANK = 64
"""Of the adapters that a deployment makes room for; those beyond are refused when they are added."""


def replica_shape(found: Preset, capabilities: Capabilities | None) -> Shape:
    """GPUs as published, and those of an unknown type as the machine's own say."""
    if not found.gpus:
        return Shape(found.memory_gib * GIB)
    fitting = [
        each.memory_mib * 1024**2
        for each in (capabilities.accelerators if capabilities else ())
        if found.gpu_type in ("", gpu_type(each.model))
    ]
    each_bytes = found.gpu_memory_gib * GIB or min(fitting, default=0)
    return Shape(each_bytes * found.gpus, found.gpus)


def model_size(status: Any) -> ModelSize:
    return ModelSize(
        weights_bytes=served_bytes(status.parameters, status.size_bytes, status.dtype),
        kv_bytes_per_token=status.kv_bytes_per_token,
        context_length=status.context_length,
        adapter_bytes_per_rank=status.adapter_bytes_per_rank,
    )


def deployment_plan(spec: Any, status: Any, shape: Shape) -> Plan:
    """How this deployment would serve the model of this status on that shape."""
    wish = Wish(
        context_length=spec.context_length,
        max_concurrency=spec.max_concurrency,
        max_adapters=spec.max_adapters,
        adapter_rank=LARGEST_RANK,
        is_fast=is_fast(spec),
    )
    return plan(model_size(status), shape, wish)


def shape_of(spec: Any, capabilities: Capabilities | None) -> Shape | None:
    """None where a Slurm cluster decides and the spec does not say how much."""
    if spec.platform:
        return replica_shape(preset(spec.platform, spec.preset), capabilities)
    wanted = spec.slurm_resources
    if wanted.memory_gibibytes and not wanted.gpus:
        return Shape(wanted.memory_gibibytes * GIB)
    return None
