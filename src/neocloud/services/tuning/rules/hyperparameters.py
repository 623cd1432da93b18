"""Resolve the settings of a job: values for "auto" and for what was left out, and the configuration of the
recipes. Pure.

A small model needs a higher rate; 2e-4 is for LoRA on models of a billion weights and more, and 2e-5 for all
their weights. Preferences and rewards take a quarter of it. Epochs and batch size follow from the size of the
data: enough steps to learn, few enough not to overfit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from neocloud.messages.neocloud.tuning.v1 import Hyperparameters
from neocloud.services.tuning.rules.memory import DEFAULT_GENERATIONS, DEFAULT_RANK, uses_checkpointing

RATE, HIGHEST_RATE = 2e-4, 5e-3
RATE_ALL, HIGHEST_RATE_ALL = 2e-5, 5e-4
"""For training all weights."""
METHOD_SHARE = 0.25
"""The share of the rate for preferences and rewards: at a high one the model forgets its language."""
RATE_PARAMETERS = 1_000_000_000
DEFAULT_ALPHA = 32
WARMUP, MAX_GRAD_NORM = 0.03, 1.0
STEPS = 240
"""The least number of optimiser steps that auto aims at."""
MOST_EPOCHS, LARGEST_BATCH = 8, 32
OF_LORA: Sequence[Literal["lora_r", "lora_alpha", "lora_dropout"]] = ("lora_r", "lora_alpha", "lora_dropout")
MOST_EPOCHS_OF_METHODS = 3
"""For preferences and rewards."""
SUPERVISED, DPO, REINFORCEMENT = "supervised", "dpo", "reinforcement"
METHOD_DEFAULTS: Mapping[str, Sequence[tuple[str, float]]] = {
    DPO: (("beta", 0.1),),
    REINFORCEMENT: (
        ("beta", 0.0),
        ("num_generations", DEFAULT_GENERATIONS),
        ("max_completion_tokens", 256),
        ("temperature", 1.0),
    ),
}
LEAST_CONTEXT, LARGEST_CONTEXT = 256, 4096
BYTES_PER_TOKEN = 3
"""A low estimate, so that a context computed from it is too long rather than too short."""
TRAINING_SHARE = 0.9
"""The share of data that is trained on where no file to evaluate on is named."""
PUBLISHED_RATE = 1e-5
"""The default of the published API, meant for training all weights."""
MOST_ROWS_AT_A_TIME = 8
LEAST_PROMPT = 16
"""Tokens of a prompt that are taken whatever the context."""
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


def fill_in(
    requested: Hyperparameters, data: DataSize, base: BaseSize, method: str = SUPERVISED
) -> Hyperparameters:
    """Return all hyperparameters as they will be used."""
    found = Hyperparameters()
    found.CopyFrom(requested)
    found.lora = requested.lora if requested.HasField("lora") else True
    for name in () if found.lora else OF_LORA:
        found.ClearField(name)
    if not requested.HasField("learning_rate"):
        rate = auto_rate(base.parameters, found.lora) * (1 if method == SUPERVISED else METHOD_SHARE)
        found.learning_rate = rate * (requested.learning_rate_multiplier or 1.0)
    of_lora = (
        ("lora_r", DEFAULT_RANK), ("lora_alpha", 2 * requested.lora_r or DEFAULT_ALPHA),
        ("lora_dropout", 0.0),
    )  # fmt: skip
    for name, value in (
        *(of_lora if found.lora else ()), *METHOD_DEFAULTS.get(method, ()),
        ("warmup_ratio", WARMUP), ("weight_decay", 0.0), ("max_grad_norm", MAX_GRAD_NORM),
        ("packing", method == SUPERVISED), ("context_length", auto_context(data, base, found)),
    ):  # fmt: skip
        if not requested.HasField(name):
            setattr(found, name, value)
    rows = expected_rows(data, found.context_length, is_packed=found.packing)
    if not requested.HasField("batch_size"):
        found.batch_size = auto_batch(rows)
    if not requested.HasField("n_epochs"):
        most = MOST_EPOCHS if method == SUPERVISED else MOST_EPOCHS_OF_METHODS
        found.n_epochs = min(auto_epochs(rows, found.batch_size), most)
    return found


def auto_rate(parameters: int, is_lora: bool = True) -> float:
    """Return 2e-4 for a billion weights and more, and a rate that grows with the root of the ratio below; a
    tenth of that for training all weights."""
    rate, highest = (RATE, HIGHEST_RATE) if is_lora else (RATE_ALL, HIGHEST_RATE_ALL)
    if not parameters:
        return rate
    factor = math.sqrt(max(1.0, RATE_PARAMETERS / parameters))
    return float(f"{min(highest, rate * factor):.2g}")


def auto_context(data: DataSize, base: BaseSize, used: Hyperparameters) -> int:
    """Return a power of two that the longest row fits in, with room for an answer where the model writes it,
    within the limits of model and memory."""
    longest = max(1, math.ceil(data.longest_bytes / BYTES_PER_TOKEN)) + used.max_completion_tokens
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
    if requested.HasField("learning_rate") and used.lora and used.learning_rate <= PUBLISHED_RATE:
        yield (
            f"learning_rate {used.learning_rate:g} hardly changes a LoRA adapter. It is the published"
            " default, for training all weights. Leave it out (auto) or give about 2e-4."
        )
    elif requested.HasField("learning_rate") and used.learning_rate > 2e-2:
        yield f"learning_rate {used.learning_rate:g} is so high that training may diverge; auto is safer."
    unused = [] if used.lora else [name for name in OF_LORA if requested.HasField(name)]
    if unused:
        yield f"{', '.join(unused)} are of LoRA, and not used: lora is false, so all weights are trained."
    has_both = requested.HasField("lora_r") and requested.HasField("lora_alpha")
    if has_both and used.lora and used.lora_alpha < used.lora_r:
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
    used: Hyperparameters,
    split: BatchSplit,
    data: DataSize,
    *,
    seed: int,
    parameters: int,
    method: str = SUPERVISED,
) -> Mapping[str, object]:
    """Return the configuration of the recipe that trains."""
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
        **_what_is_trained(used),
        **_of_method(used, method),
        "gradient_checkpointing": uses_checkpointing(parameters),
        "save_steps": save_steps,
        "save_total_limit": KEPT_CHECKPOINTS,
        "save_keep_every": OLD_CHECKPOINTS * save_steps,
        "logging_steps": min(max(1, steps // 50), 20),
    }


def _what_is_trained(used: Hyperparameters) -> Mapping[str, object]:
    if not used.lora:
        return {"lora": False}
    return {
        "lora_r": used.lora_r,
        "lora_alpha": used.lora_alpha,
        "lora_dropout": used.lora_dropout,
        "target_modules": "all-linear",
    }


def _of_method(used: Hyperparameters, method: str) -> Mapping[str, object]:
    if method == DPO:
        return {"beta": used.beta, "max_length": used.context_length}
    if method == REINFORCEMENT:
        return {
            "beta": used.beta,
            "num_generations": used.num_generations,
            "max_completion_length": used.max_completion_tokens,
            "max_prompt_length": max(used.context_length - used.max_completion_tokens, LEAST_PROMPT),
            "temperature": used.temperature,
        }
    patience = used.early_stopping_patience
    return {"early_stopping_patience": patience} if patience else {}


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below the number."""
    return 1 << max(0, math.ceil(math.log2(max(1, number))))
