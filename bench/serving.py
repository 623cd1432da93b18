#!/usr/bin/env python3
"""Compare vLLM with `generate` of transformers, and a fine-tuned model with its base.

    python bench/serving.py [--model tiny|qwen3-0.6b-shaped|FOLDER] [--rounds 5] [--tokens 64] [--gpu]

Four pods from the shared root, as a deployment's: the base; the base with an adapter loaded into it; the
model with the adapter in its weights; and, as in the first version of this project, `generate` on the model
with the adapter applied by peft. Each gives answers of one length, one at a time and 16 at a time; rounds
alternate, so that other load on the machine affects all alike, and medians are compared. On a GPU (--gpu) the
pods take turns, since a GPU belongs to one of them, and fine-tuning is measured too: 40 GB in $TMPDIR.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from served.models import KINDS, Weights, make  # noqa: E402
from served.places import AT_ONCE, Machine, Place, engine_pod, generate_pod, running  # noqa: E402
from served.training import training_line  # noqa: E402

from neocloud.engines.base import Engine  # noqa: E402
from neocloud.engines.podman import PodmanEngine  # noqa: E402
from tests.e2e.tiny_model import tiny_model  # noqa: E402

GPU_KINDS = ("qwen3-0.6b-shaped", "qwen3-8b-shaped")
ADAPTER_AIM, MERGED_AIM, SEED_RATIO = 0.9, 0.98, 0.02
PROMPT_TOKENS = 64
WARM_SECONDS = 30.0
"""An engine merges the adapter into its weights while it answers."""
BASE, BESIDE, TUNED, BOTH, MERGED, GENERATE = (
    "vLLM, base",
    "vLLM with an adapter loaded, base",
    "vLLM with an adapter loaded, adapter",
    "vLLM with an adapter loaded, half each",
    "vLLM, merged",
    "generate, peft",
)
Speed = Callable[[int], Awaitable[float]]
"""Tokens/s with this many requests at a time."""


@dataclass
class Found:
    """Tokens/s by server and requests at a time."""

    speeds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    generate_type: str = ""

    def median(self, name: str, at_once: int) -> float:
        return statistics.median(self.speeds[name, at_once])

    def ratio(self, name: str, to: str, at_once: int) -> float:
        """Return the median of the rounds' own ratios: both sides of one were measured within seconds."""
        pairs = zip(self.speeds[name, at_once], self.speeds[to, at_once], strict=True)
        return statistics.median(one / other for one, other in pairs)


class Bench:
    def __init__(self, engine: Engine, machine: Machine, weights: Weights, options: Any) -> None:
        self._engine, self._machine, self._weights = engine, machine, weights
        self._rounds = options.rounds
        self._place = partial(
            Place, vocabulary=weights.vocabulary, prompt_tokens=PROMPT_TOKENS, tokens=options.tokens
        )
        self.found = Found()

    async def together(self) -> None:
        """Run all pods at the same time."""
        async with AsyncExitStack() as stack:
            started = await asyncio.gather(*(self._start(stack, name) for name in self._pods()))
            speeds = {name: speed for one in started for name, speed in one.items()}
            for each, speed in speeds.items():
                await self._warm(each, speed)
            await self._measure(speeds)

    async def in_turns(self) -> None:
        """Run one pod after the other."""
        for name in self._pods():
            async with AsyncExitStack() as stack:
                speeds = await self._start(stack, name)
                for each, speed in speeds.items():
                    await self._warm(each, speed)
                await self._measure(speeds)

    def _pods(self) -> dict[str, Any]:
        weights, machine = self._weights, self._machine
        return {
            "base": engine_pod("base", machine, weights.base),
            "adapters": engine_pod("adapters", machine, weights.base, weights.adapter.parent),
            "merged": engine_pod("merged", machine, weights.merged),
            "generate": generate_pod("generate", machine, weights),
        }

    async def _start(self, stack: AsyncExitStack, name: str) -> dict[str, Speed]:
        """Return the client of the pod of this name."""
        place: Place = await stack.enter_async_context(running(self._engine, self._pods()[name], self._place))
        if name == "generate":
            self.found.generate_type = (await place.client.get("/")).json()["dtype"]
            speeds: dict[str, Speed] = {GENERATE: place.generate_speed}
        elif name == "adapters":
            await place.load_adapter(self._weights.adapter.name)
            ways = {BESIDE: ["base"], TUNED: [tuned := self._weights.adapter.name], BOTH: ["base", tuned]}
            speeds = {way: partial(place.engine_speed, models) for way, models in ways.items()}
        else:
            speeds = {BASE if name == "base" else MERGED: partial(place.engine_speed, ["base"])}
        print(f"  {name}: ready", flush=True)
        return speeds

    async def _warm(self, name: str, speed: Speed) -> None:
        """Send a first request of each kind, which compiles; to an adapter more, until it is merged."""
        for at_once in (1, AT_ONCE):
            await speed(at_once)
        ends_at = time.monotonic() + WARM_SECONDS
        while name == TUNED and time.monotonic() < ends_at:
            await speed(1)

    async def _measure(self, speeds: dict[str, Speed]) -> None:
        for number in range(self._rounds):
            for at_once in (1, AT_ONCE):
                # Forwards, then backwards, so that none always follows the same one.
                for name in sorted(speeds, reverse=bool(number % 2)):
                    self.found.speeds[name, at_once].append(await speeds[name](at_once))
            print(f"  round {number + 1} of {self._rounds}", flush=True)


def report(found: Found) -> None:
    print(f"\n{'tokens/s':<40}{'1 at a time':>12}{f'{AT_ONCE} at once':>12}")
    for name in (BASE, BESIDE, TUNED, BOTH, MERGED, GENERATE):
        shown = f"{name}, {found.generate_type}" if name == GENERATE else name
        print(f"{shown:<40}{found.median(name, 1):>12,.1f}{found.median(name, AT_ONCE):>12,.1f}")
    print()
    for says, name, to, aim in (
        ("adapter against base, same engine", TUNED, BESIDE, f"aim {ADAPTER_AIM}, the seed {SEED_RATIO}"),
        ("half each against base, same engine", BOTH, BESIDE, "one request at a time is the base's"),
        ("adapter against base alone", TUNED, BASE, "its engine has no adapters"),
        ("merged against base", MERGED, BASE, f"aim {MERGED_AIM}"),
        ("vLLM, adapter against generate", TUNED, GENERATE, "batch 1 and 16"),
        ("vLLM, merged against generate", MERGED, GENERATE, "batch 1 and 16"),
    ):
        one, many = found.ratio(name, to, 1), found.ratio(name, to, AT_ONCE)
        print(f"{says:<40}{one:>12.2f}{many:>12.2f}  ({aim})")
    served = found.median(TUNED, AT_ONCE) / found.median(GENERATE, 1)
    print(f"{'vLLM, 16 at once, against one by one':<40}{'':>12}{served:>12.1f}  (as the first version did)")


def shared_root(images: Path) -> str:
    """Return the image's name; build it first if needed."""
    build = ROOT / "images" / "jail" / "build"
    subprocess.run([sys.executable, build, "--output", images], check=True, stdout=subprocess.DEVNULL)
    return json.loads((images / "jail" / "image.json").read_text())["name"]


async def why_no_gpu(engine: Engine) -> str:
    """Return why no pod can get a GPU; "" when one can."""
    seen = await engine.capabilities()
    if not any(gpu.vendor == "nvidia" for gpu in seen.accelerators):
        return "no NVIDIA GPU was found"
    return next((warning for warning in seen.warnings if "GPU" in warning), "")


async def on_cpu(engine: Engine, image: str, work: Path, options: Any) -> None:
    weights = make(options.model, tiny_model(), work / "model")
    cpus = len(os.sched_getaffinity(0))
    # The engine, its cache and twice the weights, as they are read; and generate, which tries 32 bits.
    memory = int((4 + 6 * weights.gib) * 1024)
    merged = int(1.5 * weights.gib * 1024) + 64
    bench = Bench(engine, Machine(image, cpus, memory, merged_mib=merged), weights, options)
    print(f"{options.model}, {weights.parameters:,} parameters, on {cpus} CPUs", flush=True)
    await bench.together()
    report(bench.found)


async def on_gpu(engine: Engine, image: str, work: Path, options: Any) -> None:
    seen = await engine.capabilities()
    gpu = next(gpu for gpu in seen.accelerators if gpu.vendor == "nvidia")
    for kind in GPU_KINDS:
        weights = make(kind, tiny_model(), work / kind)
        machine = Machine(image, min(seen.cpus, 8), seen.memory_mib // 2, gpus=1)
        bench = Bench(engine, machine, weights, options)
        print(f"\n{kind}, {weights.parameters:,} parameters, on one {gpu.model}", flush=True)
        await bench.in_turns()
        report(bench.found)
        print(await training_line(engine, machine, weights, gpu.model, work / f"{kind}-training"))
        shutil.rmtree(work / kind)


async def measure(work: Path, options: Any) -> None:
    images = options.images.absolute()
    image = shared_root(images)
    home = work / "home"
    home.mkdir(mode=0o700)
    (home / "images").symlink_to(images)
    engine = PodmanEngine(home)
    try:
        missing = await why_no_gpu(engine)
        if not options.gpu:
            await on_cpu(engine, image, work, options)
        if options.gpu and not missing:
            await on_gpu(engine, image, work, options)
        if missing:
            print(f"\n{', '.join(GPU_KINDS)} on a GPU, fine-tune tokens/s and MFU: not_run, {missing}")
        elif not options.gpu:
            print("\non a GPU: not_run, request it with --gpu")
    finally:
        await engine.destroy()
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="tiny", help=f"what is served on the CPU: {', '.join(KINDS)}, or a model's folder"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="length of an answer")
    parser.add_argument("--gpu", action="store_true", help="measure on a GPU, and nothing on the CPU")
    parser.add_argument("--images", type=Path, default=ROOT / ".cache" / "images")
    options = parser.parse_args()
    if options.model not in KINDS and not (Path(options.model) / "config.json").exists():
        parser.error(f"--model {options.model}: neither one of {', '.join(KINDS)}, nor a model's folder")
    random.seed(0)
    print(f"{datetime.date.today()}, {platform.machine()}, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as work:
        asyncio.run(measure(Path(work), options))
    print(f"load at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
