"""Measure the loss of the model in training on validation data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chat_tokens import IGNORED
from tokenized_data import TokenizedData
from training_arguments import TrainingArguments
from training_step import TrainingStep


@dataclass
class EarlyStop:
    """The best validation loss of a run, and how many checkpoints since then had none that was lower."""

    patience: int
    """0: a run is never ended early."""
    best_step: int = 0
    best_loss: float = math.inf
    worse: int = 0

    def add(self, step: int, loss: float) -> None:
        if loss < self.best_loss:
            self.best_step, self.best_loss, self.worse = step, loss, 0
        else:
            self.worse += 1

    @property
    def is_over(self) -> bool:
        return 0 < self.patience <= self.worse

    def state(self) -> dict[str, Any]:
        return {"best_step": self.best_step, "best_loss": self.best_loss, "worse": self.worse}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; one of an earlier release has no state."""
        self.best_step, self.worse = state.get("best_step", 0), state.get("worse", 0)
        self.best_loss = state.get("best_loss", math.inf)


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
