"""A job is estimated before it is created: settings always, duration only where an earlier job tells it."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.services.tuning.cloud import JOBS, FakeCloud, add_model, fake_cloud, started_job

ESTIMATE = f"{JOBS}/Estimate"
SIZE = {"conversations": 400, "bytes": 200_000, "longest_bytes": 900, "tokens": 40_000}
SHAPE = {"platform": "cpu-local", "preset": "1vcpu-4gb"}


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as started:
        yield started


def request(cloud: FakeCloud, spec: dict[str, Any], **size: int) -> Any:
    spec = {"training_file": "file-later", **spec}
    fields = {"parent_id": cloud.project_id, "spec": spec, "data": {**SIZE, **size}}
    return contract.from_dict(contract.method(ESTIMATE).input, fields)


async def estimated(cloud: FakeCloud, spec: dict[str, Any], **size: int) -> Any:
    return await cloud.call(ESTIMATE, request(cloud, spec, **size))


async def test_settings_are_those_that_the_job_uses(cloud: FakeCloud) -> None:
    job_id = await started_job(cloud)
    used = (await cloud.job(job_id)).status.hyperparameters
    model_id = (await cloud.job(job_id)).spec.model_id
    lines = (cloud.recipes(job_id).folder / "training_file.jsonl").read_bytes().splitlines(keepends=True)
    size = {"conversations": len(lines), "bytes": len(b"".join(lines)), "longest_bytes": len(lines[0])}
    found = await estimated(cloud, {"model_id": model_id, **SHAPE}, **size)
    assert found.hyperparameters == used


async def test_without_an_earlier_job_the_duration_is_unknown(cloud: FakeCloud) -> None:
    found = await estimated(cloud, {"model_id": await add_model(cloud), "hyperparameters": {"n_epochs": 2}})
    assert found.trained_tokens == 2 * 36_000 and found.hyperparameters.context_length == 512
    assert (found.measured_job_id, found.tokens_per_second, found.seconds) == ("", 0.0, 0)


async def test_the_duration_follows_from_the_newest_job_alike(cloud: FakeCloud) -> None:
    job_id = await started_job(cloud)
    recipes, began = cloud.recipes(job_id), time.time()
    recipes.reach(5, at=began)
    recipes.reach(10, at=began + 10)  # 50 tokens a second
    recipes.succeed()
    job = await cloud.until(job_id, "SUCCEEDED")
    model_id = job.spec.model_id
    spec = {"model_id": model_id, "hyperparameters": {"n_epochs": 1}, **SHAPE}
    found = await estimated(cloud, spec)
    assert (found.measured_job_id, found.tokens_per_second) == (job_id, 50.0)
    assert found.seconds == 36_000 / 50 + found.other_seconds
    found = await estimated(cloud, {**spec, "validation_file": "file-later"}, tokens=0)
    assert found.trained_tokens == 66_667, "from the bytes"
    adapter = {**spec, "model_id": job.status.fine_tuned_model_id}
    found = await estimated(cloud, adapter)
    assert found.measured_job_id == job_id, "an adapter's training starts from its base"
    for other in ({**spec, "preset": "2vcpu-8gb"}, {**spec, "model_id": await add_model(cloud, "other")}):
        assert not (await estimated(cloud, other)).measured_job_id


async def test_what_no_job_can_be_is_refused(cloud: FakeCloud) -> None:
    model_id = await add_model(cloud)
    for spec, named in (
        ({"model_id": cloud.project_id}, "spec.model_id"),
        ({"model_id": model_id, "platform": "cpu-local", "preset": "9vcpu-1gb"}, "preset"),
        ({"model_id": model_id, "nodes": 2, **SHAPE}, "spec.nodes"),
    ):
        refused = await cloud.refusal(ESTIMATE, request(cloud, spec))
        assert refused.code is contract.Code.INVALID_ARGUMENT and named in str(refused)
    assert not (await cloud.call(f"{JOBS}/List", parent_id=cloud.project_id)).items


async def test_personal_data_are_refused_by_the_recipes(cloud: FakeCloud) -> None:
    job_id = await started_job(cloud, refuse_personal_data=True)
    assert cloud.recipes(job_id).wanted["refuse_personal_data"] is True
