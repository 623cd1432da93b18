"""Connect the processes of a fine-tuning run, as `torchrun` starts them, or a single one without it.

This module knows ranks, devices and sums over ranks, and nothing of models.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Workers:
    """This process among all processes of the run."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def join(cls) -> Workers:
        """Connect to the other processes: NCCL where there are GPUs, gloo elsewhere."""
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        gpu = torch.cuda.is_available()
        device = torch.device("cpu")
        if gpu:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if world_size > 1:
            dist.init_process_group("nccl" if gpu else "gloo")
        return cls(int(os.environ.get("RANK", "0")), world_size, device)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Add up each value over all processes."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def from_first(self, value: Any) -> Any:
        """Return the value of the first process in every process."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def wait_for_all(self) -> None:
        """Return when every process has called this."""
        self.sum([0])

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
