"""A short training whose loss is known: a small transformer learns a made language.

Weights and data come from rules on the CPU, so only the arithmetic of the device can change the curve. A
model that learns wrong because of a broken device shows here even if each single product looks right.
"""

import json
import math
import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FOLLOWERS = 4
"""Tokens that may follow a token; the loss ends near ln 4 = 1.386."""


@dataclass(frozen=True)
class Setup:
    name: str
    width: int
    layers: int
    heads: int
    vocabulary: int
    context: int
    batch: int
    steps: int
    rate: float
    is_bf16: bool

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.context


FULL = Setup("full", 1024, 12, 16, 4096, 1024, 16, 300, 6e-4, is_bf16=True)
"""For a GPU: 160 million weights, within two minutes."""
SHORT = replace(FULL, name="short", steps=60)
"""To be run twice."""
SMALL = Setup("small", 64, 2, 4, 256, 64, 16, 60, 1e-2, is_bf16=False)
"""For a CPU, in seconds."""


@dataclass(frozen=True)
class Curve:
    losses: Sequence[float]
    """Loss of each step, in nats for each token."""
    tokens_per_second: float
    """Without the first tenth of the steps."""


class _Block(nn.Module):
    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.heads = setup.heads
        self.first, self.second = nn.LayerNorm(setup.width), nn.LayerNorm(setup.width)
        self.mix = nn.Linear(setup.width, 3 * setup.width, bias=False)
        self.out = nn.Linear(setup.width, setup.width, bias=False)
        self.up = nn.Linear(setup.width, 4 * setup.width, bias=False)
        self.down = nn.Linear(4 * setup.width, setup.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        mixed = self.mix(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class _Model(nn.Module):
    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.embed = nn.Embedding(setup.vocabulary, setup.width)
        self.place = nn.Embedding(setup.context, setup.width)
        self.blocks = nn.ModuleList(_Block(setup) for _ in range(setup.layers))
        self.norm = nn.LayerNorm(setup.width)
        self.head = nn.Linear(setup.width, setup.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _model(setup: Setup) -> _Model:
    generator = torch.Generator().manual_seed(20)
    model = _Model(setup)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                is_last = name.endswith(("out.weight", "down.weight"))
                scale = 0.02 / math.sqrt(2 * setup.layers) if is_last else 0.02
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return model


def _data(setup: Setup) -> Tensor:
    """Return (steps, batch, context + 1) tokens of a language in which four tokens may follow each token."""
    generator = torch.Generator().manual_seed(21)
    followers = torch.randint(setup.vocabulary, (setup.vocabulary, FOLLOWERS), generator=generator)
    rows = setup.steps * setup.batch
    choices = torch.randint(FOLLOWERS, (setup.context, rows), generator=generator)
    tokens = [torch.randint(setup.vocabulary, (rows,), generator=generator)]
    for choice in choices:
        tokens.append(followers[tokens[-1], choice])
    return torch.stack(tokens, dim=1).view(setup.steps, setup.batch, setup.context + 1)


def train(device: torch.device, setup: Setup) -> Curve:
    """Train from the start and return the loss of each step.

    The sums are done in one order, so two runs on one device, or on two of one model, give the same bits.
    """
    with _one_order():
        return _train(device, setup)


@contextmanager
def _one_order() -> Generator[None]:
    # cuBLAS reads it when it is first used, so a check runs in a process of its own.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _train(device: torch.device, setup: Setup) -> Curve:
    data = _data(setup)
    model = _model(setup).to(device)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=setup.rate, betas=(0.9, 0.95), weight_decay=0.1)
    losses: list[Tensor] = []
    warm = max(1, setup.steps // 10)
    began = time.monotonic()
    for step in range(setup.steps):
        if step == warm:
            began = _now(device)
        tokens = data[step].to(device)
        for group in optimizer.param_groups:
            group["lr"] = setup.rate * min(1.0, (step + 1) / warm)
        with torch.autocast(device.type, torch.bfloat16, enabled=setup.is_bf16):
            logits = model(tokens[:, :-1])
        loss: Any = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    seconds = _now(device) - began
    speed = (setup.steps - warm) * setup.tokens_per_step / seconds
    return Curve([float(each) for each in losses], speed)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def golden(setup: Setup) -> Sequence[float]:
    """Return the curve that a sound device gives, as recorded. Raises KeyError where none is."""
    curves = json.loads((resources.files("neocloud.fleet.active") / "golden.json").read_text())
    return curves[setup.name]["losses"]


def deviation(losses: Sequence[float], known: Sequence[float]) -> tuple[float, int]:
    """Return the largest relative difference of the smoothed curves, and its step. NaN counts as infinite."""
    if len(losses) != len(known):
        raise ValueError(f"{len(losses)} steps cannot be compared with {len(known)}")
    smooth, right = _smooth(losses), _smooth(known)
    apart = [abs(a - b) / b if math.isfinite(a) else math.inf for a, b in zip(smooth, right, strict=True)]
    worst = max(range(len(apart)), key=apart.__getitem__)
    return apart[worst], worst


def _smooth(values: Sequence[float], over: int = 10) -> list[float]:
    """Return the mean of the last steps at each step."""
    windows = (values[max(0, at - over + 1) : at + 1] for at in range(len(values)))
    return [sum(window) / len(window) for window in windows]
