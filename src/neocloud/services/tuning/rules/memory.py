"""Does a training fit? The arithmetic before anything starts, and the sentence that shows it. Pure.

Estimates on the careful side: weights, the adapter with its gradients and the optimiser's two moments, and
what is kept of each token of a batch until its gradients are known.
"""

from dataclasses import dataclass

GIB = 1024**3
LIBRARIES_BYTES = 5 * GIB // 4
"""The training process without model and data."""
BYTES_PER_TRAINED_WEIGHT = 16
"""In 32 bits: weight, gradient, two moments."""
KEPT_PER_KV_BYTE = 40
"""What a token leaves behind in all layers, in terms of its keys and values."""
KEPT_WITH_CHECKPOINTING = 6
CHECKPOINTING_FROM_PARAMETERS = 1_000_000_000
GPU_SHARE = 0.92


@dataclass(frozen=True)
class Training:
    parameters: int
    kv_bytes_per_token: int
    rank: int
    adapter_bytes_per_rank: int
    """As served, in 16 bits; 0: not known."""
    tokens_at_a_time: int
    """Of one process: rows of a forward pass times their length."""


@dataclass(frozen=True)
class Fit:
    fits: bool
    sentence: str


def uses_checkpointing(parameters: int) -> bool:
    """Large models do the forward pass twice instead of keeping all of it."""
    return parameters >= CHECKPOINTING_FROM_PARAMETERS


def fit(training: Training, *, memory_gib: int, gpus: int, gpu_memory_gib: int) -> Fit:
    """Each GPU holds a whole copy of the model; without GPUs there is one process."""
    weights = training.parameters * (2 if gpus else 4)
    per_rank = training.adapter_bytes_per_rank or training.parameters // 100
    adapter = training.rank * per_rank // 2 * BYTES_PER_TRAINED_WEIGHT
    kept = KEPT_WITH_CHECKPOINTING if uses_checkpointing(training.parameters) else KEPT_PER_KV_BYTE
    batch = training.tokens_at_a_time * training.kv_bytes_per_token * kept * (1 if gpus else 2)
    total = weights + adapter + batch + LIBRARIES_BYTES
    there = gpu_memory_gib * GIB * GPU_SHARE if gpus else memory_gib * GIB
    sentence = (
        f"{_gib(weights)} GiB of weights + {_gib(adapter)} GiB for the adapter and its optimiser"
        f" + {_gib(batch)} GiB for {training.tokens_at_a_time:,} tokens at a time"
        f" + {_gib(LIBRARIES_BYTES)} GiB for the libraries = {_gib(total)} GiB;"
        f" {_gib(int(there))} GiB are there{' on each GPU' if gpus else ''}"
    )
    return Fit(total <= there, sentence)


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
