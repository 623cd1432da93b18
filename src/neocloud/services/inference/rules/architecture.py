"""What a model's config.json says of the memory it will need. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ENCODER = re.compile(r"(Bert|BERT|Roberta|MPNet|Electra)\w*(Model|ForMaskedLM)$")
"""Reads a text at once and cannot go on with it."""
BYTES_OF_SERVED = 2
"""Keys, values and adapters are kept in 16 bits."""


class UnknownArchitecture(ValueError):
    """The message says what config.json lacks."""


@dataclass(frozen=True)
class Architecture:
    name: str
    context_length: int
    kv_bytes_per_token: int
    adapter_bytes_per_rank: int
    hidden_size: int
    layers: int
    dtype: str
    """As config.json says, "" where it does not."""


def only_embeds(name: str) -> bool:
    """Whether an architecture of this name generates nothing. Others may embed too."""
    return bool(_ENCODER.search(name))


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise UnknownArchitecture('config.json does not say "architectures"')
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers")
    hidden = _number(text, "hidden_size", "n_embd", "d_model")
    return Architecture(
        name=names[0],
        context_length=_number(text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
        kv_bytes_per_token=layers * _kv_bytes_per_layer(text, hidden),
        adapter_bytes_per_rank=layers * _linear_sides(text, hidden) * BYTES_OF_SERVED,
        hidden_size=hidden,
        layers=layers,
        dtype=_dtype(config) or _dtype(text),
    )


def _kv_bytes_per_layer(text: Mapping[str, Any], hidden: int) -> int:
    if isinstance(text.get("kv_lora_rank"), int):  # latent attention keeps one compressed vector
        return (text["kv_lora_rank"] + int(text.get("qk_rope_head_dim") or 0)) * BYTES_OF_SERVED
    heads = _number(text, "num_attention_heads", "n_head")
    kv_heads = text.get("num_key_value_heads") or heads
    return 2 * int(kv_heads) * _head_size(text, hidden, heads) * BYTES_OF_SERVED


def _linear_sides(text: Mapping[str, Any], hidden: int) -> int:
    """Inputs and outputs of a layer's linear parts together: an adapter has a row or column for each."""
    heads = _number(text, "num_attention_heads", "n_head")
    head_size = _head_size(text, hidden, heads)
    queries, keys = heads * head_size, int(text.get("num_key_value_heads") or heads) * head_size
    inner = int(text.get("intermediate_size") or 4 * hidden)
    attention = 2 * (hidden + queries) + 2 * (hidden + keys)
    return attention + 3 * (hidden + inner)


def _head_size(text: Mapping[str, Any], hidden: int, heads: int) -> int:
    return int(text.get("head_dim") or hidden // heads)


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise UnknownArchitecture(f'config.json does not say "{names[0]}"')


def _dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
