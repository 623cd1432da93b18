"""Measure the loss of the model in training on validation data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chat_tokens import IGNORED
from tokenized_data import TokenizedData
from training_arguments import TrainingArguments


@dataclass(frozen=True)
class Validation:
    """The first rows of a tokenised file; only one process evaluates them."""

    data: TokenizedData
    rows: int

    @classmethod
    def of(cls, arguments: TrainingArguments) -> Validation | None:
        if not arguments.validation_data:
            return None
        data = TokenizedData.open(Path(arguments.validation_data))
        return cls(data, min(arguments.validation_rows, len(data)))

    @torch.inference_mode()
    def loss(self, model: Any) -> float:
        """Return the mean loss per label. The model is in training mode before and after."""
        model.eval()
        loss_sum, labels = 0.0, 0
        for row in range(self.rows):
            batch = self.data.batch([row], self.data.facts["pad_token_id"])
            batch = {name: part.to(model.device) for name, part in batch.items()}
            loss_sum += model(**batch, use_cache=False, num_items_in_batch=1).loss.item()
            labels += int((batch["labels"] != IGNORED).sum())
        model.train()
        return loss_sum / max(labels, 1)
