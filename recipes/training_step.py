"""Do one optimiser step over all processes: batches, loss, gradients, update.

The progress of the run is not kept here: step and position are arguments, and the random numbers of
a step follow from them, so a step done again after a resume is the same step.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import separate_attention
from chat_tokens import IGNORED
from tokenized_data import TokenizedData
from training_arguments import TrainingArguments
from training_loss import LabelledLoss
from training_schedule import rows_at
from workers import Workers


@dataclass(frozen=True)
class StepResult:
    """The result of a step in one process; `tokens` counts all processes, without padding."""

    loss_sum: float
    labels: int
    tokens: float
    seconds: float = 0.0
    waited: float | None = None  # for other processes; None on GPUs, where it is not measured


class TrainingStep:
    """The model and optimiser with their training data."""

    def __init__(
        self, arguments: TrainingArguments, workers: Workers, data: TokenizedData, model: Any,
        dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self.arguments, self.workers, self.data = arguments, workers, data
        self.model, self.dtype = model.train(), dtype
        self.trainable = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trainable, arguments.learning_rate, weight_decay=arguments.weight_decay, fused=True
        )
        self.scaler = torch.amp.GradScaler(workers.device.type, enabled=dtype == torch.float16)
        self.samples = (
            arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * workers.world_size
        )
        self.loss = LabelledLoss(model)
        self._parallel = model
        if workers.world_size > 1:  # same seed, same folder: nothing to send at the start
            self._parallel = DistributedDataParallel(model, forward_sync_buffers=False, init_sync=False)
        self._handed_over = 0.0  # when this process last gave gradients to the others
        self._knows_waiting = workers.device.type == "cpu"  # on a GPU calls return before the work is done
        if workers.world_size > 1 and self._knows_waiting:
            self._parallel.register_comm_hook(None, self._hand_over)

    def run(self, step: int, position: int, rate: float, stop: bool) -> StepResult | None:
        """Do the step and return its result; None, and no step, if any process requests a stop."""
        began = time.monotonic()
        torch.manual_seed((self.arguments.seed * 1_000_003 + step) * 4099 + self.workers.rank)
        passes, own_tokens = self._passes(position)
        own_labels = sum(int((batch["labels"] != IGNORED).sum()) for batch in passes)
        counted = time.monotonic()
        labels, tokens, stopping = self.workers.sum([own_labels, own_tokens, stop])
        waited = time.monotonic() - counted
        if stopping:
            return None
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # Each label weighs the same, whichever process or pass it falls into: gradients do not
        # depend on how rows are distributed. DDP takes the mean over processes, hence the share.
        share = labels / self.workers.world_size
        loss_sum = 0.0
        for number, batch in enumerate(passes, start=1):
            last = number == len(passes)
            with nullcontext() if last or self.workers.world_size == 1 else self._unsynced():
                loss = self._loss(batch) / share
                self.scaler.scale(loss).backward()
            if last and self.workers.world_size > 1:
                waited += time.monotonic() - self._handed_over  # nothing was left to do but to wait
            loss_sum += loss.item() * share
        self._update()
        seconds = time.monotonic() - began
        return StepResult(loss_sum, own_labels, tokens, seconds, waited if self._knows_waiting else None)

    def close(self) -> None:
        """Drop DDP; call this before the processes disconnect. If DDP held their connection last,
        closing it could wait forever for a thread that waits for Python."""
        self._parallel = self.model

    def batch(self, data: TokenizedData, rows: list[int]) -> dict[str, torch.Tensor]:
        """Return rows as the model takes them, where it is."""
        if self.model.config._attn_implementation == separate_attention.NAME:
            return data.joined(rows)
        batch = data.batch(rows, data.facts["pad_token_id"])
        return {name: part.to(self.workers.device) for name, part in batch.items()}

    def _passes(self, position: int) -> tuple[list[dict[str, torch.Tensor]], int]:
        """Return this process's batches, and the number of their tokens without padding."""
        size, workers = self.arguments.per_device_train_batch_size, self.workers
        passes, tokens = [], 0
        for number in range(self.arguments.gradient_accumulation_steps):
            offset = (number * workers.world_size + workers.rank) * size
            rows = rows_at(position + offset, size, len(self.data), self.arguments.seed)
            passes.append(self.batch(self.data, rows))
            tokens += self.data.tokens(rows)
        return passes, tokens

    def _hand_over(self, state, bucket):  # DDP refuses annotations that are text
        """Sum up gradients as DDP does, and note when: the last part of them ends this process's work."""
        self._handed_over = time.monotonic()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None: all processes

    def _unsynced(self) -> Any:
        return self._parallel.no_sync()

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        kind = self.workers.device.type
        with torch.autocast(kind, self.dtype, enabled=self.dtype is not None):
            return self.loss.sum(self._parallel, batch)

    def _update(self) -> None:
        if self.arguments.max_grad_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.trainable, self.arguments.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
