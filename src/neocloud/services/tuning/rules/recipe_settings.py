"""From a job's hyperparameters to what the recipes are told: batches dealt out, checkpoints. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neocloud.services.tuning.rules.hyperparameters import DataSize, expected_rows
from neocloud.services.tuning.rules.memory import uses_checkpointing

MOST_ROWS_AT_A_TIME = 8
CHECKPOINTS = 8
"""About so many are written in the course of a job; the newest few are kept."""
KEPT_CHECKPOINTS = 3
SAMPLES = 16
"""Answers that both models give for the report."""


@dataclass(frozen=True)
class Dealt:
    """A batch on processes, passes and rows."""

    processes: int
    passes: int
    rows: int

    @property
    def batch(self) -> int:
        return self.processes * self.passes * self.rows


def deal_out(batch: int, processes: int, rows_that_fit: int) -> Dealt:
    """As few passes as memory allows; a batch that does not divide by the processes grows until it does."""
    each = math.ceil(batch / processes)
    most = max(1, min(rows_that_fit, MOST_ROWS_AT_A_TIME, each))
    rows = next(rows for rows in range(most, 0, -1) if each % rows == 0)
    return Dealt(processes, each // rows, rows)


def training_arguments(
    used: Any, dealt: Dealt, data: DataSize, *, seed: int, parameters: int
) -> Mapping[str, Any]:
    """The configuration of finetune.py."""
    rows = expected_rows(data, used.context_length, is_packed=used.packing)
    steps = math.ceil(rows * used.n_epochs / dealt.batch)
    return {
        "num_train_epochs": float(used.n_epochs),
        "per_device_train_batch_size": dealt.rows,
        "gradient_accumulation_steps": dealt.passes,
        "learning_rate": used.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": used.warmup_ratio,
        "weight_decay": used.weight_decay,
        "max_grad_norm": used.max_grad_norm,
        "seed": seed,
        "lora_r": used.lora_r,
        "lora_alpha": used.lora_alpha,
        "lora_dropout": used.lora_dropout,
        "target_modules": "all-linear",
        "gradient_checkpointing": uses_checkpointing(parameters),
        "save_steps": min(max(10, steps // CHECKPOINTS), 500),
        "save_total_limit": KEPT_CHECKPOINTS,
        "logging_steps": min(max(1, steps // 50), 20),
    }
