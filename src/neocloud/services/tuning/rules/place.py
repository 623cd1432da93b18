"""Where a job runs that does not say: the smallest shape of this machine that it fits on. Pure."""

from dataclasses import dataclass, replace
from typing import Any

from neocloud.engines.base import Capabilities
from neocloud.services.compute.public import Preset, platforms, preset
from neocloud.services.tuning.rules.hyperparameters import RANK
from neocloud.services.tuning.rules.memory import Fit, Training, fit

CPU_PLATFORM, GPU_PLATFORM = "cpu-local", "gpu-local"
LEAST_TOKENS_AT_A_TIME = 256


def fit_on(asked: Any, status: Any, shape: Preset) -> Fit:
    """Of one conversation at a time: more are taken where there is room."""
    training = Training(
        parameters=status.parameters,
        kv_bytes_per_token=status.kv_bytes_per_token,
        rank=asked.lora_r or RANK,
        adapter_bytes_per_rank=status.adapter_bytes_per_rank,
        tokens_at_a_time=asked.context_length or LEAST_TOKENS_AT_A_TIME,
    )
    found = fit(training, memory_gib=shape.memory_gib, gpus=shape.gpus, gpu_memory_gib=shape.gpu_memory_gib)
    if shape.gpus and not shape.gpu_memory_gib:  # any GPU: its memory is known when it starts
        return replace(found, fits=True)
    return found


@dataclass(frozen=True)
class Nodes:
    """Of a Slurm cluster, those that a job may get."""

    shape: Preset
    count: int


def nodes_of(cluster_spec: Any) -> Nodes:
    """The smallest shape of any node it may run on: those with GPUs where there are such, else all."""
    found = [(preset(each.platform, each.preset), each.count) for each in cluster_spec.node_sets]
    fit = [each for each in found if each[0].gpus] or found
    smallest = min((shape for shape, _ in fit), key=lambda shape: (shape.gpus, shape.memory_gib, shape.vcpu))
    least = replace(smallest, vcpu=min(shape.vcpu for shape, _ in fit))
    return Nodes(least, sum(count for _, count in fit))


def choose_shape(asked: Any, status: Any, inventory: Capabilities | None) -> Preset | None:
    """None when no shape of the platform holds it."""
    name = GPU_PLATFORM if inventory is not None and inventory.accelerators else CPU_PLATFORM
    shapes = sorted(
        platforms()[name].presets.values(), key=lambda each: (each.gpus, each.memory_gib, each.vcpu)
    )
    return next((shape for shape in shapes if fit_on(asked, status, shape).fits), None)
