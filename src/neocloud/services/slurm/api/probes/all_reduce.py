"""Measure all-reduce bandwidth over all workers of a job with torch.distributed. Rank 0 prints JSON.

NCCL when every node has GPUs, gloo otherwise. Bus bandwidth is 2 (n-1)/n times size over time, the
definition of nccl-tests, so figures of different node counts compare.
"""

import importlib
import json
import os
import time
from typing import Any

import torch

SIZES_MIB = (1, 16, 128)
SECONDS_PER_SIZE = 2.0
MOST_ROUNDS = 20
dist: Any = importlib.import_module("torch.distributed")  # it has few types


def measure(size_mib: int, device: str, world_size: int) -> dict[str, float]:
    tensor = torch.ones(size_mib * 2**18, dtype=torch.float32, device=device)
    dist.all_reduce(tensor)
    right = bool(torch.eq(tensor, world_size).all())
    elapsed, rounds = 0.0, 0
    while rounds < MOST_ROUNDS:
        start = time.perf_counter()
        dist.all_reduce(tensor.fill_(1.0))
        if device == "cuda":
            torch.cuda.synchronize()
        elapsed += time.perf_counter() - start
        rounds += 1
        # All ranks must agree when to stop.
        over = torch.tensor([1.0 if elapsed > SECONDS_PER_SIZE else 0.0], device=device)
        dist.all_reduce(over)
        if over.item():
            break
    seconds = elapsed / rounds
    algorithm = size_mib * 2**20 / seconds
    return {
        "size_mib": size_mib,
        "right": right,
        "bus_mib_per_second": algorithm * 2 * (world_size - 1) / world_size / 2**20,
        "milliseconds": seconds * 1e3,
    }


def main() -> None:
    rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("SLURM_LOCALID", "0")))
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    results = [measure(size, device, world_size) for size in SIZES_MIB]
    if rank == 0:
        print(json.dumps({"backend": dist.get_backend(), "ranks": world_size, "results": results}))
    dist.destroy_process_group()


main()
