"""Measure the loss of the model in training on validation data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from chat_tokens import IGNORED
from tokenized_data import TokenizedData
from training_arguments import TrainingArguments
from training_step import TrainingStep


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
    def loss(self, step: TrainingStep) -> float:
        """Return the mean loss per label. The model is in training mode before and after."""
        model = step.model.eval()
        loss_sum, labels = 0.0, 0
        for row in range(self.rows):
            batch = step.batch(self.data, [row])
            loss_sum += step.loss.sum(model, batch).item()
            labels += int((batch["labels"] != IGNORED).sum())
        model.train()
        return loss_sum / max(labels, 1)
