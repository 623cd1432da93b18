"""Data of jobs in buckets: read with the rights of the account that made the job, and no others."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from neocloud.services.storage import object_reads
from neocloud.services.tuning.reconcile.data import MOST_AT_A_TIME
from neocloud.testing.waiting import until
from tests.fast.services.storage.cloud import AccessKey
from tests.fast.services.storage.served import ServedCloud
from tests.fast.services.tuning.cloud import CHAT, JOBS, FakeCloud, add_model, create_job, fake_cloud

pytestmark = pytest.mark.slow

DATA = (json.dumps(CHAT) + "\n").encode() * 40
URL = "s3://data-sets/chats/bank.jsonl"


class Cloud(ServedCloud, FakeCloud):
    owner: AccessKey
    """Key of an editor of the tenant."""
    model_id: str

    async def tune_as(self, account_id: str, url: str = URL) -> Any:
        """Create a job with the token of an account."""
        mine, self.token = self.token, await self.token_of(account_id)
        try:
            return await create_job(self, self.model_id, training_file=url)
        finally:
            self.token = mine


@pytest.fixture
async def stopped(tmp_path: Path) -> AsyncIterator[Cloud]:
    """A cloud with an object in a bucket, whose object gateway does not run."""
    async with fake_cloud(tmp_path) as plain:
        found = Cloud(**vars(plain))
        async with found.serving():
            await found.bucket("data-sets")
            found.owner = await found.access_key(await found.account("owner", "editors"))
            await found.put(found.owner, "data-sets", "chats/bank.jsonl", DATA)
        found.model_id = await add_model(found)
        yield found


@pytest.fixture
async def cloud(stopped: Cloud) -> AsyncIterator[Cloud]:
    async with stopped.serving():
        yield stopped


async def tuner(cloud: Cloud, *roles: tuple[str, str]) -> str:
    """Return an account that may tune in the project, with more roles on other resources."""
    account, group = await cloud.account("tuner"), await cloud.group("tuners")
    await cloud.join(account, group)
    for role, target in (("tuning.editor", cloud.project_id), *roles):
        await cloud.permit(group, target, role)
    return account


async def code_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await call
    return found.value.code().name, found.value.details() or ""


async def bucket_id(cloud: Cloud, name: str = "data-sets") -> str:
    found = await cloud.call(
        "nebius.storage.v1.BucketService/GetByName", parent_id=cloud.project_id, name=name
    )
    return found.metadata.id


async def test_a_job_trains_on_an_object(cloud: Cloud) -> None:
    account = await tuner(cloud, ("storage.viewer", await bucket_id(cloud)))
    job_id = await cloud.tune_as(account)
    await until(lambda: cloud.pod(job_id) is not None)
    folder = cloud.recipes(job_id).folder
    assert (folder / "training_file.jsonl").read_bytes() == DATA
    kept = b"".join(path.read_bytes() for path in folder.iterdir() if path.name != "training_file.jsonl")
    assert b"NCTK" not in kept and "NCTK" not in repr(cloud.pod(job_id).manifest)


BAD_LINES = [
    ({"messages": [*CHAT["messages"], CHAT["messages"][0]]}, "the last message must have the role assistant"),
    ({"messages": [CHAT["messages"][0], CHAT["messages"][1] | {"weight": 0.5}]}, "'weight' is 0.5"),
    ({**CHAT, "tools": [{"type": "function"}]}, "'tools': tool 1 has no 'function'"),
]


@pytest.mark.parametrize(("line", "says"), BAD_LINES)
@pytest.mark.parametrize("param", ["training_file", "validation_file"])
async def test_bad_data_end_a_job_before_it_has_a_pod(
    cloud: Cloud, line: dict[str, Any], says: str, param: str
) -> None:
    await cloud.put(cloud.owner, "data-sets", "bad.jsonl", DATA + json.dumps(line).encode())
    url = "s3://data-sets/bad.jsonl"
    urls = {"training_file": URL, param: url}
    bucket = await cloud.until(await create_job(cloud, cloud.model_id, **urls), "FAILED")
    uploaded = cloud.upload(DATA.decode() + json.dumps(line))
    file = await cloud.until(await create_job(cloud, cloud.model_id, **urls | {param: uploaded}), "FAILED")
    for job in (bucket, file):
        assert (job.status.error.code, job.status.error.param) == (f"invalid_{param}", param)
        assert "Line 41: " in job.status.error.message and says in job.status.error.message
        assert "--" not in job.status.error.message and not cloud.world.pods
        assert not (cloud.recipes(job.metadata.id).folder / f"{param}.jsonl").exists()


async def test_who_may_tune_but_not_read_the_bucket_is_refused(cloud: Cloud) -> None:
    account = await tuner(cloud)
    code, message = await code_of(cloud.tune_as(account))
    assert code == "PERMISSION_DENIED" and "storage.objects.get" in message
    jobs = await cloud.call(f"{JOBS}/List", parent_id=cloud.project_id)
    assert not jobs.items


async def test_a_policy_gives_the_right_on_its_paths_alone(cloud: Cloud) -> None:
    account, group = await cloud.account("tuner"), await cloud.group("tuners")
    await cloud.join(account, group)
    await cloud.permit(group, cloud.project_id, "tuning.editor")
    rule = {"paths": ["chats/*"], "roles": ["storage.viewer"], "group_id": group}
    await cloud.bucket("shared-sets", bucket_policy={"rules": [rule]})
    for key in ("chats/a.jsonl", "others/a.jsonl"):
        await cloud.put(cloud.owner, "shared-sets", key, DATA)
    job_id = await cloud.tune_as(account, "s3://shared-sets/chats/a.jsonl")
    await until(lambda: cloud.pod(job_id) is not None)
    code, _ = await code_of(cloud.tune_as(account, "s3://shared-sets/others/a.jsonl"))
    assert code == "PERMISSION_DENIED"


async def test_a_bucket_of_another_project_is_as_if_there_was_none(cloud: Cloud) -> None:
    made = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    await cloud.bucket("others-sets", made.resource_id)
    await cloud.put(cloud.owner, "others-sets", "chats.jsonl", DATA)
    refusals = [
        await code_of(create_job(cloud, cloud.model_id, training_file=f"s3://{name}/chats.jsonl"))
        for name in ("others-sets", "absent-sets")
    ]
    assert [code for code, _ in refusals] == ["NOT_FOUND", "NOT_FOUND"]
    assert refusals[0][1].replace("others", "absent") == refusals[1][1]


async def test_a_right_that_was_taken_away_is_not_used(stopped: Cloud) -> None:
    """The job is made while its object cannot be read, and continues when the right is gone."""
    bucket = await bucket_id(stopped)
    account = await tuner(stopped)
    group = await stopped.group("readers")
    membership = await stopped.join(account, group)
    await stopped.permit(group, bucket, "storage.viewer")
    job_id = await stopped.tune_as(account)
    await stopped.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    async with stopped.serving():
        job = await stopped.until(job_id, "FAILED")
    assert job.status.error.code == "file_forbidden" and URL in job.status.error.message
    assert not list(stopped.recipes(job_id).folder.glob("*training_file*"))


async def test_an_account_that_is_gone_reads_nothing(stopped: Cloud) -> None:
    account = await stopped.account("tuner", "editors")
    job_id = await stopped.tune_as(account)
    await stopped.call("nebius.iam.v1.ServiceAccountService/Delete", id=account)
    async with stopped.serving():
        job = await stopped.until(job_id, "FAILED")
    assert job.status.error.code == "file_forbidden"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("s3://data-sets/absent.jsonl", "file_missing"),
        ("s3://data-sets/chats/bank.jsonl", "file_too_large"),
    ],
)
async def test_what_cannot_be_read_ends_the_job_with_its_reason(
    cloud: Cloud, url: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.tuning.reconcile.data.LARGEST_FILE_BYTES", len(DATA) - 1)
    job_id = await create_job(cloud, cloud.model_id, training_file=url)
    job = await cloud.until(job_id, "FAILED")
    assert job.status.error.code == code and url in job.status.error.message


@pytest.mark.parametrize("url", ["s3://data-sets", "s3://data-sets/", "s3://data-sets/chats/", "s3:///x"])
async def test_what_names_no_object_is_refused(stopped: Cloud, url: str) -> None:
    code, message = await code_of(create_job(stopped, stopped.model_id, training_file=url))
    assert code == "INVALID_ARGUMENT" and "spec.training_file" in message


@dataclass
class Slow:
    """Reads that have begun, and wait for the test."""

    begun: list[str] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Objects arrive when the test says so."""
    found, download = Slow(), object_reads._download

    def wait(s3: Any, place: Any, target: Any, largest_bytes: int) -> None:
        found.begun.append(target.name)
        target.write(b"half")
        found.may_go_on.wait(60)
        target.seek(0)
        download(s3, place, target, largest_bytes)

    monkeypatch.setattr(object_reads, "_download", wait)
    yield found
    found.may_go_on.set()


async def test_slow_reads_hold_up_nothing_else(cloud: Cloud, slow: Slow) -> None:
    """The control plane works on a few resources at a time, and has a few threads."""
    jobs = [await create_job(cloud, cloud.model_id, training_file=URL) for _ in range(12)]
    await until(lambda: len(slow.begun) == MOST_AT_A_TIME)
    another = await create_job(cloud, cloud.model_id)
    await until(lambda: cloud.pod(another) is not None)
    assert len(slow.begun) == MOST_AT_A_TIME and not any(cloud.pod(job_id) for job_id in jobs)
    await cloud.call(f"{JOBS}/Delete", id=jobs[0])
    await cloud.gone(jobs[0])
    slow.may_go_on.set()
    for job_id in jobs[1:]:
        await until(lambda job_id=job_id: cloud.pod(job_id) is not None)
        assert (cloud.recipes(job_id).folder / "training_file.jsonl").read_bytes() == DATA
    assert not cloud.recipes(jobs[0]).folder.exists()


async def test_a_read_that_a_restart_cut_off_begins_again(tmp_path: Path, slow: Slow) -> None:
    others = asyncio.all_tasks()
    async with fake_cloud(tmp_path) as plain:
        first = Cloud(**vars(plain))
        async with first.serving():
            await first.bucket("data-sets")
            first.owner = await first.access_key(await first.account("owner", "editors"))
            await first.put(first.owner, "data-sets", "chats/bank.jsonl", DATA)
            job_id = await create_job(first, await add_model(first), training_file=URL)
            await until(lambda: slow.begun)
    folder = first.recipes(job_id).folder
    assert not (folder / "training_file.jsonl").exists()
    for each in asyncio.all_tasks() - others:
        each.cancel()  # as the end of the process does
    slow.may_go_on.set()
    async with fake_cloud(tmp_path, first.world) as plain:
        again = Cloud(**vars(plain))
        async with again.serving():
            await until(lambda: again.pod(job_id) is not None)
    assert [path.name for path in folder.glob("*training_file*")] == ["training_file.jsonl"]
    assert (folder / "training_file.jsonl").read_bytes() == DATA


async def test_an_object_that_stays_damaged_ends_the_job(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reads, "WAITS_SECONDS", (0.0, 0.0))
    await cloud.put(cloud.owner, "data-sets", "chats/bank.jsonl", DATA * 1000)
    blobs = [path for path in (cloud.home / "objects" / "blobs").rglob("*") if path.is_file()]
    damaged = max(blobs, key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    job = await cloud.until(await create_job(cloud, cloud.model_id, training_file=URL), "FAILED")
    assert job.status.error.code == "file_damaged"
    assert URL in job.status.error.message and "3 times" in job.status.error.message
    assert not list(cloud.recipes(job.metadata.id).folder.glob("*training_file*"))
