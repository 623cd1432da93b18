"""Compute the loss of the labelled tokens; the output layer sees no other positions.

The output layer is the largest product of a small model: its rows are the vocabulary. In a conversation only
the assistant's words have labels, so the others' logits would be computed and discarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from chat_tokens import IGNORED


class LabelledLoss:
    """The loss of one model. `model` is the one without DDP, whose output layer is changed."""

    def __init__(self, model: Any) -> None:
        self._places: torch.Tensor | None = None
        head = model.get_output_embeddings()
        if head is not None:
            head.register_forward_pre_hook(self._select)

    def sum(self, model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the sum of the loss over all labels, in float32; `model` may be the one with DDP."""
        inputs = {name: part for name, part in batch.items() if name != "labels"}
        following = batch["labels"][:, 1:]
        has_label = following != IGNORED
        if "position_ids" in batch:  # the last token of a conversation does not foretell the next one's first
            has_label &= batch["position_ids"][:, 1:] != 0
        has_label = torch.nn.functional.pad(has_label, (0, 1))  # the last position foretells nothing
        self._places = has_label.reshape(-1).nonzero().squeeze(-1)
        places = self._places
        targets = torch.nn.functional.pad(following, (0, 1)).reshape(-1)[places]
        logits = model(**inputs, use_cache=False).logits
        logits = logits.reshape(-1, logits.shape[-1])
        if self._places is not None:  # a model that computes its logits in another way
            logits, self._places = logits[places], None
        return cross_entropy(logits.float(), targets, reduction="sum")

    def _select(self, _: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if self._places is None:
            return inputs
        places, self._places = self._places, None
        hidden = inputs[0]
        return (hidden.reshape(-1, hidden.shape[-1])[places].unsqueeze(0), *inputs[1:])
