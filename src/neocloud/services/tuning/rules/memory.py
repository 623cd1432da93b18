"""Check whether a training fits into memory, and choose the smallest shape that it fits on. Pure.

Estimates are on the careful side: weights, what is trained with its gradients and the optimiser's two
moments, and the activations that are kept of each token of a batch until its gradients are known.
"""

from dataclasses import dataclass, replace

from neocloud.engines.base import Capabilities
from neocloud.messages.neocloud.inference.v1 import ModelStatus
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.messages.neocloud.tuning.v1 import Hyperparameters
from neocloud.services.compute.public import Preset, platforms, preset

GIB = 1024**3
LIBRARIES_BYTES = 5 * GIB // 4
"""The training process without model and data."""
BYTES_PER_TRAINED_WEIGHT = 16
"""In 32 bits: weight, gradient, two moments."""
KEPT_PER_KV_BYTE = 40
"""Bytes of activations that a token leaves in all layers, for each byte of its keys and values."""
KEPT_WITH_CHECKPOINTING = 6
CHECKPOINTING_FROM_PARAMETERS = 1_000_000_000
GPU_SHARE = 0.92
CPU_PLATFORM, GPU_PLATFORM = "cpu-local", "gpu-local"
LEAST_TOKENS_AT_A_TIME = 256
DEFAULT_RANK = 16
DEFAULT_GENERATIONS = 8


@dataclass(frozen=True)
class Training:
    parameters: int
    kv_bytes_per_token: int
    rank: int
    adapter_bytes_per_rank: int
    """Bytes in the served form of 16 bits; 0: not known."""
    tokens_at_a_time: int
    """Rows of one process's forward pass times their length."""
    trains_all: bool = False
    """Whether all weights are trained, and none is frozen."""
    has_reference: bool = False
    """Whether the model that it started from is kept beside it, which an adapter needs no copy for."""


@dataclass(frozen=True)
class Fit:
    fits: bool
    sentence: str
    """The arithmetic, for a message."""
    needed_bytes: int = 0
    """The estimate for one process."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of a Slurm cluster that a job may run on."""

    shape: Preset
    count: int


def uses_checkpointing(parameters: int) -> bool:
    """Return whether activations are computed twice instead of kept, as for large models."""
    return parameters >= CHECKPOINTING_FROM_PARAMETERS


def fit(training: Training, shape: Preset) -> Fit:
    """Compare the memory that one process needs with what it has. Each GPU holds the whole model."""
    stored = 2 if shape.gpus else 4
    per_rank = training.adapter_bytes_per_rank or training.parameters // 100
    weights, trained = training.parameters * stored, training.rank * per_rank // 2 * BYTES_PER_TRAINED_WEIGHT
    words = ("of weights", "for the adapter and its optimiser")
    if training.trains_all:
        weights = training.parameters * 4 * (1 + training.has_reference)
        trained = training.parameters * (BYTES_PER_TRAINED_WEIGHT - 4)
        words = ("of weights in 32 bits", "for their gradients and the optimiser")
    kept = KEPT_WITH_CHECKPOINTING if uses_checkpointing(training.parameters) else KEPT_PER_KV_BYTE
    batch = training.tokens_at_a_time * training.kv_bytes_per_token * kept * (1 if shape.gpus else 2)
    total = weights + trained + batch + LIBRARIES_BYTES
    available = shape.gpu_memory_gib * GIB * GPU_SHARE if shape.gpus else shape.memory_gib * GIB
    sentence = (
        f"{_gib(weights)} GiB {words[0]} + {_gib(trained)} GiB {words[1]}"
        f" + {_gib(batch)} GiB for {training.tokens_at_a_time:,} tokens at a time"
        f" + {_gib(LIBRARIES_BYTES)} GiB for the libraries = {_gib(total)} GiB;"
        f" {_gib(available)} GiB are available{' on each GPU' if shape.gpus else ''}"
    )
    return Fit(total <= available, sentence, int(total))


def training_of(
    requested: Hyperparameters, base: ModelStatus, method: str, context: int, rows: int = 1
) -> Training:
    """Return the training of so many rows at a time: a preference has two answers, a task has many."""
    answers = {"dpo": 2, "reinforcement": requested.num_generations or DEFAULT_GENERATIONS}.get(method, 1)
    trains_all = requested.HasField("lora") and not requested.lora
    return Training(
        parameters=base.parameters,
        kv_bytes_per_token=base.kv_bytes_per_token,
        rank=requested.lora_r or DEFAULT_RANK,
        adapter_bytes_per_rank=base.adapter_bytes_per_rank,
        tokens_at_a_time=rows * context * answers,
        trains_all=trains_all,
        has_reference=trains_all and (method == "dpo" or requested.beta > 0),
    )


def fit_on(requested: Hyperparameters, base: ModelStatus, shape: Preset, method: str = "supervised") -> Fit:
    """Compare for one row at a time, the least that a job needs."""
    context = requested.context_length or LEAST_TOKENS_AT_A_TIME
    found = fit(training_of(requested, base, method, context), shape)
    if shape.gpus and not shape.gpu_memory_gib:  # any GPU: its memory is known when it starts
        return replace(found, fits=True)
    return found


def choose_shape(
    requested: Hyperparameters,
    base: ModelStatus,
    inventory: Capabilities | None,
    method: str = "supervised",
) -> Preset | None:
    """Return the smallest shape of this machine that the job fits on; None when it fits on none."""
    name = GPU_PLATFORM if inventory is not None and inventory.accelerators else CPU_PLATFORM
    shapes = sorted(
        platforms()[name].presets.values(), key=lambda each: (each.gpus, each.memory_gib, each.vcpu)
    )
    return next((shape for shape in shapes if fit_on(requested, base, shape, method).fits), None)


def nodes_of(cluster: ClusterSpec) -> Nodes:
    """Return the nodes with GPUs, or all where none has any, and the smallest shape among them."""
    found = [(preset(each.platform, each.preset), each.count) for each in cluster.node_sets]
    usable = [each for each in found if each[0].gpus] or found
    shapes = [shape for shape, _ in usable]
    smallest = min(shapes, key=lambda shape: (shape.gpus, shape.memory_gib, shape.vcpu))
    least = replace(smallest, vcpu=min(shape.vcpu for shape in shapes))
    return Nodes(least, sum(count for _, count in usable))


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
