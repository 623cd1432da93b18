"""AIS-01: a pod runs vLLM from the shared root, without a copy of it, on a model that it cannot write to.

The first prompt is a short one on purpose: that killed the engine on processors with AMX.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from neocloud.engines.base import KubernetesObject, PodPhase, Reference
from neocloud.engines.podman import PodmanEngine

SPACE, PORT = "engine", 8000
POD = Reference("Pod", SPACE, "replica")
START_SECONDS = 240.0
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def pod(image: str, model: Path) -> KubernetesObject:
    arguments = ["/model", "--served-model-name", "tiny", "--port", str(PORT), "--enforce-eager"]
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "command": ["vllm", "serve"],
        "args": [*arguments, "--max-model-len", "512", "--max-num-seqs", "4"],
        "env": [{"name": name, "value": value} for name, value in VARIABLES.items()],
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [
            {"name": "model", "mountPath": "/model", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "model", "hostPath": {"path": str(model), "type": "Directory"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    metadata = {"name": POD.name, "namespace": SPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(images: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PodmanEngine]:
    home = tmp_path_factory.mktemp("home")
    (home / "images").symlink_to(images)
    engine = PodmanEngine(home)
    try:
        yield engine
    finally:
        await engine.destroy()
        await engine.close()


async def answers(engine: PodmanEngine, base: str, client: httpx.AsyncClient) -> None:
    """Wait until the engine is healthy; a pod that ended says why."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            seen = (await engine.observe(SPACE)).pod(POD.name)
            if seen is None or seen.phase is not PodPhase.RUNNING:
                pytest.fail("\n".join([line async for line in engine.logs(POD, tail=40)]))
            try:
                if (await client.get(f"{base}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.2)


async def test_a_pod_serves_a_model_from_the_shared_root(
    engine: PodmanEngine, images: Path, model: Path
) -> None:
    image = json.loads((images / "jail" / "image.json").read_text())["name"]
    assert await engine.image_exists(image)
    await engine.apply(
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}, pod(image, model)]
    )
    seen = (await engine.observe(SPACE)).pod(POD.name)
    assert seen is not None
    base = f"http://{seen.ip}:{PORT}"
    async with httpx.AsyncClient(timeout=60) as client:
        await answers(engine, base, client)
        asked = {"model": "tiny", "prompt": "What", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = (await client.post(f"{base}/v1/completions", json=asked)).json()
    assert answer["usage"]["completion_tokens"] == 8, answer
    written = await engine.exec(POD, ["touch", "/model/mark"])
    assert written.exit_code != 0 and b"Read-only" in written.stderr
    assert not (images / "jail" / "rootfs" / "root" / ".cache" / "vllm").exists()
