"""The architecture of a model, and the memory it needs, from its config.json. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENCODER = re.compile(r"(Bert|BERT|Roberta|MPNet|Electra)\w*(Model|ForMaskedLM)$")
"""Architectures that read a text and cannot continue it."""
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


def only_embeds(name: str) -> bool:
    """Return whether an architecture of this name cannot generate text. Others may embed too."""
    return bool(_ENCODER.search(name))


def read_architecture(config: Mapping[str, object]) -> Architecture:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise UnknownArchitecture('config.json has no "architectures"')
    inner = config.get("text_config")
    text: Mapping[str, object] = inner if isinstance(inner, Mapping) else config
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
