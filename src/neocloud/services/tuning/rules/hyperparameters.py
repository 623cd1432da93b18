"""Resolve the settings of a job: values for "auto" and for what was left out, and the configuration of the
recipes. Pure.

Rates are for LoRA. A small model needs a higher one; 2e-4 is for models of a billion weights and more. Epochs
and batch size follow from the size of the data: enough steps to learn, few enough not to overfit.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neocloud.messages.neocloud.tuning.v1 import Hyperparameters
from neocloud.services.tuning.rules.memory import DEFAULT_RANK, uses_checkpointing

RATE, HIGHEST_RATE = 2e-4, 5e-3
RATE_PARAMETERS = 1_000_000_000
DEFAULT_ALPHA = 32
WARMUP, MAX_GRAD_NORM = 0.03, 1.0
STEPS = 240
"""The least number of optimiser steps that auto aims at."""
MOST_EPOCHS, LARGEST_BATCH = 8, 32
LEAST_CONTEXT, LARGEST_CONTEXT = 256, 4096
BYTES_PER_TOKEN = 3
"""A low estimate, so that a context computed from it is too long rather than too short."""
TRAINING_SHARE = 0.9
"""The share of data that is trained on where no file to evaluate on is named."""
PUBLISHED_RATE = 1e-5
"""The default of the published API, meant for training all weights."""
MOST_ROWS_AT_A_TIME = 8
CHECKPOINTS = 8
"""About how many checkpoints a job writes; the newest few are kept."""
KEPT_CHECKPOINTS = 3
OLD_CHECKPOINTS = 4
"""Every fourth of the older checkpoints is kept, to go back to where a training diverged."""


@dataclass(frozen=True)
class DataSize:
    """The size of a training file."""

    conversations: int
    bytes: int
    longest_bytes: int
    """The length of its longest line."""


@dataclass(frozen=True)
class BaseSize:
    """The size of the model to be trained."""

    parameters: int
    context_length: int


@dataclass(frozen=True)
class BatchSplit:
    """A batch, split over processes, accumulation passes and rows."""

    processes: int
    passes: int
    rows: int

    @property
    def batch(self) -> int:
        return self.processes * self.passes * self.rows


def fill_in(requested: Hyperparameters, data: DataSize, base: BaseSize) -> Hyperparameters:
    """Return all hyperparameters as they will be used."""
    found = Hyperparameters()
    found.CopyFrom(requested)
    found.lora = True
    if not requested.HasField("learning_rate"):
        found.learning_rate = auto_rate(base.parameters) * (requested.learning_rate_multiplier or 1.0)
    for name, value in (
        ("lora_r", DEFAULT_RANK), ("lora_alpha", 2 * requested.lora_r or DEFAULT_ALPHA),
        ("lora_dropout", 0.0), ("warmup_ratio", WARMUP), ("weight_decay", 0.0),
        ("max_grad_norm", MAX_GRAD_NORM), ("packing", True), ("context_length", auto_context(data, base)),
    ):  # fmt: skip
        if not requested.HasField(name):
            setattr(found, name, value)
    rows = expected_rows(data, found.context_length, is_packed=found.packing)
    if not requested.HasField("batch_size"):
        found.batch_size = auto_batch(rows)
    if not requested.HasField("n_epochs"):
        found.n_epochs = auto_epochs(rows, found.batch_size)
    return found


def auto_rate(parameters: int) -> float:
    """Return 2e-4 for a billion weights and more, and a rate that grows with the root of the ratio below."""
    if not parameters:
        return RATE
    factor = math.sqrt(max(1.0, RATE_PARAMETERS / parameters))
    return float(f"{min(HIGHEST_RATE, RATE * factor):.2g}")


def auto_context(data: DataSize, base: BaseSize) -> int:
    """Return a power of two that the longest conversation fits in, within the limits of model and memory."""
    longest = max(1, math.ceil(data.longest_bytes / BYTES_PER_TOKEN))
    context = min(max(LEAST_CONTEXT, _power_of_two(longest)), LARGEST_CONTEXT)
    return min(context, base.context_length) if base.context_length else context


def expected_rows(data: DataSize, context: int, *, is_packed: bool) -> int:
    """Estimate the number of rows in one epoch, precisely enough to choose batch and epochs."""
    if not is_packed:
        return max(1, data.conversations)
    tokens = data.bytes / BYTES_PER_TOKEN / 1.5  # keys and quotes of JSON are not trained on
    return max(1, min(data.conversations, math.ceil(tokens / context)))


def auto_batch(rows: int) -> int:
    """Return a power of two, at least 4, that grows with the data."""
    return min(max(4, _power_of_two(rows // 256)), LARGEST_BATCH)


def auto_epochs(rows: int, batch: int) -> int:
    return min(max(1, math.ceil(STEPS * batch / rows)), MOST_EPOCHS)


def warnings(requested: Hyperparameters, used: Hyperparameters) -> Iterable[str]:
    """Yield warnings about values that are accepted and will probably give bad results."""
    if requested.HasField("learning_rate") and used.learning_rate <= PUBLISHED_RATE:
        yield (
            f"learning_rate {used.learning_rate:g} hardly changes a LoRA adapter. It is the published"
            " default, for training all weights. Leave it out (auto) or give about 2e-4."
        )
    elif requested.HasField("learning_rate") and used.learning_rate > 2e-2:
        yield f"learning_rate {used.learning_rate:g} is so high that training may diverge; auto is safer."
    if requested.HasField("lora_r") and requested.HasField("lora_alpha") and used.lora_alpha < used.lora_r:
        yield (
            f"lora_alpha {used.lora_alpha} is below lora_r {used.lora_r}, which scales the update down;"
            " twice the rank is usual."
        )


def split_batch(batch: int, processes: int, rows_that_fit: int) -> BatchSplit:
    """Split a batch into as few passes as memory allows, rounded up to a multiple of the processes."""
    each = math.ceil(batch / processes)
    most = max(1, min(rows_that_fit, MOST_ROWS_AT_A_TIME, each))
    rows = next(rows for rows in range(most, 0, -1) if each % rows == 0)
    return BatchSplit(processes, each // rows, rows)


def training_arguments(
    used: Hyperparameters, split: BatchSplit, data: DataSize, *, seed: int, parameters: int
) -> Mapping[str, object]:
    """Return the configuration of finetune.py."""
    rows = expected_rows(data, used.context_length, is_packed=used.packing)
    steps = math.ceil(rows * used.n_epochs / split.batch)
    save_steps = min(max(10, steps // CHECKPOINTS), 500)
    return {
        "num_train_epochs": float(used.n_epochs),
        "per_device_train_batch_size": split.rows,
        "gradient_accumulation_steps": split.passes,
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
        "save_steps": save_steps,
        "save_total_limit": KEPT_CHECKPOINTS,
        "save_keep_every": OLD_CHECKPOINTS * save_steps,
        "logging_steps": min(max(1, steps // 50), 20),
    }


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below the number."""
    return 1 << max(0, math.ceil(math.log2(max(1, number))))
