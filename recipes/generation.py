"""Generate answers, and measure perplexity and speed.

Answers are greedy and batched, perplexity is on the assistant's messages, and speed is measured at
a fixed length, so that short answers do not make a model look slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chat_tokens import IGNORED, ChatEncoder
from tokenized_data import Example, pad_batch, plain_row

TOKENS_PER_PASS = 4096


@dataclass(frozen=True)
class Generated:
    """Answers in the order of the prompts; `tokens` counts them up to the end of each."""

    texts: list[str]
    tokens: int


def perplexity(model: Any, examples: Sequence[Example], pad_id: int) -> float:
    """Return the exponential of the mean loss per labelled token."""
    return perplexity_of_losses(losses(model, examples, pad_id))


def perplexity_of_losses(found: Sequence[tuple[float, int]]) -> float:
    """Return the perplexity of the summed losses and labelled tokens of examples."""
    return math.exp(min(sum(loss for loss, _ in found) / sum(labels for _, labels in found), 700))


@torch.inference_mode()
def losses(model: Any, examples: Sequence[Example], pad_id: int) -> list[tuple[float, int]]:
    """Return the summed loss and the number of the labelled tokens of each example."""
    found = [(0.0, 0)] * len(examples)
    for part in _by_length(examples):
        batch = pad_batch([plain_row(examples[place]) for place in part], pad_id)
        labels = batch.pop("labels").to(model.device)[:, 1:]
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        logits = model(**batch, use_cache=False).logits[:, :-1]
        for place, own, targets in zip(part, logits, labels, strict=True):
            is_labelled = targets != IGNORED
            scores = own[is_labelled].float()
            loss = torch.nn.functional.cross_entropy(scores, targets[is_labelled], reduction="sum")
            found[place] = (loss.item(), int(is_labelled.sum()))
    return found


def _by_length(examples: Sequence[Example]) -> list[list[int]]:
    """Return batches of the places of examples of similar length, each with about TOKENS_PER_PASS tokens."""
    batches: list[list[int]] = [[]]
    for place in sorted(range(len(examples)), key=lambda place: -len(examples[place][0])):
        longest = len(examples[batches[-1][0]][0]) if batches[-1] else 0
        if longest * (len(batches[-1]) + 1) > TOKENS_PER_PASS:
            batches.append([])
        batches[-1].append(place)
    return batches


@torch.inference_mode()
def generate(
    model: Any, encoder: ChatEncoder, prompts: Sequence[str], max_new_tokens: int, batch_size: int
) -> Generated:
    """Return greedy answers; every sequence ends at the token that closes a turn."""
    ends = stop_ids(model, encoder)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    texts, tokens = [""] * len(prompts), 0
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = _batch(model, encoder, [prompts[index] for index in chosen], max_new_tokens)
        output = model.generate(
            **batch,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(ends),
            pad_token_id=encoder.tokenizer.pad_token_id,
        )
        for index, ids in zip(chosen, output[:, batch["input_ids"].shape[1] :], strict=True):
            answer = until_end(ids.tolist(), ends)
            tokens += len(answer)
            texts[index] = encoder.tokenizer.decode(answer, skip_special_tokens=True).strip()
    return Generated(texts, tokens)


@torch.inference_mode()
def tokens_per_second(model: Any, encoder: ChatEncoder, prompts: Sequence[str], new_tokens: int) -> float:
    """Return new tokens per second of one batch, for a fixed length of the answers; the best of two."""
    batch = _batch(model, encoder, prompts, new_tokens)
    seconds = []
    for _ in range(2):
        started = time.monotonic()
        model.generate(
            **batch,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=encoder.tokenizer.pad_token_id,
        )
        seconds.append(time.monotonic() - started)
    return len(prompts) * new_tokens / min(seconds)


def _batch(
    model: Any, encoder: ChatEncoder, prompts: Sequence[str], new_tokens: int
) -> dict[str, torch.Tensor]:
    """Return prompts padded on the left, and cut there if the answer would not fit into the context."""
    encoded = encoder.tokenizer(
        list(prompts),
        add_special_tokens=False,
        padding=True,
        padding_side="left",
        truncation=True,
        truncation_side="left",
        max_length=max(model.config.max_position_embeddings - new_tokens, 1),
        return_tensors="pt",
    )
    names = ("input_ids", "attention_mask")
    return {name: encoded[name].to(model.device) for name in names}


def stop_ids(model: Any, encoder: ChatEncoder) -> set[int]:
    """Return the tokens that end an answer: the template's, the tokenizer's and the model's own."""
    tokenizer = encoder.tokenizer
    ends = {tokenizer.eos_token_id}
    if turn_end := encoder.turn_end():
        ends.add(tokenizer.convert_tokens_to_ids(turn_end))
    configured = model.generation_config.eos_token_id
    ends |= set(configured if isinstance(configured, list) else [configured])
    return ends - {None}


def until_end(ids: list[int], ends: set[int]) -> list[int]:
    """Return the ids up to and including the first that ends the answer."""
    for position, token in enumerate(ids):
        if token in ends:
            return ids[: position + 1]
    return ids
