"""Choose the type to compute in: a configuration's `mixed_precision` on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from recipe_errors import RecipeError

BY_NAME = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
FASTER = 1.2
"""The least ratio of speeds for which bf16 is chosen on a CPU."""
CPU_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""The last is of ARM."""
CPU_FACTS = Path("/proc/cpuinfo")


def precision(wanted: str) -> torch.dtype | None:
    """Return the type to compute in; None for plain float32."""
    gpu = torch.cuda.is_available()
    if wanted == "auto":
        if not gpu:
            return torch.bfloat16 if is_bf16_faster() else None
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if wanted == "fp16" and not gpu:
        raise RecipeError("mixed_precision fp16 needs a GPU; set it to auto, no or bf16")
    return BY_NAME[wanted]


def name_of(dtype: torch.dtype | None) -> str:
    """Return the `mixed_precision` that stands for a type."""
    return next(name for name, each in BY_NAME.items() if each == dtype)


def is_bf16_faster() -> bool:
    """Return True if this CPU has instructions for bf16 and they are faster than those for float32.

    With AMX they are many times faster. AVX512-BF16 is twice as fast on some CPUs and half as fast on others,
    so it is measured.
    """
    try:
        facts = CPU_FACTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    if CPU_FLAGS.isdisjoint(facts.split()):
        return False  # it would be computed in float32, with a conversion before and after
    return FASTER * _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)


def _product_seconds(dtype: torch.dtype) -> float:
    """Return the time of a product in the shape of a small model's layer: the shortest of five."""
    left, right = torch.ones(512, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    best = float("inf")
    for _ in range(6):  # the first one sets up
        started = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - started)
    return best
