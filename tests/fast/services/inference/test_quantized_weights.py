"""Weights of fewer bits: made in a pod, compared, served from 99 % of the quality on (AIS-09, ERR-29).

What the pod's recipe does is `tests/fast/recipes/test_quantize.py`'s; here its result is pretended.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from neocloud.engines.base import Reference
from neocloud.services.inference.reconcile import quantized_weights
from tests.fast.services.inference.cloud import POD_SHAPE, FakeCloud, fake_cloud, write_model

RESULT = {
    "weights": "int8",
    "state": "done",
    "bytes": 600,
    "original_bytes": 1000,
    "percent": 99.4,
    "perplexity": {"original": 20.0, "copy": 20.12},
    "questions": {"asked": 19, "original_right": 10, "still_right": 10, "lost": []},
}


@pytest_asyncio.fixture
async def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCloud]:
    monkeypatch.setattr(quantized_weights, "POLL_SECONDS", 0.02)
    async with fake_cloud(tmp_path / "home") as running:
        yield running


async def deploy(cloud: FakeCloud, **spec: Any) -> str:
    folder = write_model(cloud.models / "bank")
    model_id = await cloud.create("Model", "bank", {"source": {"folder": str(folder)}})
    await cloud.until(model_id, "READY")
    request = {"model_id": model_id, **POD_SHAPE, "scaling": {"min_replicas": 1}, "weights": "INT8"}
    return await cloud.create("Deployment", "bank", {**request, **spec})


async def pod_of(cloud: FakeCloud, deployment_id: str) -> Reference:
    pod = Reference("Pod", f"{deployment_id}-weights", "recipe")
    await cloud.when(deployment_id, lambda _: pod in cloud.engine.world.pods)
    return pod


async def end_with(cloud: FakeCloud, deployment_id: str, result: object, *, exit_code: int = 0) -> None:
    """Let the pod leave this result and end."""
    pod = await pod_of(cloud, deployment_id)
    folder = cloud.home / "models" / f".weights-{deployment_id}"
    (folder / "model").mkdir()
    text = result if isinstance(result, str) else json.dumps(result)
    (folder / "quality.json").write_text(text)
    cloud.engine.kill(pod, exit_code)


async def test_they_are_made_beside_the_model_and_served_when_they_are_good(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud)
    pod = await pod_of(cloud, deployment_id)
    assert cloud.pods(deployment_id) == [], "nothing is served before"
    container = cloud.engine.world.pods[pod].manifest.containers[0]
    assert list(container.args) == ["/model", "/out", "--weights", "int8"]
    mounts = {mount.name: mount.read_only for mount in container.volume_mounts}
    assert mounts == {"model": True, "code": True, "out": False, "shm": False}

    await end_with(cloud, deployment_id, RESULT)
    deployment = await cloud.until(deployment_id, "READY")
    quality = deployment.status.weights_quality
    assert (quality.is_compared, quality.percent, quality.size_bytes) == (True, 99.4, 600)
    assert quality.text == "perplexity 20 to 20.12; 10 of 10 answers still right"
    served = cloud.pod(deployment_id).manifest
    (model,) = [volume for volume in served.to_dict()["spec"]["volumes"] if volume["name"] == "model"]
    assert model["hostPath"]["path"] == str(cloud.home / "models" / f".weights-{deployment_id}")
    assert pod not in cloud.engine.world.pods

    await cloud.call("DeploymentService/Delete", {"id": deployment_id})
    await cloud.gone(deployment_id)
    assert not (cloud.home / "models" / f".weights-{deployment_id}").exists()


async def test_below_99_per_cent_they_are_served_only_with_their_owner_s_word(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud)
    await end_with(cloud, deployment_id, {**RESULT, "percent": 98.9})
    deployment = await cloud.until(deployment_id, "ERROR")
    assert "98.9 % of the original's quality" in deployment.status.message
    assert "--accept-lower-quality" in deployment.status.message
    assert cloud.pods(deployment_id) == []

    change = {"metadata": {"id": deployment_id}, "spec": {"accept_lower_quality": True}}
    await cloud.call("DeploymentService/Update", change, headers={"x-resetmask": "spec.accept_lower_quality"})
    await cloud.until(deployment_id, "READY")
    change["spec"] = {"accept_lower_quality": False}
    await cloud.call("DeploymentService/Update", change, headers={"x-resetmask": "spec.accept_lower_quality"})
    await cloud.until(deployment_id, "ERROR")
    assert cloud.pods(deployment_id) == [], "a word that is taken back ends the service"


async def test_without_a_comparison_they_are_not_served_either(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud)
    await end_with(
        cloud, deployment_id, {"state": "not_run", "bytes": 1, "original_bytes": 2, "percent": 100}
    )
    deployment = await cloud.until(deployment_id, "ERROR")
    assert "are not compared (its preset does not hold the original weights)" in deployment.status.message
    assert deployment.status.weights_quality.percent == 0


@pytest.mark.parametrize(
    "result",
    [
        "",
        "[" * 60_000,
        '{"other": ' + "[" * 60_000,
        json.dumps({**RESULT, "percent": 101}),
        json.dumps({**RESULT, "bytes": -1}),
        json.dumps(RESULT).replace("99.4", "NaN"),
        " " * (70 << 10) + json.dumps(RESULT),
    ],
    ids=["empty", "deep", "deeper", "more-than-all", "negative", "not-a-number", "long"],
)
async def test_a_result_that_no_recipe_writes_is_refused(cloud: FakeCloud, result: str) -> None:
    deployment_id = await deploy(cloud)
    await end_with(cloud, deployment_id, result)
    assert "could not be made" in (await cloud.until(deployment_id, "ERROR")).status.message
    assert cloud.pods(deployment_id) == []


async def test_a_pod_that_fails_says_why(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud)
    pod = await pod_of(cloud, deployment_id)
    cloud.engine.world.pods[pod].containers[0].logs[:] = ["quantize.py: error: the model has experts"]
    cloud.engine.kill(pod, 1)
    message = (await cloud.until(deployment_id, "ERROR")).status.message
    assert "the model has experts" in message and "original weights" in message


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"weights": "ORIGINAL", "accept_lower_quality": True}, "is for weights of fewer bits"),
        ({"task": "EMBED"}, "must be ORIGINAL: their quality is compared by text"),
    ],
)
async def test_what_cannot_be_made_is_refused(cloud: FakeCloud, spec: dict[str, Any], said: str) -> None:
    folder = write_model(cloud.models / "bank")
    model_id = await cloud.create("Model", "bank", {"source": {"folder": str(folder)}})
    await cloud.until(model_id, "READY")
    metadata = {"parent_id": cloud.project_id, "name": "bank"}
    request = {"model_id": model_id, **POD_SHAPE, "weights": "INT8", **spec}
    refused = await cloud.refusal("DeploymentService/Create", metadata=metadata, spec=request)
    assert said in repr(refused.__dict__)
