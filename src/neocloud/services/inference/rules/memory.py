"""Does a model fit, and how many requests at a time? The arithmetic, and the sentence that shows it. Pure.

What has to be there at once: weights, a place for each adapter, what the engine itself takes, and keys and
values for at least one request of full length. What is left over holds further requests: many short ones, or
so many of full length as the sentence says. Beyond that requests wait in the engine.
"""

from dataclasses import dataclass

GIB = 1024**3

GPU_SHARE = 0.9
"""Of a GPU's memory, what the engine may take; the rest is the driver's and other libraries'."""
GPU_OVERHEAD_BYTES = 2 * GIB
"""Activations, captured graphs and libraries in each GPU's memory."""
CPU_OVERHEAD_BYTES = 2 * GIB
"""The engine's processes and their libraries in a machine's memory, without weights and cache."""
CACHE_STEP_BYTES = GIB
"""The engine's cache on a CPU is asked for in whole GiB."""
LEAST_CONTEXT = 512
"""A context that is left open is made smaller to fit, but not below this."""


@dataclass(frozen=True)
class ModelSize:
    """What of a model matters here; as its status says."""

    weights_bytes: int
    kv_bytes_per_token: int
    context_length: int
    adapter_bytes_per_rank: int = 0


@dataclass(frozen=True)
class Shape:
    """What one replica runs on."""

    memory_bytes: int
    """Of the GPUs together, or of the machine's memory where it has none."""
    gpus: int = 0


@dataclass(frozen=True)
class Wish:
    """0 leaves a number open."""

    context_length: int = 0
    max_concurrency: int = 0
    max_adapters: int = 0
    adapter_rank: int = 0
    is_fast: bool = False


@dataclass(frozen=True)
class Plan:
    fits: bool
    sentence: str
    context_length: int = 0
    max_concurrency: int = 0
    cache_bytes: int = 0
    """For keys and values; on a CPU the engine is told, on a GPU it takes what is left."""


def plan(model: ModelSize, shape: Shape, wish: Wish) -> Plan:
    """How a replica of this shape would serve the model; `fits` False when it cannot."""
    share = GPU_SHARE if shape.gpus else 1.0
    overhead = GPU_OVERHEAD_BYTES * shape.gpus if shape.gpus else CPU_OVERHEAD_BYTES
    adapters = wish.max_adapters * wish.adapter_rank * model.adapter_bytes_per_rank
    usable = int(shape.memory_bytes * share)
    left = usable - model.weights_bytes - overhead - adapters
    concurrency = wish.max_concurrency or default_concurrency(shape, is_fast=wish.is_fast)
    context = wish.context_length or _open_context(model, left, shape)
    cache = _cache(model.kv_bytes_per_token * context, shape)
    parts = [f"{_gib(model.weights_bytes)} GiB of weights"]
    if adapters:
        parts.append(f"{_gib(adapters)} GiB for {wish.max_adapters} adapters of rank {wish.adapter_rank}")
    parts.append(f"{_gib(overhead)} GiB for the engine")
    parts.append(
        f"{_gib(cache)} GiB for one request of {context:,} tokens at {model.kv_bytes_per_token:,} bytes each"
    )
    total = model.weights_bytes + adapters + overhead + cache
    sum_text = f"{' + '.join(parts)} = {_gib(total)} GiB"
    there = f"{_gib(usable)} GiB{_where(shape)}"
    if total > usable:
        return Plan(False, f"{sum_text}, and there are {there}")
    at_once = max(1, left // max(1, model.kv_bytes_per_token * context))
    full = min(at_once, concurrency)
    cache = min(_cache(model.kv_bytes_per_token * context * full, shape), left)
    if not shape.gpus:
        cache = max(CACHE_STEP_BYTES, cache // CACHE_STEP_BYTES * CACHE_STEP_BYTES)
    sentence = f"{sum_text} of {there}; room for {full} such request{'s' if full > 1 else ''} at a time"
    return Plan(True, sentence, context, concurrency, cache)


def default_concurrency(shape: Shape, *, is_fast: bool) -> int:
    """The fast flavour answers fewer at a time, each sooner."""
    if shape.gpus:
        return 32 if is_fast else 256
    return 4 if is_fast else 16


def served_bytes(parameters: int, size_bytes: int, dtype: str) -> int:
    """What weights take when served: 32-bit ones are served in 16 bits."""
    return min(size_bytes, 2 * parameters) if dtype == "float32" and parameters else size_bytes


def _open_context(model: ModelSize, left: int, shape: Shape) -> int:
    room = left if shape.gpus else left // CACHE_STEP_BYTES * CACHE_STEP_BYTES
    tokens = room // max(1, model.kv_bytes_per_token)
    least = min(LEAST_CONTEXT, model.context_length)
    return min(model.context_length, max(least, int(tokens)))


def _cache(size: int, shape: Shape) -> int:
    return size if shape.gpus else max(1, -(-size // CACHE_STEP_BYTES)) * CACHE_STEP_BYTES


def _where(shape: Shape) -> str:
    if not shape.gpus:
        return " of memory"
    whole = f"{_gib(shape.memory_bytes)} GiB of {shape.gpus} GPU{'s' if shape.gpus > 1 else ''}"
    return f" ({GPU_SHARE:.0%} of {whole})"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}".removesuffix(".0") if size >= GIB // 20 else f"{size / GIB:.3f}"
