"""The measured servers: pods like a deployment's, on an engine of their own, and their clients."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from served.models import CONTEXT, LORA, Weights

from neocloud.engines.base import Engine, PodPhase, Reference
from neocloud.engines.manifest import Pod
from neocloud.services.inference.render import (
    ADAPTERS_PATH,
    MODEL_PATH,
    ModelServerView,
    ReplicaView,
    foundation,
    replica_pod,
)
from neocloud.services.inference.rules.memory import LARGEST_RANK
from neocloud.services.inference.types import SERVER_PORT

SPACE = "serving"
KEY = "bench"
AT_ONCE = 16
ADAPTERS = 4
"""The number of adapters that a deployment can hold in this bench; one is used."""
START_SECONDS = 900.0
SEED_PATH = "/seed"
SEED_SERVER = Path(__file__).with_name("generate_server.py")


@dataclass(frozen=True)
class Machine:
    """The resources of every pod of the bench."""

    image: str
    cpus: int
    memory_mib: int
    gpus: int = 0
    merged_mib: int = 0
    """For weights with an adapter in them, as the plan of a deployment leaves it."""


def engine_pod(name: str, machine: Machine, model: Path, adapters: Path | None = None) -> Pod:
    """A pod of vLLM as the deployments of this cloud run it."""
    view = ModelServerView(
        served_name="base",
        context_length=CONTEXT,
        max_concurrency=AT_ONCE,
        cache_gib=1,
        gpus=machine.gpus,
        max_adapters=ADAPTERS if adapters else 0,
        adapter_rank=LARGEST_RANK,
        merged_mib=machine.merged_mib,
        adapted_modules=tuple(LORA["target_modules"]) if adapters else (),
    )
    replica = ReplicaView(
        name=name,
        namespace=SPACE,
        image=machine.image,
        weights=model,
        adapters=adapters,
        cpus=machine.cpus,
        memory_mib=machine.memory_mib,
        server=view,
    )
    return replica_pod(replica)


def plain_pod(name: str, machine: Machine, weights: Weights, mounted: Path, words: Sequence[str]) -> Pod:
    """A pod like an engine's that runs something else; `mounted` is before it as SEED_PATH."""
    pod = engine_pod(name, machine, weights.base, weights.adapter.parent).to_dict()
    (container,) = pod["spec"]["containers"]
    container["args"] = list(words)
    for probe in ("readinessProbe", "startupProbe", "livenessProbe"):
        del container[probe]  # it answers one at a time, so it is silent while it works
    container["volumeMounts"].append({"name": "seed", "mountPath": SEED_PATH, "readOnly": True})
    pod["spec"]["volumes"].append({"name": "seed", "hostPath": {"path": str(mounted), "type": "Directory"}})
    return Pod.from_dict(pod)


def generate_pod(name: str, machine: Machine, weights: Weights) -> Pod:
    """A pod of `generate` of transformers behind a port."""
    words = ["python3", f"{SEED_PATH}/{SEED_SERVER.name}", "--model", MODEL_PATH]
    words += ["--adapter", f"{ADAPTERS_PATH}/{weights.adapter.name}", "--port", str(SERVER_PORT)]
    return plain_pod(name, machine, weights, SEED_SERVER.parent, words)


@dataclass
class Place:
    """A server that generates tokens."""

    client: httpx.AsyncClient
    vocabulary: int
    prompt_tokens: int
    tokens: int

    def prompts(self, count: int) -> list[list[int]]:
        """Return new prompts each time, so that no cache helps."""
        words = range(3, self.vocabulary)
        return [random.choices(words, k=self.prompt_tokens) for _ in range(count)]

    async def engine_speed(self, models: Sequence[str], at_once: int) -> float:
        """Return new tokens/s over simultaneous requests, to these models in turn."""
        length = {"max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
        prompts = zip(itertools.cycle(models), self.prompts(at_once), strict=False)
        requests = [{"model": model, "prompt": prompt, **length} for model, prompt in prompts]
        started = time.monotonic()
        answers = await asyncio.gather(*(self._post("/v1/completions", one) for one in requests))
        seconds = time.monotonic() - started
        made = sum(answer["usage"]["completion_tokens"] for answer in answers)
        return self._speed(made, at_once, seconds)

    async def generate_speed(self, at_once: int) -> float:
        """Return new tokens/s of one batch."""
        request = {"prompts": self.prompts(at_once), "tokens": self.tokens}
        started = time.monotonic()
        made = (await self._post("/generate", request))["tokens"]
        return self._speed(made, at_once, time.monotonic() - started)

    async def load_adapter(self, name: str) -> None:
        words = {"lora_name": name, "lora_path": f"{ADAPTERS_PATH}/{name}"}
        (await self.client.post("/v1/load_lora_adapter", json=words)).raise_for_status()

    def _speed(self, made: int, at_once: int, seconds: float) -> float:
        if made != at_once * self.tokens:
            raise SystemExit(f"{made} tokens came where {at_once * self.tokens} were requested")
        return made / seconds

    async def _post(self, path: str, content: dict[str, Any]) -> Any:
        answer = await self.client.post(path, json=content)
        if answer.is_error:
            raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
        return answer.json()


@asynccontextmanager
async def running(engine: Engine, pod: Pod, place: Any) -> AsyncIterator[Any]:
    """The pod, until the end of the block; `place` is called with a client of it once it answers."""
    reference = pod.reference
    await engine.apply([*foundation(SPACE, "bench", KEY.encode()), pod])
    try:
        seen = (await engine.observe(SPACE)).pod(reference.name)
        assert seen is not None
        headers = {"Authorization": f"Bearer {KEY}"}
        limits = httpx.Limits(max_connections=AT_ONCE * 2)
        base = f"http://{seen.ip}:{SERVER_PORT}"
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=900, limits=limits) as client:
            await _answers(engine, reference, client)
            yield place(client)
    finally:
        await engine.remove([reference])


async def _answers(engine: Engine, pod: Reference, client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            seen = (await engine.observe(SPACE)).pod(pod.name)
            if seen is None or seen.phase is not PodPhase.RUNNING:
                said = "\n".join([line async for line in engine.logs(pod, tail=30)])
                raise SystemExit(f"{pod.name} ended before it answered:\n{said}")
            try:
                if (await client.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.2)
