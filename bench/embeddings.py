#!/usr/bin/env python3
"""Compare embeddings through the gateway with the engine alone, and with sentence-transformers.

    scripts/install-client sentence-transformers
    python bench/embeddings.py [--model FOLDER] [--rounds 5] [--texts 128] [--type float32]

The engine is vLLM in a pod like a deployment's; the gateway is a process on this machine, as in a cloud;
sentence-transformers is a process of its own that embeds the same texts in batches of 32, without any server.
Each embeds new texts of about 40 and of about 200 tokens: one at a time, 64 per request, and one per request
with 16 at a time. Rounds alternate, so that other load affects all alike; medians and ratios are printed. All
make the same vectors: the largest difference is printed, too.
"""

import argparse
import asyncio
import base64
import datetime
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402
from served.places import KEY, SPACE, running  # noqa: E402
from serving import shared_root  # noqa: E402

from neocloud.engines.base import Engine  # noqa: E402
from neocloud.engines.podman import PodmanEngine  # noqa: E402
from neocloud.services.inference.render import ModelServerView, ReplicaView, replica_pod  # noqa: E402
from neocloud.testing.gateway import gateway_process, route  # noqa: E402

PEER = ROOT / ".cache" / "clients" / "sentence-transformers"
NAME, CONTEXT = "vectors", 256
WORDS = ("card", "account", "branch", "transfer", "loan", "rate", "block", "fee", "limit", "bank", "code")
LENGTHS = (40, 200)
WAYS = (("one at a time", 1, 1), ("64 in a request", 64, 1), ("16 requests at a time", 1, 16))
"""Name, texts of a request, requests at a time."""
GATEWAY, ENGINE, DIRECT = "gateway", "engine alone", "sentence-transformers"


@dataclass
class Found:
    """Texts/s by way of asking, length and server."""

    speeds: dict[tuple[str, int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    difference: float = 0.0

    def ratio(self, way: str, length: int, to: str) -> float:
        """Return the median of the rounds' own ratios: both sides of one were measured within seconds."""
        ours, theirs = self.speeds[way, length, GATEWAY], self.speeds[way, length, to]
        return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


class SentenceTransformers:
    def __init__(self, model: Path, threads: int) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": sysconfig.get_path("purelib"),
        }  # fmt: skip
        script = Path(__file__).parent / "peers" / "sentence_vectors.py"
        command = [str(PEER / "bin" / "python"), str(script), str(model), str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def embed(self, texts: Sequence[str]) -> tuple[float, list[float]]:
        """Return seconds, and the first number of each vector."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(texts) + "\n")
        self.process.stdin.flush()
        seconds, first = json.loads(self.process.stdout.readline())
        return seconds, first

    def embed_in(self, texts: Sequence[str], each: int) -> tuple[float, list[float]]:
        """Return the same of calls with so many texts each. A library has no requests to answer at a time."""
        calls = [self.embed(texts[start : start + each]) for start in range(0, len(texts), each)]
        return sum(seconds for seconds, _ in calls), [number for _, first in calls for number in first]


@contextmanager
def direct(model: Path, threads: int) -> Iterator[SentenceTransformers]:
    peer = SentenceTransformers(model, threads)
    try:
        yield peer
    finally:
        peer.process.kill()
        peer.process.wait()


async def served(
    client: httpx.AsyncClient, texts: Sequence[str], each: int, at_once: int
) -> tuple[float, list[float]]:
    """Return seconds, and the first number of each vector."""
    requests = [list(texts[start : start + each]) for start in range(0, len(texts), each)]
    answers: list[list[float]] = [[] for _ in requests]
    waiting = iter(enumerate(requests))

    async def work() -> None:
        for number, inputs in waiting:
            body = {"model": NAME, "input": inputs, "encoding_format": "base64"}
            answer = await client.post("/v1/embeddings", json=body)
            if answer.is_error:
                raise SystemExit(f"{client.base_url}: {answer.status_code} {answer.text}")
            answers[number] = [_first(one["embedding"]) for one in answer.json()["data"]]

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return time.perf_counter() - began, [number for one in answers for number in one]


def _first(packed: str) -> float:
    return struct.unpack("<f", base64.b64decode(packed)[:4])[0]


def texts_of(length: int, count: int) -> list[str]:
    """Return new texts each time, so that no cache helps; most of the words are one token."""
    return [" ".join(random.choices(WORDS, k=length - 2)) for _ in range(count)]


async def rounds(clients: dict[str, httpx.AsyncClient], peer: SentenceTransformers, options: Any) -> Found:
    found = Found()
    for number in range(options.rounds + 1):  # the first one warms up
        for length in LENGTHS:
            for way, each, at_once in WAYS:
                texts = texts_of(length, options.texts if each > 1 or at_once > 1 else options.texts // 4)
                numbers: dict[str, list[float]] = {}
                for name in (GATEWAY, ENGINE, DIRECT)[:: 1 if number % 2 else -1]:
                    if name == DIRECT:
                        seconds, numbers[name] = peer.embed_in(
                            texts, 1 if each * at_once == 1 else len(texts)
                        )
                    else:
                        seconds, numbers[name] = await served(clients[name], texts, each, at_once)
                    if number:
                        found.speeds[way, length, name].append(len(texts) / seconds)
                differences = (abs(a - b) for a, b in zip(numbers[GATEWAY], numbers[DIRECT], strict=True))
                found.difference = max(found.difference, *differences)
        print(f"  round {number} of {options.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def report(found: Found) -> None:
    print(f"\n{'texts/s':<36}{GATEWAY:>10}{ENGINE:>14}{DIRECT:>23}{'to engine':>11}{'to library':>12}")
    for length in LENGTHS:
        for way, _, _ in WAYS:
            speeds = [found.speeds[way, length, name] for name in (GATEWAY, ENGINE, DIRECT)]
            medians = [statistics.median(each) for each in speeds]
            ratios = [found.ratio(way, length, to) for to in (ENGINE, DIRECT)]
            label = f"{length} tokens, {way}"
            print(
                f"{label:<36}{medians[0]:>10,.1f}{medians[1]:>14,.1f}{medians[2]:>23,.1f}"
                f"{ratios[0]:>11.2f}{ratios[1]:>12.2f}"
            )
    print(f"largest difference of a number of a vector to the library's: {found.difference:.5f}")


async def measure(work: Path, options: Any) -> None:
    images = options.images.absolute()
    image, cpus = shared_root(images), len(os.sched_getaffinity(0))
    home = work / "home"
    home.mkdir(mode=0o700)
    (home / "images").symlink_to(images)
    engine: Engine = PodmanEngine(home)
    view = ModelServerView(NAME, CONTEXT, max_concurrency=options.sequences, cache_gib=1, task="EMBED")
    replica = ReplicaView(
        name="vectors",
        namespace=SPACE,
        image=image,
        weights=options.model,
        adapters=None,
        cpus=cpus,
        memory_mib=4096,
        server=view,
    )
    pod = replica_pod(replica)
    if options.type:
        (container,) = pod.containers
        pod = replace(pod, containers=(replace(container, args=(*container.args, "--dtype", options.type)),))
    try:
        async with running(engine, pod, lambda client: client) as alone:
            with (
                gateway_process(work / "gateway") as gateway,
                direct(options.model, cpus) as peer,
            ):
                address = str(alone.base_url).removeprefix("http://").rstrip("/")
                gateway.set_routes(route(NAME, replicas=[address], engine_key=KEY, task="EMBED"))
                connection = {"base_url": gateway.url, "headers": gateway.headers, "timeout": 900}
                async with httpx.AsyncClient(**connection) as through:
                    report(await rounds({GATEWAY: through, ENGINE: alone}, peer, options))
    finally:
        await engine.destroy()
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, default=ROOT / ".cache" / "images")
    parser.add_argument("--model", type=Path, help="default: that of images/all-minilm-l6-v2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--sequences", type=int, default=16, help="texts that the engine works on at a time")
    parser.add_argument("--type", default="", help="type of the numbers, e.g. float32; default: the engine's")
    options = parser.parse_args()
    if not (PEER / "bin" / "python").exists():
        raise SystemExit("The peer is not installed: run scripts/install-client sentence-transformers")
    options.model = (options.model or options.images / "all-minilm-l6-v2" / "model").resolve()
    if not (options.model / "config.json").exists():
        build = f"images/all-minilm-l6-v2/build --output {options.images}"
        raise SystemExit(f"{options.model} is no model: run {build}")
    random.seed(0)
    print(f"{datetime.date.today()}, {platform.machine()}, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory(prefix="bench-embeddings-") as work:
        asyncio.run(measure(Path(work), options))


if __name__ == "__main__":
    main()
