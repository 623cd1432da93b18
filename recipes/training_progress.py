"""Count progress, speed and loss of a run, for the progress line."""

from __future__ import annotations

import time
from typing import Any

from training_step import StepResult
from workers import Workers


class Progress:
    """Counters of steps, samples and tokens; a checkpoint keeps `step` and `position`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.step = self.position = self.resumed_from = self.saved_step = 0
        self.loss: float | None = None
        self.tokens = self.seconds = self.processor_seconds = 0.0
        self.tokens_before = 0.0  # in steps that were done before this start
        self.checkpoints, self.stall_seconds = 0, 0.0
        self._loss_sum, self._labels = 0.0, 0
        self._started = time.monotonic()

    def resume(self, step: int, position: int, tokens: float) -> None:
        self.step = self.resumed_from = self.saved_step = step
        self.position, self.tokens_before = position, tokens

    def start(self) -> None:
        self._started = time.monotonic()
        self._processor_started = time.process_time()

    def finish(self) -> None:
        self.seconds = time.monotonic() - self._started
        self.processor_seconds = time.process_time() - self._processor_started

    def add(self, result: StepResult, samples: int) -> None:
        """Count one more step."""
        self.step += 1
        self.position += samples
        self.tokens += result.tokens
        self._loss_sum += result.loss_sum
        self._labels += result.labels

    def settle(self, workers: Workers) -> None:
        """Return the mean loss per label since the last call, over all processes."""
        loss_sum, labels = workers.sum([self._loss_sum, self._labels])
        self.loss = loss_sum / max(labels, 1)
        self._loss_sum, self._labels = 0.0, 0

    def saved(self, stall_seconds: float) -> None:
        self.saved_step = self.step
        self.checkpoints += 1
        self.stall_seconds += stall_seconds

    @property
    def all_tokens(self) -> int:
        """Return the tokens of all steps up to now, also of those before a resume."""
        return int(self.tokens_before + self.tokens)

    def facts(self, rate: float) -> dict[str, Any]:
        """Return the progress line for programs."""
        elapsed = time.monotonic() - self._started
        return {
            "step": self.step,
            "total_steps": self.total,
            "train_loss": self.loss,
            "learning_rate": rate,
            "tokens": self.all_tokens,
            "tokens_per_second": self.tokens / elapsed,
        }

    def line(self, rate: float) -> str:
        elapsed = time.monotonic() - self._started
        left = elapsed / max(self.step - self.resumed_from, 1) * (self.total - self.step)
        return (
            f"step {self.step}/{self.total} loss {self.loss:.4f} lr {rate:.2e}"
            f" {self.tokens / elapsed:.0f} tokens/s eta {int(left) // 60}:{int(left) % 60:02d}"
        )

    def summary(self) -> dict[str, Any]:
        steps = self.step - self.resumed_from
        return {
            "step": self.step,
            "resumed_from": self.resumed_from,
            "loss": self.loss,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "tokens_per_second": self.tokens / self.seconds if steps and self.seconds else None,
            "checkpoints": self.checkpoints,
            "checkpoint_stall_seconds": self.stall_seconds,
        }
