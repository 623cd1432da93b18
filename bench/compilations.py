#!/usr/bin/env python3
"""Measure how long chats wait beside callers who have the model server compile all that they may.

    python bench/compilations.py [--model tiny|qwen3-0.6b-shaped] [--seconds 30] [--direct] [--mock]

One vLLM in a pod, as a deployment's, behind a gateway process. A victim chats all the time, first alone, then
beside each attack: expressions that end an engine, and new expressions and schemas as heavy as the gateway
lets pass, of eight callers at a time. The table has the ratio to the quiet time. With --direct the first
attack goes to the model server itself, past the gateway, to show what it is kept from.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from served.models import KINDS, make  # noqa: E402
from served.places import KEY, Machine, Place, engine_pod, running  # noqa: E402
from serving import shared_root  # noqa: E402

from neocloud.engines.podman import PodmanEngine  # noqa: E402
from neocloud.testing.gateway import GatewayProcess, engine_process, gateway_process, route  # noqa: E402
from neocloud.testing.mock_engine import Behaviour  # noqa: E402
from tests.e2e.tiny_model import tiny_model  # noqa: E402

CALLERS = 8
CHAT_TOKENS = 8
PAUSE_SECONDS = 0.05
"""Between two chats of the victim."""
LEAST = 10
"""Chats of the victim in each part, however long they take."""
ATTACK_PAUSE_SECONDS = 0.5
"""Pause of each attacking caller, so that the attack does not take the machine's processors by itself."""
AIM = 2.0
CHAT = "/v1/chat/completions"
NUMBERS = itertools.count()
Body = dict[str, Any]


def chat(**more: Any) -> Body:
    return {"model": "base", "messages": [{"role": "user", "content": "How do I block my card?"}], **more}


def hostile() -> Body:
    """Eight of these at once end a vLLM that compiles them."""
    parts = ["(a.*b.*){1,50}"] * 3000
    return chat(max_tokens=4, structured_outputs={"regex": f"{'|'.join(parts)}|{next(NUMBERS)}"})


def heavy_expression() -> Body:
    """Weigh almost 10,000."""
    pattern = "|".join(["(a.*b.*){1,50}"] * 3)
    return chat(max_tokens=4, structured_outputs={"regex": f"{pattern}|{next(NUMBERS)}"})


def heavy_schema() -> Body:
    fields = {f"f{n}": {"type": "string", "maxLength": 100 + n + next(NUMBERS) % 900} for n in range(5)}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return chat(
        max_tokens=4,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    )


ATTACKS: dict[str, Callable[[], Body]] = {
    "expressions that end an engine": hostile,
    "the heaviest expressions that pass": heavy_expression,
    "schemas with limits of length": heavy_schema,
}


async def victim(client: httpx.AsyncClient, seconds: float) -> list[float]:
    """Return the seconds of each chat; those that fail count as infinite."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(found) < LEAST:
        began = time.monotonic()
        answer = await client.post(CHAT, json=chat(max_tokens=CHAT_TOKENS, ignore_eos=True, temperature=0))
        found.append(time.monotonic() - began if answer.status_code == 200 else float("inf"))
        await asyncio.sleep(PAUSE_SECONDS)
    return found


async def attack(client: httpx.AsyncClient, make_body: Callable[[], Body], statuses: Counter[str]) -> None:
    while True:
        try:
            answer = await client.post(CHAT, json=make_body())
            statuses[str(answer.status_code)] += 1
        except httpx.TransportError:
            statuses["lost"] += 1
        await asyncio.sleep(ATTACK_PAUSE_SECONDS)


async def beside(
    clients: list[httpx.AsyncClient], own: httpx.AsyncClient, make_body: Callable[[], Body], seconds: float
) -> tuple[list[float], Counter[str]]:
    statuses: Counter[str] = Counter()
    attacks = [asyncio.create_task(attack(client, make_body, statuses)) for client in clients]
    try:
        return await victim(own, seconds), statuses
    finally:
        for task in attacks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*attacks, return_exceptions=True)


def percentiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]


def callers(gateway: GatewayProcess, count: int) -> Iterator[httpx.AsyncClient]:
    for number in range(count):
        name = f"caller-{number}"
        gateway.control_plane.add_caller(name, tenant="tenant-a", projects=["project-a"])
        yield httpx.AsyncClient(
            base_url=gateway.url, headers={"Authorization": f"Bearer {name}"}, timeout=300
        )


async def measure(address: str, engine: httpx.AsyncClient | None, home: Path, options: Any) -> None:
    with gateway_process(home) as gateway:
        gateway.set_routes(route("base", replicas=[address], engine_key=KEY))
        own, *clients = callers(gateway, CALLERS + 1)
        await victim(own, 3)
        print(
            f"{'chats':<40}{'n':>6}{'p50 ms':>9}{'p99 ms':>9}{'p50 x':>7}{'p99 x':>7}  answers of the attack"
        )
        quiet = None
        for name, make_body in (("", None), *ATTACKS.items(), ("", None)):
            if make_body is None:
                found, statuses = await victim(own, options.seconds), Counter[str]()
            else:
                found, statuses = await beside(clients, own, make_body, options.seconds)
            quiet = _row(name or "quiet", found, quiet, statuses)
        if options.direct and engine is not None:
            direct = [engine] * CALLERS
            found, statuses = await beside(direct, own, hostile, options.seconds)
            _row("to the engine itself, past the gateway", found, quiet, statuses)


def _row(
    name: str, found: list[float], quiet: tuple[float, float] | None, statuses: Counter[str]
) -> tuple[float, float]:
    median, high = percentiles(found)
    base = quiet or (median, high)
    print(
        f"{name:<40}{len(found):>6}{median * 1000:>9.0f}{high * 1000:>9.0f}"
        f"{median / base[0]:>7.2f}{high / base[1]:>7.2f}  {dict(statuses) or ''}",
        flush=True,
    )
    return base


async def run(work: Path, options: Any) -> None:
    images = options.images.absolute()
    image = shared_root(images)
    home = work / "home"
    home.mkdir(mode=0o700)
    (home / "images").symlink_to(images)
    weights = make(options.model, tiny_model(), work / options.model)
    engine = PodmanEngine(home)
    machine = Machine(image, len(os.sched_getaffinity(0)), int((4 + 6 * weights.gib) * 1024))
    new_place = partial(Place, vocabulary=weights.vocabulary, prompt_tokens=16, tokens=CHAT_TOKENS)
    try:
        async with running(engine, engine_pod("base", machine, weights.base), new_place) as place:
            print(f"{options.model}, {machine.cpus} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)
            address = str(place.client.base_url).removeprefix("http://").strip("/")
            await measure(address, place.client, work / "gateway", options)
            print(f"load at the end: {os.getloadavg()[0]:.1f}; aim: p99 at most {AIM:g} x quiet")
    finally:
        await engine.destroy()
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=KINDS, default="tiny")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--direct", action="store_true")
    parser.add_argument(
        "--mock", action="store_true", help="an engine that computes nothing: the gateway's part"
    )
    parser.add_argument("--images", type=Path, default=ROOT / ".cache" / "images")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.mock:
            behaviour = Behaviour(tokens=CHAT_TOKENS, token_seconds=0.01, compile_seconds=0.5)
            with engine_process(behaviour) as engine:
                print(f"mock engine, load {os.getloadavg()[0]:.1f}", flush=True)
                asyncio.run(measure(engine.address, None, Path(folder), options))
        else:
            asyncio.run(run(Path(folder), options))


if __name__ == "__main__":
    main()
