"""A control plane in this process around a fake engine of pods, and real calls to a server that plays
vLLM."""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from neocloud.control_plane.composition import ControlPlane, control_plane
from neocloud.control_plane.settings import Settings
from neocloud.core import contract, wire
from neocloud.core.clock import SystemClock
from neocloud.core.registry import ServiceRegistry
from neocloud.emulator.fake_inference import FakeModelServerClient
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from neocloud.services.inference.reconcile.model_server import ModelServerClient
from neocloud.testing.api_calls import call, sign_in

DEADLINE_SECONDS = 20.0
INFERENCE = "neocloud.inference.v1"


@dataclass(frozen=True)
class FakeCloud:
    running: ControlPlane
    engine: FakeEngine
    engines: FakeModelServerClient
    channel: grpc.aio.Channel
    token: str
    home: Path

    @property
    def project_id(self) -> str:
        return self.running.first.project_id

    @property
    def models(self) -> Path:
        """Opened by the operator."""
        folder = self.home.resolve() / "opened"
        folder.mkdir(exist_ok=True)
        return folder

    async def ask(self, path: str, request: Any) -> Any:
        """As the first service account; `path` within inference.v1, `request` as a dict."""
        rpc = contract.method(f"{INFERENCE}.{path}")
        message = contract.from_dict(rpc.input, request)
        return await call(self.channel, rpc.path, message, (("authorization", f"Bearer {self.token}"),))

    async def create(self, noun: str, name: str, spec: dict[str, Any]) -> str:
        """The id of a new resource."""
        metadata = {"parent_id": self.project_id, "name": name}
        operation = await self.ask(f"{noun}Service/Create", {"metadata": metadata, "spec": spec})
        return operation.resource_id

    async def row(self, resource_id: str) -> Any:
        return await self.running.store.read(lambda tx: tx.get(resource_id))

    async def until(self, resource_id: str, state: str) -> Any:
        """The resource as a message, once it is in this state."""
        return await self.when(resource_id, lambda _: True, state)

    async def when(self, resource_id: str, holds: Callable[[Any], bool], state: str = "") -> Any:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            row = await self.row(resource_id)
            if row is not None and state in ("", row.state):
                message = wire.resource_message(row)
                if holds(message):
                    return message
            assert time.monotonic() < deadline, wire.resource_message(row) if row else "it is gone"
            await asyncio.sleep(0.02)

    async def gone(self, resource_id: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while await self.row(resource_id):
            assert time.monotonic() < deadline, f"{resource_id} is still there"
            await asyncio.sleep(0.02)

    def pods(self, deployment_id: str) -> list[str]:
        return sorted(pod.reference.name for pod in self.engine.world.pods_of(deployment_id))

    def pod(self, deployment_id: str, name: str = "replica-0") -> Any:
        return self.engine.world.pods[Reference("Pod", deployment_id, name)]


@asynccontextmanager
async def fake_cloud(home: Path) -> AsyncIterator[FakeCloud]:
    image = home / "images" / "jail" / "image.json"
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_text('{"name": "jail"}')
    engine, engines = FakeEngine(), FakeModelServerClient()
    settings = Settings(home=home, grpc_port=0, http_port=0, model_folders=(home / "opened",))
    overrides = ServiceRegistry().add(ModelServerClient, engines)
    async with (
        control_plane(settings, engine, clock=SystemClock(), overrides=overrides) as running,
        grpc.aio.insecure_channel(running.server.addresses.grpc) as channel,
    ):
        token = await sign_in(channel, running.first.credentials)
        yield FakeCloud(running, engine, engines, channel, token, home)


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
}
ADAPTER_CONFIG = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}


def write_safetensors(file: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    """A file of zeros with these tensors."""
    header, end = {}, 0
    for name, shape in tensors.items():
        size = 2
        for side in shape:
            size *= side
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_model(folder: Path, **changes: Any) -> Path:
    """The smallest folder that is a whole model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    layers = {f"model.layers.{number}.self_attn.q_proj.weight": (8, 8) for number in range(2)}
    write_safetensors(folder / "model.safetensors", {**layers, "lm_head.weight": (32, 8)})
    return folder


def write_adapter(
    folder: Path, *, width: int = 8, layer: int = 0, module: str = "q_proj", **changes: Any
) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({**ADAPTER_CONFIG, **changes}))
    name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
    tensors = {f"{name}.lora_A.weight": (4, width), f"{name}.lora_B.weight": (8, 4)}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


POD_SHAPE = {"platform": "cpu-local", "preset": "1vcpu-4gb"}
