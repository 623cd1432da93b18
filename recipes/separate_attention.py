"""Let each token of a joined sequence attend to its own conversation only, and compute nothing else.

Rows are joined to one sequence without padding. With a mask, each token would be compared with each other
one of its row, and most results discarded. Here each conversation is a product of its own: a quarter of the
comparisons where four share a row. On GPUs, which many small products would leave idle, rows keep the mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from tokenized_data import join_rows, plain_row

NAME = "separate"
TOLERANCE = 0.03
"""How far the two results may lie apart, as a share of their norm; rounding of 16 bits is below."""


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None,
    cu_seq_lens_q: torch.Tensor, scaling: float | None = None, dropout: float = 0.0,
    sliding_window: int | None = None, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Return the attention of each conversation; their bounds have the name they have in transformers."""
    lengths = cu_seq_lens_q.diff().tolist()
    parts = zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True)
    found = []
    for each in parts:
        length = each[0].shape[2]
        window = None
        if sliding_window is not None and length > sliding_window:
            near = torch.ones(length, length, dtype=torch.bool, device=query.device)
            window = near.tril().triu(1 - sliding_window)
        found.append(
            scaled_dot_product_attention(
                *each, attn_mask=window, dropout_p=dropout, is_causal=window is None, scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )  # fmt: skip
    return torch.cat(found, dim=2).transpose(1, 2).contiguous(), None


def without_mask(*_: Any, **__: Any) -> None:
    """Return no mask: the bounds of the conversations say all."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, without_mask)


@torch.no_grad()
def use_separate_attention(model: Any) -> bool:
    """Let the model attend so if it can; return False, and leave it as it is, if it cannot.

    It is tried: a model that carries a state from token to token, or that does not pass the bounds to its
    attention, gives another result for a sequence behind another than for the sequence alone.
    """
    if model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return False
    first, second = plain_row((range(1, 9), range(8))), plain_row((range(3, 12), range(9)))
    joined = join_rows([first, second])
    del joined["labels"]
    was_training = model.training
    model.eval()
    alone = model(input_ids=joined["input_ids"][:, 8:], use_cache=False).logits
    try:
        model.set_attn_implementation(NAME)
        behind = model(**joined, use_cache=False).logits[:, 8:]
    except (TypeError, ValueError, RuntimeError, AttributeError):
        behind = torch.full_like(alone, torch.inf)
    model.train(was_training)
    if (alone - behind).float().norm() <= TOLERANCE * alone.float().norm():
        return True
    model.set_attn_implementation("sdpa")
    return False
