"""A job that is tried before its data are uploaded: problems are reported without them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from neocloud.core import contract
from tests.fast.services.tuning.cloud import CHAT, JOBS, FakeCloud, add_model, fake_cloud

TRY = "neocloud.common.v1.TrialService/TryCreate"
QUOTAS = "nebius.quotas.v1.QuotaAllowanceService"
ASSUMED = ["spec.training_file"]


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as started:
        yield started


async def tried(cloud: FakeCloud, assumed: list[str], **spec: Any) -> Any:
    job = contract.message("neocloud.tuning.v1.CreateFineTuningJobRequest")()
    job.metadata.parent_id = cloud.project_id
    job.spec.MergeFrom(contract.message("neocloud.tuning.v1.FineTuningJobSpec")(**spec))
    request = contract.method(TRY).input(request=contract.pack(job), assumed_fields=assumed)
    return contract.unpack((await cloud.call(TRY, request)).resource)


async def refusal(cloud: FakeCloud, assumed: list[str], **spec: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tried(cloud, assumed, **spec)
    return caught.value.code().name, caught.value.details() or ""


async def test_a_file_that_is_not_uploaded_yet_is_assumed(cloud: FakeCloud) -> None:
    model_id = await add_model(cloud)
    job = await tried(cloud, ASSUMED, model_id=model_id, training_file="file-later")
    assert (job.spec.platform, job.spec.preset) == ("cpu-local", "1vcpu-2gb"), "the shape is chosen, too"
    code, details = await refusal(cloud, [], model_id=model_id, training_file="file-later")
    assert code == "INVALID_ARGUMENT" and "file-later" in details
    assert not (await cloud.call(f"{JOBS}/List", parent_id=cloud.project_id)).items


async def test_no_room_is_told_before_the_upload(cloud: FakeCloud) -> None:
    shape = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}
    given = {"model_id": await add_model(cloud), "training_file": "file-later", **shape}
    code, details = await refusal(cloud, ASSUMED, **given)
    assert code == "RESOURCE_EXHAUSTED", details
    given["training_file"] = cloud.upload(json.dumps(CHAT) + "\n")
    assert (await refusal(cloud, [], **given))[0] == code, "as the job would be refused"


async def test_a_quota_is_told_before_the_upload(cloud: FakeCloud) -> None:
    model_id = await add_model(cloud)
    await limit_jobs(cloud, 0)
    code, details = await refusal(cloud, ASSUMED, model_id=model_id, training_file="file-later")
    assert code == "RESOURCE_EXHAUSTED" and "tuning.job.count" in details
    await limit_jobs(cloud, 1)
    await tried(cloud, ASSUMED, model_id=model_id, training_file="file-later")
    await tried(cloud, ASSUMED, model_id=model_id, training_file="file-later")


async def limit_jobs(cloud: FakeCloud, limit: int) -> None:
    listed = await cloud.call(f"{QUOTAS}/List", parent_id=cloud.project_id, page_size=1000)
    found = [each for each in listed.items if each.metadata.name == "tuning.job.count"]
    if found:
        await cloud.call(f"{QUOTAS}/Update", metadata={"id": found[0].metadata.id}, spec={"limit": limit})
    else:
        metadata = {"parent_id": cloud.project_id, "name": "tuning.job.count"}
        await cloud.call(f"{QUOTAS}/Create", metadata=metadata, spec={"limit": limit})
