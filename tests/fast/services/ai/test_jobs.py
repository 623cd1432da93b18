"""Jobs by the official SDK: they end, fail, are tried again, time out, are cancelled and restarted, and are
charged while they run. BILL-03."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.ai.v1 import (
    CancelJobRequest,
    CreateJobRequest,
    DeleteJobRequest,
    FollowsSpotPriceSpec,
    JobServiceClient,
    JobSpec,
    PricingModelSpec,
    RestartJobRequest,
)
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import DiskSpec

from neocloud.control_plane.composition import record_stop
from neocloud.core.clock import SystemClock
from neocloud.core.store import load_or_make_key, open_store
from neocloud.services.ai import SERVICE
from tests.fast.services.ai.cloud import IMAGE, AiCloud, cloud_in_process

DISK = JobSpec.DiskSpec(type=DiskSpec.DiskType.NETWORK_SSD, size_bytes=10 << 30)
USUAL: dict[str, Any] = {"image": IMAGE, "platform": "cpu-local", "preset": "2vcpu-4gb", "disk": DISK}
SPOT = PricingModelSpec(follows_spot_price=FollowsSpotPriceSpec())
DAEMON = "train --for ever"
"""No program that the fake engine knows, so it continues until somebody ends it."""


async def create(cloud: AiCloud, name: str = "nightly", **more: Any) -> str:
    operation = await JobServiceClient(cloud.sdk).create(
        CreateJobRequest(
            metadata=ResourceMetadata(parent_id=cloud.project_id, name=name),
            spec=JobSpec(**{**USUAL, **more}),
        )
    )
    return operation.resource_id


async def test_a_job_runs_to_its_end(cloud: AiCloud) -> None:
    job_id = await create(cloud, container_command="true")
    ended = await cloud.until(job_id, "COMPLETED")
    assert ended.status.started_at.seconds <= ended.status.finished_at.seconds
    assert not ended.status.HasField("state_details")
    assert cloud.reference(job_id) not in cloud.engine.world.pods
    assert len(ended.status.private_endpoints) == 0


async def test_a_job_that_fails_says_how(cloud: AiCloud) -> None:
    job_id = await create(cloud, container_command="false")
    ended = await cloud.until(job_id, "FAILED")
    assert ended.status.state_details.code == "Exited"
    assert "ended with code 1" in ended.status.state_details.message


async def test_it_is_tried_again_as_often_as_asked(cloud: AiCloud) -> None:
    job_id = await create(cloud, container_command=DAEMON, restart_attempts=1)
    first = await running_pod(cloud, job_id)
    cloud.engine.kill(cloud.reference(job_id), exit_code=9)
    await cloud.when(
        job_id, lambda found: "Attempt 1 failed" in found.status.state_details.message, "RUNNING"
    )
    assert await running_pod(cloud, job_id) is not first
    cloud.engine.kill(cloud.reference(job_id), exit_code=9)
    await cloud.until(job_id, "FAILED")


async def test_one_that_takes_too_long_is_ended(cloud: AiCloud) -> None:
    job_id = await create(cloud, container_command=DAEMON, timeout=timedelta(seconds=1))
    ended = await cloud.until(job_id, "FAILED")
    assert ended.status.state_details.code == "TimedOut"
    assert cloud.reference(job_id) not in cloud.engine.world.pods


async def test_it_is_cancelled_and_may_be_restarted(cloud: AiCloud) -> None:
    client = JobServiceClient(cloud.sdk)
    job_id = await create(cloud, container_command=DAEMON)
    await cloud.until(job_id, "RUNNING")
    with pytest.raises(RequestError, match="cancel it first"):
        await client.restart(RestartJobRequest(id=job_id))
    await (await client.cancel(CancelJobRequest(id=job_id))).wait()
    await cloud.until(job_id, "CANCELLED")
    with pytest.raises(RequestError, match="has ended already"):
        await client.cancel(CancelJobRequest(id=job_id))
    await (await client.restart(RestartJobRequest(id=job_id))).wait()
    await cloud.until(job_id, "RUNNING")
    await client.delete(DeleteJobRequest(id=job_id))
    await cloud.gone(job_id)
    assert job_id not in cloud.engine.world.namespaces


async def test_one_that_ended_with_the_whole_cloud_begins_again(tmp_path: Path) -> None:
    async with cloud_in_process(tmp_path) as cloud:
        job_id = await create(cloud, container_command=DAEMON)
        before = await running_pod(cloud, job_id)
    cloud.engine.kill(cloud.reference(job_id), exit_code=143)
    store = await open_store(
        str(tmp_path / "state.db"), load_or_make_key(tmp_path / "store.key"), SystemClock()
    )
    await record_stop(store, SERVICE.kinds)
    await store.close()
    async with cloud_in_process(tmp_path, cloud.engine) as again:
        resumed = await again.until(job_id, "RUNNING")
        assert resumed.status.state_details.message == ""
        assert again.pod(job_id) is not before


async def test_it_is_charged_while_it_runs(cloud: AiCloud) -> None:
    job_id = await create(cloud, container_command=DAEMON, preemptible=True, pricing_model=SPOT)
    await cloud.until(job_id, "RUNNING")
    history = await cloud.running.store.read(lambda tx: tx.history(resource_id=job_id))
    [meter] = [meter for meter in SERVICE.meters if "nebius.ai.v1.Job" in meter.kinds]
    at = history[-1].at
    used = {record.sku: record.units for record in meter(history, at, at + timedelta(hours=1))}
    assert used == {
        "cpu-local.vcpu.preemptible": 2,
        "cpu-local.ram.preemptible": 4,
        "disk.network-ssd": 10,
    }


async def running_pod(cloud: AiCloud, job_id: str) -> Any:
    await cloud.until(job_id, "RUNNING")
    return cloud.pod(job_id)
