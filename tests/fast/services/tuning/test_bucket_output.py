"""Models and checkpoints that jobs write to a bucket, with the rights of the job's owner."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from neocloud.services.storage.object_writes import StoreObjectWrites
from neocloud.services.storage.public import AccessProblem, Unwritable
from neocloud.services.tuning.reconcile.output import MOST_AT_A_TIME
from neocloud.services.tuning.rules.output import MANIFEST, output_folder
from neocloud.testing.waiting import until
from tests.fast.services.tuning.cloud import JOBS, add_model, create_job, fake_cloud
from tests.fast.services.tuning.test_bucket_data import Cloud, bucket_id, code_of, tuner

pytestmark = pytest.mark.slow

URL = "s3://data-sets/out"


class OutputCloud(Cloud):
    async def objects(self, bucket: str = "data-sets") -> dict[str, bytes]:
        s3 = self.s3(self.owner.aws_id, self.owner.secret)

        def read() -> dict[str, bytes]:
            found = s3.list_objects_v2(Bucket=bucket).get("Contents", ())
            return {e["Key"]: s3.get_object(Bucket=bucket, Key=e["Key"])["Body"].read() for e in found}

        return await asyncio.to_thread(read)

    async def training(self, account_id: str = "", url: str = URL, **spec: Any) -> str:
        """A job that trains, made with the token of an account."""
        mine, self.token = self.token, await self.token_of(account_id) if account_id else self.token
        try:
            job_id = await create_job(self, self.model_id, output=url, **spec)
        finally:
            self.token = mine
        await until(lambda: self.pod(job_id) is not None)
        self.recipes(job_id).begin()
        await self.until(job_id, "RUNNING")
        return job_id

    async def said(self, job_id: str, words: str) -> bool:
        found = await self.job_call("ListEvents", "ListFineTuningEventsRequest", id=job_id, page_size=1000)
        return any(words in each.message for each in found.items)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[OutputCloud]:
    async with fake_cloud(tmp_path) as plain:
        found = OutputCloud(**vars(plain))
        async with found.serving():
            await found.bucket("data-sets")
            found.owner = await found.access_key(await found.account("owner", "editors"))
            found.model_id = await add_model(found)
            yield found


def save_checkpoint(cloud: Cloud, job_id: str, step: int) -> Path:
    recipes = cloud.recipes(job_id)
    partial = recipes.folder / "finetune" / ".partial"
    partial.mkdir(parents=True)
    (partial / "adapter_model.safetensors").write_bytes(b"weights of %d" % step)
    return partial.rename(recipes.folder / "finetune" / f"checkpoint-{step:06d}")


async def test_model_evaluation_and_checkpoints_are_written(cloud: OutputCloud) -> None:
    account = await tuner(cloud, ("storage.objects.editor", await bucket_id(cloud)))
    job_id = await cloud.training(account)
    save_checkpoint(cloud, job_id, 10)
    top = f"out/{job_id}"
    while f"{top}/checkpoints/checkpoint-000010/{MANIFEST}" not in await cloud.objects():
        await asyncio.sleep(0.1)
    cloud.recipes(job_id).succeed()
    job = await cloud.until(job_id, "SUCCEEDED")
    found = await cloud.objects()
    checkpoint = {f"checkpoints/checkpoint-000010/{name}" for name in ("adapter_model.safetensors", MANIFEST)}
    results = {f"results/{name}" for name in ("step_metrics.csv", "evaluation.json", MANIFEST)}
    model = {f"model/{name}" for name in ("adapter_model.safetensors", MANIFEST)}
    assert set(found) == {f"{top}/{name}" for name in checkpoint | results | model}
    assert found[f"{top}/model/adapter_model.safetensors"] == b"weights"
    manifest = json.loads(found[f"{top}/model/{MANIFEST}"])
    assert manifest["files"] == [{"name": "adapter_model.safetensors", "size_bytes": 7}]
    assert manifest["model"] == job.status.fine_tuned_model
    assert job.status.output == f"s3://data-sets/{top}/"
    kept = b"".join(path.read_bytes() for path in cloud.recipes(job_id).folder.rglob("*") if path.is_file())
    assert b"NCTK" not in kept


async def test_the_model_in_the_bucket_is_a_model_again(cloud: OutputCloud) -> None:
    job_id = await cloud.training()
    cloud.recipes(job_id).succeed()
    job = await cloud.until(job_id, "SUCCEEDED")
    source = {"object": {"bucket": "data-sets", "prefix": f"out/{job_id}/model"}}
    made = await cloud.call(
        "neocloud.inference.v1.ModelService/Create",
        metadata={"parent_id": cloud.project_id, "name": "again"},
        spec={"source": source, "base_model_id": cloud.model_id},
    )
    await cloud.until(made.resource_id, "READY")
    assert job.status.output


async def test_who_may_tune_but_not_write_to_the_bucket_is_refused(cloud: OutputCloud) -> None:
    account = await tuner(cloud, ("storage.viewer", await bucket_id(cloud)))
    code, message = await code_of(cloud.training(account))
    assert code == "PERMISSION_DENIED" and "storage.objects.create" in message
    assert not (await cloud.call(f"{JOBS}/List", parent_id=cloud.project_id)).items


async def test_a_bucket_of_another_project_is_as_if_there_was_none(cloud: OutputCloud) -> None:
    made = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    await cloud.bucket("others-sets", made.resource_id)
    refusals = [
        await code_of(cloud.training(url=f"s3://{name}/x")) for name in ("others-sets", "absent-sets")
    ]
    assert [code for code, _ in refusals] == ["NOT_FOUND", "NOT_FOUND"]
    assert refusals[0][1].replace("others", "absent") == refusals[1][1]


async def test_a_right_that_was_taken_away_ends_the_job_and_resume_writes_alone(cloud: OutputCloud) -> None:
    account, group = await tuner(cloud), await cloud.group("writers")
    membership = await cloud.join(account, group)
    await cloud.permit(group, await bucket_id(cloud), "storage.objects.editor")
    job_id = await cloud.training(account)
    await cloud.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    save_checkpoint(cloud, job_id, 10)
    while not await cloud.said(job_id, "checkpoint-000010 was not written"):  # the training continues
        await asyncio.sleep(0.1)
    cloud.recipes(job_id).succeed()
    job = await cloud.until(job_id, "FAILED")
    assert job.status.error.code == "output_forbidden"
    assert f"neo tuning job resume {job_id}" in job.status.error.message
    assert job.status.fine_tuned_model_id and not job.status.output and not await cloud.objects()
    await cloud.join(account, group)
    attempts = cloud.recipes(job_id).wanted["attempt"]
    await cloud.job_call("Resume", "ResumeFineTuningJobRequest", id=job_id)
    job = await cloud.until(job_id, "SUCCEEDED")
    assert f"out/{job_id}/model/{MANIFEST}" in await cloud.objects()
    assert cloud.recipes(job_id).wanted["attempt"] == attempts and not job.status.error.code


async def test_another_bucket_that_took_the_name_is_not_written_to(cloud: OutputCloud) -> None:
    """It may be another tenant's, and open to anybody."""
    job_id, bucket = await cloud.training(), await bucket_id(cloud)
    for verb in ("Delete", "Purge"):
        await cloud.call(f"nebius.storage.v1.BucketService/{verb}", id=bucket)
    await cloud.gone(bucket)
    await cloud.bucket("data-sets")
    cloud.recipes(job_id).succeed()
    job = await cloud.until(job_id, "FAILED")
    assert job.status.error.code == "output_missing" and not await cloud.objects()


async def test_a_full_bucket_says_so(cloud: OutputCloud) -> None:
    await cloud.bucket("small-sets", max_size_bytes=10)
    job_id = await cloud.training(url="s3://small-sets")
    cloud.recipes(job_id).succeed()
    job = await cloud.until(job_id, "FAILED")
    assert job.status.error.code == "output_full"
    assert not [name for name in await cloud.objects("small-sets") if name.endswith(MANIFEST)]


async def test_what_was_interrupted_has_no_manifest_and_is_written_again(
    cloud: OutputCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, is_cut = StoreObjectWrites.put, True

    async def cut(self: Any, resource_id: str, folder: Any, name: str, *rest: Any) -> None:
        if is_cut and name == "model/adapter_model.safetensors":
            raise Unwritable(AccessProblem.UNANSWERED, "cut off")
        await put(self, resource_id, folder, name, *rest)

    monkeypatch.setattr(StoreObjectWrites, "put", cut)
    job_id = await cloud.training()
    cloud.recipes(job_id).succeed()
    while f"out/{job_id}/results/{MANIFEST}" not in (found := await cloud.objects()):
        await asyncio.sleep(0.1)
    assert not [name for name in found if "/model/" in name]
    is_cut = False
    await cloud.until(job_id, "SUCCEEDED")
    assert f"out/{job_id}/model/{MANIFEST}" in await cloud.objects()


def put_link(folder: Path) -> None:
    (folder / "x").symlink_to("/etc/passwd")


def put_pipe(folder: Path) -> None:
    os.mkfifo(folder / "x")


def put_sparse(folder: Path) -> None:
    with (folder / "x").open("wb") as file:
        file.truncate(1024**4)


def put_many(folder: Path) -> None:
    for number in range(1001):
        (folder / str(number)).touch()


HOSTILE: dict[str, Callable[[Path], None]] = {
    "link": put_link,
    "pipe": put_pipe,
    "sparse": put_sparse,
    "many": put_many,
    "folder": lambda folder: (folder / "x").mkdir(),
    "manifest": lambda folder: (folder / MANIFEST).touch(),
    "control": lambda folder: (folder / "a\x1b]0;b").touch(),
    "not text": lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).touch(),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_what_recipes_do_not_write_stays_here(cloud: OutputCloud, kind: str) -> None:
    """A container may run a tenant's code, and writes the checkpoints and the result."""
    job_id = await cloud.training()
    folder = save_checkpoint(cloud, job_id, 1)
    while not await cloud.said(job_id, "checkpoint-000001 was written"):
        await asyncio.sleep(0.1)
    good = set(await cloud.objects())
    HOSTILE[kind](folder)
    folder.rename(folder.with_name("checkpoint-000002"))
    while not await cloud.said(job_id, "checkpoint-000002 was not written"):
        await asyncio.sleep(0.1)
    names = {name for name in set(await cloud.objects()) - good if "adapter" not in name}
    assert not names, "no manifest, and nothing of the rest"


@pytest.mark.parametrize("kind", ["manifest", "control", "not text", "many"])
async def test_a_result_with_other_names_is_refused(cloud: OutputCloud, kind: str) -> None:
    job_id = await cloud.training()
    recipes = cloud.recipes(job_id)
    recipes.succeed(HOSTILE[kind])
    job = await cloud.until(job_id, "FAILED")
    assert job.status.error.code == "bad_result" and not job.status.output


@pytest.mark.parametrize(
    "url",
    ["data-sets", "s3://", "s3:///x", "s3://data-sets/../x", "s3://data-sets//x", "s3://data-sets/a\x1bb"],
)
async def test_what_names_no_folder_is_refused(cloud: OutputCloud, url: str) -> None:
    code, message = await code_of(cloud.training(url=url))
    assert code == "INVALID_ARGUMENT" and "spec.output" in message


def test_each_job_has_a_folder_of_its_own() -> None:
    for url, key in (
        ("s3://b", "job/"),
        ("s3://b/", "job/"),
        ("s3://b/a/b", "a/b/job/"),
        ("s3://b/a/", "a/job/"),
    ):
        folder = output_folder(url, "job")
        assert folder is not None and (folder.bucket, folder.key) == ("b", key)
    assert output_folder("s3://b/" + "k" * 601, "job") is None


async def test_a_slow_write_holds_up_nothing_else(
    cloud: OutputCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control plane works on a few resources at a time, and these would be the files of a tenant."""
    begun: list[str] = []

    async def endless(self: Any, resource_id: str, *rest: Any) -> None:
        begun.append(resource_id)
        await asyncio.Event().wait()

    monkeypatch.setattr(StoreObjectWrites, "put", endless)
    jobs = [await cloud.training() for _ in range(12)]  # more than the worker has room for
    for job_id in jobs:
        save_checkpoint(cloud, job_id, 1)
    await until(lambda: len(begun) == MOST_AT_A_TIME)
    another = await cloud.training()
    for verb, request, state in (("Pause", "Pause", "PAUSED"), ("Cancel", "Cancel", "CANCELLED")):
        job_id = begun[0] if verb == "Pause" else begun[1]
        await cloud.job_call(verb, f"{request}FineTuningJobRequest", id=job_id)
        if verb == "Pause":
            cloud.recipes(job_id).end("stopped")
        await cloud.until(job_id, state)
    await until(lambda: len(begun) > MOST_AT_A_TIME)  # their places are free
    assert another not in begun
