"""A control plane in this process around a fake engine of pods, and real calls to a server that plays
vLLM."""

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fakes import FakeModelServerClient
from neocloud.engines.base import Reference
from neocloud.services.inference.reconcile.model_server import ModelServerClient
from tests import control_plane


@dataclass
class FakeCloud(control_plane.Cloud):
    api = "neocloud.inference.v1"

    engines: FakeModelServerClient

    @property
    def models(self) -> Path:
        """Opened by the operator."""
        folder = self.home.resolve() / "opened"
        folder.mkdir(exist_ok=True)
        return folder

    def pods(self, deployment_id: str) -> list[str]:
        return sorted(pod.reference.name for pod in self.engine.world.pods_of(deployment_id))

    def pod(self, deployment_id: str, name: str = "replica-0") -> Any:
        return self.engine.world.pods[Reference("Pod", deployment_id, name)]


@asynccontextmanager
async def fake_cloud(home: Path) -> AsyncIterator[FakeCloud]:
    engines = FakeModelServerClient()
    async with control_plane.cloud_in_process(
        home,
        overrides=ServiceRegistry().add(ModelServerClient, engines),
        images={"jail": {"name": "jail"}},
        model_folders=(home / "opened",),
    ) as cloud:
        yield FakeCloud(**vars(cloud), engines=engines)


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
