"""Requests refused before anything starts, in words that say what to do (AIS-04)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.fast.services.inference.cloud import POD_SHAPE, FakeCloud, fake_cloud, write_adapter, write_model


@pytest_asyncio.fixture(scope="module")
async def cloud(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path_factory.mktemp("rules") / "home") as running:
        yield running


@pytest_asyncio.fixture(scope="module")
async def model_id(cloud: FakeCloud) -> str:
    folder = write_model(cloud.models / "bank")
    identifier = await cloud.create("Model", "bank", {"source": {"folder": str(folder)}})
    await cloud.until(identifier, "READY")
    return identifier


async def refusal(cloud: FakeCloud, noun: str, name: str, spec: dict[str, Any]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await cloud.create(noun, name, spec)
    error = caught.value
    trailing = {key: value for key, value in error.trailing_metadata() or () if key.endswith("-bin")}
    return str(error.details()) + "".join(str(value) for value in trailing.values())


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_name_is_one_model_s_in_the_tenant_with_its_fast_alias(
    cloud: FakeCloud, model_id: str
) -> None:
    source = {"source": {"folder": str(cloud.models / "bank")}}
    assert "called" in await refusal(cloud, "Model", "bank", source)
    assert "called" in await refusal(cloud, "Model", "bank-fast", source)
    assert "must be 1 to 128" in await refusal(cloud, "Model", "no spaces", source)
    other = await cloud.create("Model", "meta-llama/Llama-3.1-8B:ft-bank", source)
    await cloud.until(other, "READY")


async def test_sources(cloud: FakeCloud) -> None:
    assert ".." in await refusal(cloud, "Model", "dots", {"source": {"folder": "/srv/../etc"}})
    for parser in ("--trust-remote-code", "-x", "+x"):  # words for the engine's command line
        option = {"source": {"folder": "/srv/models"}, "tool_call_parser": parser}
        assert "tool_call_parser" in await refusal(cloud, "Model", "option", option)


async def test_a_folder_that_is_not_open_is_not_read(cloud: FakeCloud, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "elsewhere")
    elsewhere = await cloud.create("Model", "elsewhere", {"source": {"folder": str(folder)}})
    model = await cloud.until(elsewhere, "ERROR")
    assert "not in a folder that is open" in model.status.message
    (cloud.models / "link").symlink_to(folder)
    linked = await cloud.create("Model", "linked", {"source": {"folder": str(cloud.models / "link")}})
    assert "not in a folder that is open" in (await cloud.until(linked, "ERROR")).status.message


async def test_a_model_is_made_of_a_model(cloud: FakeCloud, model_id: str) -> None:
    folder = write_adapter(cloud.models / "adapter")
    spec = {"source": {"folder": str(folder)}, "base_model_id": model_id}
    adapter_id = await cloud.create("Model", "adapter", spec)
    await cloud.until(adapter_id, "READY")
    on_adapter = {**spec, "base_model_id": adapter_id}
    assert "is an adapter itself" in await refusal(cloud, "Model", "second", on_adapter)
    assert "is an adapter: it is served by every deployment of its base" in await refusal(
        cloud, "Deployment", "adapter", {"model_id": adapter_id, **POD_SHAPE}
    )
    with pytest.raises(grpc.aio.AioRpcError, match="adapter build on it"):
        await cloud.call("ModelService/Delete", {"id": model_id})


async def test_what_does_not_fit_is_refused_with_the_sum(cloud: FakeCloud, model_id: str) -> None:
    said = await refusal(
        cloud, "Deployment", "small", {"model_id": model_id, "platform": "cpu-local", "preset": "1vcpu-2gb"}
    )
    assert (
        "GiB of weights + 2 GiB for the model server + 1 GiB" in said
        and "and there are 2 GiB of memory" in said
    )


async def test_shape_and_numbers(cloud: FakeCloud, model_id: str) -> None:
    request = {"model_id": model_id, **POD_SHAPE}
    assert "is required, with a preset" in await refusal(cloud, "Deployment", "a", {"model_id": model_id})
    assert "is not a preset" in await refusal(cloud, "Deployment", "a", {**request, "preset": "9vcpu-1gb"})
    assert "fewer than min_replicas" in await refusal(
        cloud, "Deployment", "a", {**request, "scaling": {"min_replicas": 3, "max_replicas": 2}}
    )
    assert "supports at most 2048" in await refusal(
        cloud, "Deployment", "a", {**request, "context_length": 4096}
    )
    assert "This machine cannot hold" in await refusal(
        cloud, "Deployment", "a", {**request, "platform": "gpu-h100-sxm", "preset": "1gpu-16vcpu-200gb"}
    )


async def test_a_worker_is_one_of_its_cluster(cloud: FakeCloud, model_id: str) -> None:
    """CHAT-04."""
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 3}
    made = await cloud.call(
        "neocloud.slurm.v1.ClusterService/Create",
        metadata={"parent_id": cloud.project_id, "name": "lab"},
        spec={"node_sets": [workers, {**workers, "name": "big", "count": 1}]},
    )
    request = {"model_id": model_id, "slurm_cluster_id": made.resource_id}
    for worker in ("worker-3", "login-0", "worker-00"):
        said = await refusal(cloud, "Deployment", "a", {**request, "slurm_resources": {"worker": worker}})
        assert f"lab has no {worker}; it has big-0, worker-0 to worker-2" in said
    for worker in ("worker-4 --uid=0", "worker-[0-4]", "../x", "-w"):
        said = await refusal(cloud, "Deployment", "a", {**request, "slurm_resources": {"worker": worker}})
        assert "slurm_resources.worker" in said
    said = await refusal(cloud, "Deployment", "a", {**request, "weights_in_memory": True})
    assert "needs a submount in memory of more than 0.0 GiB, which lab lacks" in said
    on_pods = {"model_id": model_id, **POD_SHAPE, "weights_in_memory": True}
    assert "is for a Slurm cluster" in await refusal(cloud, "Deployment", "a", on_pods)
    said = await refusal(cloud, "Deployment", "a", {**request, "weights": "INT8"})
    assert "must be ORIGINAL on a Slurm cluster" in said


async def test_a_flavour_is_served_once(cloud: FakeCloud, model_id: str) -> None:
    request = {"model_id": model_id, **POD_SHAPE}
    await cloud.create("Deployment", "first", request)
    assert "serves bank in the BASE flavour already" in await refusal(cloud, "Deployment", "second", request)
    await cloud.create("Deployment", "third", {**request, "flavour": "FAST"})


async def test_a_model_is_served_for_one_task(cloud: FakeCloud) -> None:
    async def model(name: str, **changes: Any) -> dict[str, Any]:
        folder = write_model(cloud.models / name, **changes)
        identifier = await cloud.create("Model", name, {"source": {"folder": str(folder)}})
        await cloud.until(identifier, "READY")
        return {"model_id": identifier, **POD_SHAPE}

    vectors = await model("vectors")
    embed = {**vectors, "task": "EMBED", "scaling": {"min_replicas": 1}}
    assert "adapters are not served for embeddings" in await refusal(
        cloud, "Deployment", "a", {**embed, "max_adapters": 1}
    )
    deployment_id = await cloud.create("Deployment", "vectors", embed)
    await cloud.until(deployment_id, "READY")
    assert "--runner pooling" in " ".join(cloud.pod(deployment_id).manifest.containers[0].args)
    said = await refusal(cloud, "Deployment", "b", {**vectors, "flavour": "FAST"})
    assert "must be EMBED, like that of vectors" in said
    await cloud.create("Deployment", "vectors-fast", {**embed, "flavour": "FAST"})
    encoder = await model("encoder", architectures=["XLMRobertaModel"])
    assert "cannot generate text" in await refusal(cloud, "Deployment", "c", encoder)


async def test_a_cross_encoder_is_served_for_rankings_only(cloud: FakeCloud) -> None:
    made = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    folder = write_model(cloud.models / "ranker", **made)
    model_id = await cloud.create("Model", "ranker", {"source": {"folder": str(folder)}})
    await cloud.until(model_id, "READY")
    request = {"model_id": model_id, **POD_SHAPE, "scaling": {"min_replicas": 1}}
    for task, cannot in (("GENERATE", "cannot generate text"), ("EMBED", "cannot embed text")):
        said = await refusal(cloud, "Deployment", "a", {**request, "task": task})
        assert "must be RERANK" in said and cannot in said
    deployment_id = await cloud.create("Deployment", "ranker", {**request, "task": "RERANK"})
    await cloud.until(deployment_id, "READY")
    words = " ".join(cloud.pod(deployment_id).manifest.containers[0].args)
    assert "--runner pooling" in words and "--convert" not in words
