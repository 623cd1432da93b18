"""A model is asked questions with known answers when it is added (AIS-10); the answers are pretended."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from neocloud.messages.neocloud.inference.v1 import QualityTest

from neocloud.engines.base import Reference
from neocloud.services.inference.reconcile import model, quality_test
from tests.fast.services.inference.cloud import FakeCloud, fake_cloud, write_adapter, write_model

ASKED = [
    {"question": "What is the capital of France?", "answers": ["Paris"]},
    {"question": "How many days are in a week?", "answers": ["7", "seven"]},
]


@pytest_asyncio.fixture
async def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCloud]:
    for module in (model, quality_test):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    async with fake_cloud(tmp_path / "home") as running:
        yield running


async def add(cloud: FakeCloud, name: str = "bank", **spec: Any) -> str:
    folder = write_model(cloud.models / name)
    spec = {"source": {"folder": str(folder)}, "questions": ASKED, **spec}
    return await cloud.create("Model", name, spec)


async def asked(cloud: FakeCloud, model_id: str) -> Reference:
    """Return the pod that asks, once it is there."""
    pod = Reference("Pod", f"{model_id}-quality", "recipe")
    await cloud.when(model_id, lambda _: pod in cloud.engine.world.pods, "READY")
    return pod


def folder_of(cloud: FakeCloud, model_id: str) -> Path:
    return cloud.home / "models" / f".weights-{model_id}"


async def result_of(cloud: FakeCloud, model_id: str) -> QualityTest:
    ended = (QualityTest.DONE, QualityTest.NOT_RUN)
    found = await cloud.when(model_id, lambda each: each.status.quality.state in ended)
    assert found.status.State.Name(found.status.state) == "READY"
    return found.status.quality


async def test_it_is_asked_once_it_is_ready_and_the_result_is_kept(cloud: FakeCloud) -> None:
    model_id = await add(cloud)
    pod = await asked(cloud, model_id)
    container = cloud.engine.world.pods[pod].manifest.containers[0]
    assert container.command[-1].endswith("ask_questions.py")
    written = json.loads((folder_of(cloud, model_id) / "questions.json").read_text())
    assert written == [each["question"] for each in ASKED], "the pod gets no answers"
    assert (await cloud.get("Model", model_id)).status.quality.state == QualityTest.RUNNING
    (folder_of(cloud, model_id) / "answers.json").write_text(json.dumps(["It is Paris.", "There are 70."]))
    cloud.engine.kill(pod, 0)
    found = await result_of(cloud, model_id)
    assert (found.asked, found.right) == (2, 1)
    assert [(each.question, each.answer) for each in found.wrong] == [
        ("How many days are in a week?", "There are 70.")
    ]
    assert pod not in cloud.engine.world.pods and not folder_of(cloud, model_id).exists()


@pytest.mark.parametrize(
    "answers",
    ['["one"]', '["one", 2]', "[" * 60_000, '{"a": 1}', '["a", "' + "b" * (300 << 10) + '"]', ""],
    ids=["too-few", "a-number", "deep", "an-object", "long", "empty"],
)
async def test_answers_that_no_recipe_writes_are_no_result(cloud: FakeCloud, answers: str) -> None:
    model_id = await add(cloud)
    pod = await asked(cloud, model_id)
    (folder_of(cloud, model_id) / "answers.json").write_text(answers)
    cloud.engine.kill(pod, 0)
    found = await result_of(cloud, model_id)
    assert found.state == QualityTest.NOT_RUN and found.message and not found.right


async def test_a_link_of_the_pod_is_not_followed(cloud: FakeCloud, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('["Paris", "7"]')
    model_id = await add(cloud)
    pod = await asked(cloud, model_id)
    (folder_of(cloud, model_id) / "answers.json").symlink_to(tmp_path / "secret")
    cloud.engine.kill(pod, 0)
    assert (await result_of(cloud, model_id)).state == QualityTest.NOT_RUN
    assert (tmp_path / "secret").exists()


async def test_a_pod_that_fails_says_why_and_the_model_is_served_all_along(cloud: FakeCloud) -> None:
    model_id = await add(cloud)
    pod = await asked(cloud, model_id)
    cloud.engine.world.pods[pod].containers[0].logs[:] = ["ask_questions.py: error: no memory"]
    cloud.engine.kill(pod, 1)
    assert "no memory" in (await result_of(cloud, model_id)).message


async def test_adapters_and_models_without_questions_are_not_asked(cloud: FakeCloud) -> None:
    plain = await add(cloud, "plain", questions=[])
    base = await cloud.until(plain, "READY")
    assert not base.status.HasField("quality")
    folder = write_adapter(cloud.models / "adapter")
    spec = {"source": {"folder": str(folder)}, "base_model_id": plain, "questions": ASKED}
    adapter_id = await cloud.create("Model", "adapter", spec)
    await cloud.until(adapter_id, "READY")
    assert not any(pod.namespace.endswith("-quality") for pod in cloud.engine.world.pods)


async def test_a_deleted_model_takes_its_test_along(cloud: FakeCloud) -> None:
    model_id = await add(cloud)
    pod = await asked(cloud, model_id)
    await cloud.call("ModelService/Delete", {"id": model_id})
    await cloud.gone(model_id)
    assert pod not in cloud.engine.world.pods and not folder_of(cloud, model_id).exists()
