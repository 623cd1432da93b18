"""A retry of a change is answered like its first attempt, and done once."""

import asyncio
from typing import Any

import httpx
import pytest

from neocloud.core.store import IdempotencyKey, open_store
from neocloud.server.retention import forget_old_keys
from neocloud.testing.waiting import FakeClock
from tests.fast.server.conftest import PROJECT, READER, Cloud

FILESYSTEMS = "nebius.compute.v1.FilesystemService"
KEY = {"x-idempotency-key": "3f0c5a52-8d0d-4a3c-9b39-0e3f1a6e2f10"}


def filesystem(name: str) -> dict[str, Any]:
    return {
        "metadata": {"parentId": PROJECT, "name": name},
        "spec": {"type": "NETWORK_SSD", "sizeGibibytes": 1},
    }


async def create(cloud: Cloud, name: str = "data", **headers: str) -> httpx.Response:
    return await cloud.call(f"{FILESYSTEMS}/Create", filesystem(name), **headers)


async def test_a_repeated_create_makes_one_resource(cloud: Cloud) -> None:
    first, again = await create(cloud, **KEY), await create(cloud, **KEY)
    assert first.json() == again.json()
    assert len((await cloud.call(f"{FILESYSTEMS}/List", {"parentId": PROJECT})).json()["items"]) == 1


async def test_creates_with_one_key_at_once_make_one_resource(cloud: Cloud) -> None:
    answers = await asyncio.gather(*(create(cloud, "", **KEY) for _ in range(10)))
    assert len({answer.json()["resourceId"] for answer in answers}) == 1
    assert len((await cloud.call(f"{FILESYSTEMS}/List", {"parentId": PROJECT})).json()["items"]) == 1


async def test_a_key_with_another_body_is_refused(cloud: Cloud) -> None:
    await create(cloud, **KEY)
    refused = await create(cloud, "other", **KEY)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
    assert "make a new key" in refused.json()["message"]


async def test_a_repeated_delete_is_answered_although_the_resource_is_gone(cloud: Cloud) -> None:
    body = {"id": (await create(cloud)).json()["resourceId"]}
    first = await cloud.call(f"{FILESYSTEMS}/Delete", body, **KEY)
    again = await cloud.call(f"{FILESYSTEMS}/Delete", body, **KEY)
    assert first.json() == again.json()
    assert (await cloud.call(f"{FILESYSTEMS}/Delete", body)).status_code == 404


async def test_a_repeated_update_is_no_conflict(cloud: Cloud) -> None:
    identifier = (await create(cloud)).json()["resourceId"]
    body = {"metadata": {"id": identifier, "resourceVersion": 1}, "spec": {"sizeGibibytes": 2}}
    first = await cloud.call(f"{FILESYSTEMS}/Update", body, **KEY)
    again = await cloud.call(f"{FILESYSTEMS}/Update", body, **KEY)
    assert first.json() == again.json()


async def test_keys_belong_to_their_subject(cloud: Cloud) -> None:
    await create(cloud, **KEY)
    refused = await create(cloud, **KEY, authorization=f"Bearer {READER}")
    assert refused.json()["code"] == "permission_denied"


async def test_reads_ignore_the_key(cloud: Cloud) -> None:
    identifier = (await create(cloud)).json()["resourceId"]
    for body in ({"id": identifier}, {"id": "computefilesystem-e00none"}):
        answer = await cloud.call(f"{FILESYSTEMS}/Get", body, **KEY)
        assert answer.status_code in (200, 404)


@pytest.mark.parametrize("is_together", [True, False])
async def test_a_repeated_custom_change_is_done_once(cloud: Cloud, is_together: bool) -> None:
    body = {"clusterId": "slurmcluster-e00x", "script": "hostname"}
    path = "neocloud.slurm.v1.JobService/Submit"
    calls = [cloud.call(path, body, **KEY) for _ in range(3)]
    answers = await asyncio.gather(*calls) if is_together else [await call for call in calls]
    assert {answer.json()["jobId"] for answer in answers} == {"1"}
    assert cloud.submissions.scripts == ["hostname"]
    await cloud.call(path, body)
    assert len(cloud.submissions.scripts) == 2


async def test_a_key_beyond_the_limit_is_refused(cloud: Cloud) -> None:
    refused = await create(cloud, **{"x-idempotency-key": "k" * 257})
    assert refused.json()["code"] == "invalid_argument"


@pytest.mark.parametrize(("hours", "is_known"), [(23, True), (26, False)])
async def test_keys_are_forgotten_after_a_day(hours: int, is_known: bool) -> None:
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    key = IdempotencyKey("someone", "a.Service/Do", "key", "hash", b"", clock.now())
    await store.write(lambda tx: tx.remember(key))
    forgetting = asyncio.create_task(forget_old_keys(store, clock))
    await clock.advance(hours * 3600)
    assert (await store.read(lambda tx: tx.recall("someone", "a.Service/Do", "key")) is not None) == is_known
    forgetting.cancel()
    await asyncio.gather(forgetting, return_exceptions=True)
    await store.close()
