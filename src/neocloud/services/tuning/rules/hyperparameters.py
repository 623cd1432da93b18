"""Which settings a job gets: what was asked for, and "auto" for what was left out. Pure.

Rates are for LoRA. A small model needs a higher one; 2e-4 is for those of a billion weights and more. Passes
and batch follow from the size of the data: enough steps to learn, few enough not to learn by heart.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from neocloud.messages.neocloud.tuning.v1 import Hyperparameters

RATE, HIGHEST_RATE = 2e-4, 5e-3
RATE_PARAMETERS = 1_000_000_000
RANK, ALPHA = 16, 32
WARMUP, MAX_GRAD_NORM = 0.03, 1.0
STEPS = 240
"""How many optimiser steps auto aims at, at least."""
MOST_EPOCHS, LARGEST_BATCH = 8, 32
LEAST_CONTEXT, LARGEST_CONTEXT = 256, 4096
BYTES_PER_TOKEN = 3
"""A low guess, so that what is reckoned from it is rather too long than too short."""
PUBLISHED_RATE = 1e-5
"""Default of the published API; it is one for training all weights."""


@dataclass(frozen=True)
class DataSize:
    """Of a training file."""

    conversations: int
    bytes: int
    longest_bytes: int
    """Of its longest line."""


@dataclass(frozen=True)
class BaseSize:
    """Of the model to be trained."""

    parameters: int
    context_length: int


def filled_in(asked: Any, data: DataSize, base: BaseSize) -> Any:
    """All hyperparameters, as they will be used."""
    found = Hyperparameters()
    found.CopyFrom(asked)
    found.lora = True
    if not asked.HasField("learning_rate"):
        found.learning_rate = auto_rate(base.parameters) * (asked.learning_rate_multiplier or 1.0)
    for name, value in (
        ("lora_r", RANK), ("lora_alpha", 2 * asked.lora_r or ALPHA), ("lora_dropout", 0.0),
        ("warmup_ratio", WARMUP), ("weight_decay", 0.0), ("max_grad_norm", MAX_GRAD_NORM),
        ("packing", True), ("context_length", auto_context(data, base)),
    ):  # fmt: skip
        if not asked.HasField(name):
            setattr(found, name, value)
    rows = expected_rows(data, found.context_length, is_packed=found.packing)
    if not asked.HasField("batch_size"):
        found.batch_size = auto_batch(rows)
    if not asked.HasField("n_epochs"):
        found.n_epochs = auto_epochs(rows, found.batch_size)
    return found


def auto_rate(parameters: int) -> float:
    """2e-4 from a billion weights on, and more below, by the root of how many fewer there are."""
    if not parameters:
        return RATE
    factor = math.sqrt(max(1.0, RATE_PARAMETERS / parameters))
    return float(f"{min(HIGHEST_RATE, RATE * factor):.2g}")


def auto_context(data: DataSize, base: BaseSize) -> int:
    """Room for the longest conversation, as a power of two, within what model and memory bear."""
    longest = max(1, math.ceil(data.longest_bytes / BYTES_PER_TOKEN))
    wanted = min(max(LEAST_CONTEXT, _power_of_two(longest)), LARGEST_CONTEXT)
    return min(wanted, base.context_length) if base.context_length else wanted


def expected_rows(data: DataSize, context: int, *, is_packed: bool) -> int:
    """How many rows training will see in one pass, near enough to choose batch and passes by."""
    if not is_packed:
        return max(1, data.conversations)
    tokens = data.bytes / BYTES_PER_TOKEN / 1.5  # what surrounds the words in JSON is not trained on
    return max(1, min(data.conversations, math.ceil(tokens / context)))


def auto_batch(rows: int) -> int:
    """Grows with the data: 4 for the small, and a power of two."""
    return min(max(4, _power_of_two(rows // 256)), LARGEST_BATCH)


def auto_epochs(rows: int, batch: int) -> int:
    return min(max(1, math.ceil(STEPS * batch / rows)), MOST_EPOCHS)


def warnings(asked: Any, used: Any) -> Iterable[str]:
    """What is accepted and will probably disappoint."""
    if asked.HasField("learning_rate") and used.learning_rate <= PUBLISHED_RATE:
        yield (
            f"learning_rate {used.learning_rate:g} hardly changes a LoRA adapter. It is the published"
            " default, for training all weights. Leave it out (auto) or give about 2e-4."
        )
    elif asked.HasField("learning_rate") and used.learning_rate > 2e-2:
        yield f"learning_rate {used.learning_rate:g} is so high that training may diverge; auto is safer."
    if asked.HasField("lora_r") and asked.HasField("lora_alpha") and used.lora_alpha < used.lora_r:
        yield (
            f"lora_alpha {used.lora_alpha} is below lora_r {used.lora_r}, which scales the update down;"
            " twice the rank is usual."
        )


def _power_of_two(number: int) -> int:
    """The smallest that is not below the number."""
    return 1 << max(0, math.ceil(math.log2(max(1, number))))
