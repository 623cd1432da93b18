"""Compute the memory of a model, from the architecture in its config.json, and the memory plan of a replica:
whether the model fits, for how many requests, and the sentence that says so. Pure.

Memory holds the weights, the adapters, the model server itself, and keys and values for at least one request
of full length. The rest holds further requests: many short ones, or as many of full length as the sentence
says. Further requests wait in the model server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neocloud.core.json_values import is_object
from neocloud.engines.base import Capabilities
from neocloud.engines.gpu_types import gpu_type
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ModelStatus
from neocloud.services.compute.public import Preset, preset
from neocloud.services.inference.types import is_fast

BYTES_OF_SERVED = 2
"""The bytes of a number among keys, values and adapters: 16 bits."""
LARGEST_NUMBER = 2**26
"""The largest number that config.json may hold. The longest published context is 10 million tokens."""
LARGEST_BYTES = 2**36
"""The most that a token, or a rank of an adapter, may take: what follows from it fits a status."""


class UnknownArchitecture(ValueError):
    """A config.json that lacks a needed field, or has one that no model has; the message names it."""


@dataclass(frozen=True)
class Architecture:
    name: str
    context_length: int
    kv_bytes_per_token: int
    adapter_bytes_per_rank: int
    hidden_size: int
    layers: int
    dtype: str
    """From config.json; "" where it has none."""


def read_architecture(config: Mapping[str, object]) -> Architecture:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise UnknownArchitecture('config.json has no "architectures"')
    inner = config.get("text_config")
    text: Mapping[str, object] = inner if is_object(inner) else config
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers")
    hidden = _number(text, "hidden_size", "n_embd", "d_model")
    found = Architecture(
        name=names[0],
        context_length=_number(text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
        kv_bytes_per_token=layers * _kv_bytes_per_layer(text, hidden),
        adapter_bytes_per_rank=layers * _linear_sides(text, hidden) * BYTES_OF_SERVED,
        hidden_size=hidden,
        layers=layers,
        dtype=_dtype(config) or _dtype(text),
    )
    if max(found.kv_bytes_per_token, found.adapter_bytes_per_rank) > LARGEST_BYTES:
        raise UnknownArchitecture("config.json describes layers that are too large")
    return found


def _kv_bytes_per_layer(text: Mapping[str, object], hidden: int) -> int:
    if isinstance(text.get("kv_lora_rank"), int):  # latent attention keeps one compressed vector
        return (_number(text, "kv_lora_rank") + _number_or(text, "qk_rope_head_dim", 0)) * BYTES_OF_SERVED
    heads = _number(text, "num_attention_heads", "n_head")
    kv_heads = _number_or(text, "num_key_value_heads", heads)
    return 2 * kv_heads * _head_size(text, hidden, heads) * BYTES_OF_SERVED


def _linear_sides(text: Mapping[str, object], hidden: int) -> int:
    """Return the inputs and outputs of a layer's linear modules: an adapter has a row or column for each."""
    heads = _number(text, "num_attention_heads", "n_head")
    head_size = _head_size(text, hidden, heads)
    queries, keys = heads * head_size, _number_or(text, "num_key_value_heads", heads) * head_size
    inner = _number_or(text, "intermediate_size", 4 * hidden)
    attention = 2 * (hidden + queries) + 2 * (hidden + keys)
    return attention + 3 * (hidden + inner)


def _head_size(text: Mapping[str, object], hidden: int, heads: int) -> int:
    return _number_or(text, "head_dim", hidden // heads)


def _number(config: Mapping[str, object], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_NUMBER:
            return value
    raise UnknownArchitecture(f'config.json has no usable "{names[0]}"')


def _number_or(config: Mapping[str, object], name: str, default: int) -> int:
    """Return the number of this name; the default where it is missing, null or 0."""
    value = config.get(name) or default
    try:
        if isinstance(value, int | float | str) and 0 <= (number := int(value)) <= LARGEST_NUMBER:
            return number
    except (ValueError, OverflowError):
        pass
    raise UnknownArchitecture(f'config.json has no usable number "{name}"')


def _dtype(config: Mapping[str, object]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")


GIB, MIB = 1024**3, 1024**2

GPU_SHARE = 0.9
"""The part of a GPU's memory that the model server may take; the driver and other libraries use the rest."""
GPU_OVERHEAD_BYTES = 2 * GIB
"""Activations, captured graphs and libraries in each GPU's memory."""
CPU_OVERHEAD_BYTES = 2 * GIB
"""The model server's processes and their libraries in a machine's memory, without weights and cache."""
CACHE_STEP_BYTES = GIB
"""On a CPU, vLLM takes the size of its cache in whole GiB."""
LARGEST_RANK = 64
"""The highest rank of an adapter that a deployment serves; others are refused when they are added."""
COMPARED_CONTEXT = 1024
"""The context in which weights of fewer bits are compared with the original ones."""
LEAST_CONTEXT = 512
"""A context length that the spec leaves open is reduced to fit, but not below this."""


@dataclass(frozen=True)
class ModelSize:
    """The parts of a model's status that decide how much memory it takes."""

    weights_bytes: int
    kv_bytes_per_token: int
    context_length: int
    adapter_bytes_per_rank: int = 0


@dataclass(frozen=True)
class Shape:
    """The hardware of one replica."""

    memory_bytes: int
    """Memory of all its GPUs, or of the machine where it has none."""
    gpus: int = 0


@dataclass(frozen=True)
class ServingRequest:
    """The numbers that a deployment asks for; 0 leaves one open."""

    context_length: int = 0
    max_concurrency: int = 0
    max_adapters: int = 0
    adapter_rank: int = 0
    is_fast: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    fits: bool
    sentence: str
    context_length: int = 0
    max_concurrency: int = 0
    cache_bytes: int = 0
    """For keys and values. Passed to the model server on a CPU; on a GPU it takes what is left."""
    spare_bytes: int = 0
    """Left of the memory when all requests that run at a time have their cache."""


def plan(model: ModelSize, shape: Shape, request: ServingRequest) -> MemoryPlan:
    """Return how a replica of this shape serves the model; `fits` is False when it cannot."""
    share = GPU_SHARE if shape.gpus else 1.0
    overhead = GPU_OVERHEAD_BYTES * shape.gpus if shape.gpus else CPU_OVERHEAD_BYTES
    adapters = request.max_adapters * request.adapter_rank * model.adapter_bytes_per_rank
    usable = int(shape.memory_bytes * share)
    left = usable - model.weights_bytes - overhead - adapters
    concurrency = request.max_concurrency or default_concurrency(shape, is_fast=request.is_fast)
    context = request.context_length or _open_context(model, left, shape)
    cache = _cache(model.kv_bytes_per_token * context, shape)
    parts = [f"{_gib(model.weights_bytes)} GiB of weights"]
    if adapters:
        parts.append(
            f"{_gib(adapters)} GiB for {request.max_adapters} adapters of rank {request.adapter_rank}"
        )
    parts.append(f"{_gib(overhead)} GiB for the model server")
    parts.append(
        f"{_gib(cache)} GiB for one request of {context:,} tokens at {model.kv_bytes_per_token:,} bytes each"
    )
    total = model.weights_bytes + adapters + overhead + cache
    sum_text = f"{' + '.join(parts)} = {_gib(total)} GiB"
    there = f"{_gib(usable)} GiB{_where(shape)}"
    if total > usable:
        return MemoryPlan(False, f"{sum_text}, and there are {there}")
    at_once = max(1, left // max(1, model.kv_bytes_per_token * context))
    full = min(at_once, concurrency)
    cache = min(_cache(model.kv_bytes_per_token * context * full, shape), left)
    if not shape.gpus:
        cache = max(CACHE_STEP_BYTES, cache // CACHE_STEP_BYTES * CACHE_STEP_BYTES)
    sentence = f"{sum_text} of {there}; enough for {full} such request{'s' if full > 1 else ''} at a time"
    return MemoryPlan(True, sentence, context, concurrency, cache, max(0, left - cache))


def default_concurrency(shape: Shape, *, is_fast: bool) -> int:
    """Return how many requests run at a time; the fast flavour runs fewer, and each answers sooner."""
    if shape.gpus:
        return 32 if is_fast else 256
    return 4 if is_fast else 16


def served_bytes(parameters: int, size_bytes: int, dtype: str) -> int:
    """Return the memory that weights take when served: 32-bit weights are served in 16 bits."""
    return min(size_bytes, 2 * parameters) if dtype == "float32" and parameters else size_bytes


def _open_context(model: ModelSize, left: int, shape: Shape) -> int:
    free = left if shape.gpus else left // CACHE_STEP_BYTES * CACHE_STEP_BYTES
    tokens = free // max(1, model.kv_bytes_per_token)
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


def replica_shape(found: Preset, capabilities: Capabilities | None) -> Shape:
    """Return a preset's memory: of published GPU types as published, of others as the machine reports."""
    if not found.gpus:
        return Shape(found.memory_gib * GIB)
    fitting = [
        each.memory_mib * 1024**2
        for each in (capabilities.accelerators if capabilities else ())
        if found.gpu_type in ("", gpu_type(each.model))
    ]
    each_bytes = found.gpu_memory_gib * GIB or min(fitting, default=0)
    return Shape(each_bytes * found.gpus, found.gpus)


BITS_OF_LAYERS = {DeploymentSpec.INT8: 8.1, DeploymentSpec.INT4: 4.7}
"""The bits of each number in the layers, with its share of scales and offsets."""


def model_size(status: ModelStatus, weights: DeploymentSpec.Weights = DeploymentSpec.ORIGINAL) -> ModelSize:
    served = served_bytes(status.parameters, status.size_bytes, status.dtype)
    if weights in BITS_OF_LAYERS:
        in_layers = BYTES_OF_SERVED * status.layer_parameters
        served -= max(0, in_layers - int(status.layer_parameters * BITS_OF_LAYERS[weights] / 8))
    return ModelSize(
        weights_bytes=max(served, 0),
        kv_bytes_per_token=status.kv_bytes_per_token,
        context_length=status.context_length,
        adapter_bytes_per_rank=status.adapter_bytes_per_rank,
    )


def deployment_plan(spec: DeploymentSpec, status: ModelStatus, shape: Shape) -> MemoryPlan:
    """Return how a deployment with this spec serves the model of this status on that shape."""
    request = ServingRequest(
        context_length=spec.context_length,
        max_concurrency=spec.max_concurrency,
        max_adapters=spec.max_adapters,
        adapter_rank=LARGEST_RANK,
        is_fast=is_fast(spec),
    )
    size = model_size(status, spec.weights)
    if spec.weights_in_memory:  # the copy in memory may count as the job's
        size = replace(size, weights_bytes=size.weights_bytes + status.size_bytes)
    return plan(size, shape, request)


def holds_original(status: ModelStatus, shape: Shape) -> bool:
    """Return whether the hardware holds the model with its own weights, for a comparison."""
    request = ServingRequest(context_length=min(COMPARED_CONTEXT, status.context_length), is_fast=True)
    return plan(model_size(status), shape, request).fits


def shape_of(spec: DeploymentSpec, capabilities: Capabilities | None) -> Shape | None:
    """Return the hardware of a replica; None where a Slurm cluster decides and the spec sets no limit."""
    if spec.platform:
        return replica_shape(preset(spec.platform, spec.preset), capabilities)
    resources = spec.slurm_resources
    if resources.memory_gibibytes and not resources.gpus:
        return Shape(resources.memory_gibibytes * GIB)
    return None
