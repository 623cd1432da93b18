"""Files and batches of a project with a file bucket, over a real control plane and a real object gateway.

Anyone who may write to the bucket may put anything where a file's object is.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from botocore.exceptions import EndpointConnectionError

from neocloud.core.clock import SystemClock
from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.data_plane.gateway_keys import gateway_key_file
from neocloud.model_gateway.api.errors import not_authenticated
from neocloud.model_gateway.authentication import Caller
from neocloud.model_gateway.composition import Gateway, OpenAiFiles
from neocloud.model_gateway.control_plane import GrpcControlPlane
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.openai_files import bucket_files
from neocloud.model_gateway.openai_files.batches import BatchRows
from neocloud.model_gateway.openai_files.files import FileMissing, FileStore
from neocloud.model_gateway.settings import FileSettings, GatewaySettings
from neocloud.testing.waiting import FakeClock, until
from tests import control_plane
from tests.fast.model_gateway.openai_files.batch_client import ScriptedBatchClient
from tests.fast.model_gateway.openai_files.conftest import EVERYTHING, READING, client, upload
from tests.fast.model_gateway.openai_files.test_batches import CHAT, in_state, jsonl, line
from tests.fast.services.inference.test_file_buckets import FILE_BUCKETS, Cloud

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]
BUCKET, SMALL = "team-data", "small-data"
MIB = 1 << 20
LINES = jsonl(*map(line, range(20)))


class Callers:
    """Callers by name, with their rights in the project of the cloud."""

    def __init__(self, project_id: str) -> None:
        self._projects = {"alice": (project_id, EVERYTHING), "reader": (project_id, READING)}
        self._projects["mallory"] = ("project-b", EVERYTHING)

    async def authenticate(self, authorization: str) -> Caller:
        name = authorization.removeprefix("Bearer ")
        if name not in self._projects:
            raise not_authenticated("This key is not known.")
        project, rights = self._projects[name]
        return Caller(name, name, f"tenant-of-{project}", project, {project: rights})

    async def refresh(self, caller: Caller) -> Caller:
        return await self.authenticate(f"Bearer {caller.subject_id}")


class FilesCloud(Cloud):
    sender: ScriptedBatchClient
    clock: FakeClock

    async def choose_only(self, bucket: str) -> None:
        """Make this the project's file bucket; "": it has none."""
        for each in (await self.call(f"{FILE_BUCKETS}/List", parent_id=self.project_id)).items:
            await self.call(f"{FILE_BUCKETS}/Delete", id=each.metadata.id)
        if bucket:
            await self.choose(bucket=bucket)

    @asynccontextmanager
    async def files(self, folder: Path, **settings: Any) -> AsyncIterator[OpenAiFiles]:
        """The gateway's files in this folder, started, with the file bucket that the project has now."""
        link = GrpcControlPlane(self.running.server.addresses.grpc, gateway_key_file(self.home))
        routes = await link.list_routes("", 0)
        self.sender, self.clock = ScriptedBatchClient(), FakeClock()
        found = OpenAiFiles(
            *(folder, Callers(self.project_id), self.sender, link, ""),
            settings=FileSettings(max_file_bytes=30 * MIB, **settings),
            clock=self.clock,
            file_buckets=lambda: routes.file_buckets,
        )
        await found.start()
        try:
            yield found
        finally:
            await found.stop()
            await link.close()

    async def passing(self, holds: Callable[[], bool]) -> None:
        """Let time pass, half a minute at a time, until this holds."""

        async def step() -> bool:
            await self.clock.advance(30)
            return holds()

        await until(step, holds=bool, seconds=60, poll_seconds=0.02)

    async def objects(self, bucket: str = BUCKET) -> dict[str, bytes]:
        s3 = self.s3(self.owner.aws_id, self.owner.secret)

        def read() -> dict[str, bytes]:
            found = s3.list_objects_v2(Bucket=bucket).get("Contents", ())
            return {e["Key"]: s3.get_object(Bucket=bucket, Key=e["Key"])["Body"].read() for e in found}

        return await asyncio.to_thread(read)

    async def remove(self, key: str) -> None:
        s3 = self.s3(self.owner.aws_id, self.owner.secret)
        await asyncio.to_thread(s3.delete_object, Bucket=BUCKET, Key=key)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cloud(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilesCloud]:
    async with control_plane.cloud_in_process(tmp_path_factory.mktemp("cloud")) as plain:
        found = FilesCloud(**vars(plain))
        async with found.serving():
            found.bucket_id = await found.bucket(BUCKET)
            await found.bucket(SMALL, max_size_bytes=1000)
            found.owner = await found.access_key(await found.account("owner", "editors"))
            yield found


@pytest_asyncio.fixture(loop_scope="module")
async def files(cloud: FilesCloud, tmp_path: Path) -> AsyncIterator[OpenAiFiles]:
    await cloud.choose_only(BUCKET)
    async with cloud.files(tmp_path) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def alice(files: OpenAiFiles) -> AsyncIterator[httpx.AsyncClient]:
    async with client(files, "alice") as http:
        yield http


def kept(folder: Path) -> list[Path]:
    """Bytes of files in the gateway's own folder."""
    return list((folder / "gateway" / "files").glob("*/*"))


def key_of(file_id: str) -> str:
    return f"openai-files/{file_id}"


async def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def start_batch(http: httpx.AsyncClient, file_id: str) -> Any:
    asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    answer = await http.post("batches", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_upload_is_an_object_and_is_read_back(
    cloud: FilesCloud, files: OpenAiFiles, alice: httpx.AsyncClient, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 68 * 1024  # in parts
    file_id = await upload(alice, content, "user_data", "ä.bin")
    file = (await alice.get(f"files/{file_id}")).json()
    assert (file["bytes"], file["location"]) == (len(content), f"s3://{BUCKET}/{key_of(file_id)}")
    assert (await cloud.objects())[key_of(file_id)] == content and not kept(tmp_path)
    read = await alice.get(f"files/{file_id}/content")
    assert read.content == content and "%C3%A4.bin" in read.headers["content-disposition"]
    part = await alice.get(f"files/{file_id}/content", headers={"Range": "bytes=255-257"})
    assert (part.status_code, part.content) == (206, b"\xff\x00\x01")
    assert part.headers["content-range"] == f"bytes 255-257/{len(content)}"
    beyond = await alice.get(f"files/{file_id}/content", headers={"Range": f"bytes={len(content)}-"})
    assert await error_of(beyond) == (416, "invalid_range")
    async with client(files, "mallory") as mallory, client(files, "reader") as reader:
        for answer in (
            await mallory.get(f"files/{file_id}/content"),
            await mallory.delete(f"files/{file_id}"),
            await reader.delete(f"files/{file_id}"),
        ):
            assert await error_of(answer) == (404, "file_not_found")
        assert (await reader.get(f"files/{file_id}/content")).content == content
    assert (await alice.delete(f"files/{file_id}")).json()["deleted"] is True
    assert key_of(file_id) not in await cloud.objects()
    assert (await alice.get(f"files/{file_id}")).status_code == 404


async def test_another_object_is_not_taken_for_the_file(cloud: FilesCloud, alice: httpx.AsyncClient) -> None:
    changed, removed = await upload(alice, b"{}"), await upload(alice, b"{}")
    await cloud.put(cloud.owner, BUCKET, key_of(changed), b"[]")
    await cloud.remove(key_of(removed))
    assert await error_of(await alice.get(f"files/{changed}/content")) == (409, "file_content_changed")
    part = await alice.get(f"files/{changed}/content", headers={"Range": "bytes=0-0"})
    assert await error_of(part) == (409, "file_content_changed")
    assert await error_of(await alice.get(f"files/{removed}/content")) == (404, "file_content_missing")
    for file_id in (changed, removed):
        assert (await alice.delete(f"files/{file_id}")).status_code == 200
    assert (await cloud.objects())[key_of(changed)] == b"[]"  # it was never the gateway's


async def test_a_batch_reads_its_input_from_the_bucket_and_writes_its_output_there(
    cloud: FilesCloud, files: OpenAiFiles, alice: httpx.AsyncClient, tmp_path: Path
) -> None:
    file_id = await upload(alice, LINES)
    batch = await in_state(alice, await start_batch(alice, file_id), "completed", "failed")
    assert (batch["status"], batch["errors"]) == ("completed", None)
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    output = (await cloud.objects())[key_of(batch["output_file_id"])]
    assert {json.loads(each)["custom_id"] for each in output.splitlines()} == {f"line-{n}" for n in range(20)}
    assert (await alice.get(f"files/{batch['output_file_id']}/content")).content == output
    assert not kept(tmp_path) and not list((tmp_path / "gateway" / "batches").glob("*"))
    assert not files.files.unsettled_objects()


@pytest.mark.parametrize("has_same_etag", [False, True])
async def test_a_batch_takes_only_the_bytes_that_were_uploaded(
    cloud: FilesCloud, files: OpenAiFiles, alice: httpx.AsyncClient, has_same_etag: bool
) -> None:
    """ETags are MD5, of which two texts can have the same: a row with the ETag of the other stands for it."""
    poison = LINES.replace(b'"content": "7"', b'"content": "8"')
    for other in (poison, b"x" * MIB if has_same_etag else b""):
        file_id = await upload(alice, LINES)
        await cloud.put(cloud.owner, BUCKET, key_of(file_id), other)
        if has_same_etag:
            s3 = cloud.s3(cloud.owner.aws_id, cloud.owner.secret)
            etag = (await asyncio.to_thread(s3.head_object, Bucket=BUCKET, Key=key_of(file_id)))["ETag"]
            with files.files.database.transaction() as rows:
                rows.execute("UPDATE files SET etag = ? WHERE id = ?", (etag, file_id))
        batch = await in_state(alice, await start_batch(alice, file_id), "failed", "completed")
        assert batch["errors"]["data"][0]["code"] == "file_content_changed"
    assert not cloud.sender.sent


async def test_a_batch_waits_for_a_bucket_that_is_away_and_not_for_ever(
    cloud: FilesCloud, files: OpenAiFiles, alice: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = files.buckets._keys  # pyright: ignore[reportPrivateUsage]
    rows, asked = BatchRows(files.files.database), list[Any]()

    async def away(request: Any) -> Any:
        asked.append(request)
        raise ControlPlaneUnavailable("away")

    def state() -> str:
        found = rows.find(batch["id"])
        assert found is not None
        return found.state

    file_id = await upload(alice, LINES)
    with monkeypatch.context() as patched:
        patched.setattr(link, "issue_file_key", away)
        batch = await start_batch(alice, file_id)
        await cloud.passing(lambda: len(asked) >= 2)
        assert state() == "validating"
    cloud.sender.gate.clear()
    await cloud.passing(lambda: bool(cloud.sender.sent))
    with monkeypatch.context() as patched:
        patched.setattr(link, "issue_file_key", away)
        cloud.sender.gate.set()
        await cloud.passing(lambda: state() not in ("in_progress", "finalizing"))
    assert state() == "completed" and len(asked) >= 5
    done = (await alice.get(f"batches/{batch['id']}")).json()
    assert [each["code"] for each in done["errors"]["data"]] == ["output_not_in_bucket"]
    assert len((await alice.get(f"files/{done['output_file_id']}/content")).text.splitlines()) == 20


async def test_a_full_bucket_takes_no_upload_and_loses_no_results(cloud: FilesCloud, tmp_path: Path) -> None:
    await cloud.choose_only(SMALL)
    async with cloud.files(tmp_path) as files, client(files, "alice") as alice:
        sent = {"data": {"purpose": "batch"}, "files": {"file": ("f", b"x" * 2000)}}
        full = await alice.post("files", **sent)
        assert await error_of(full) == (429, "insufficient_quota") and SMALL in full.text
        assert full.headers["x-should-retry"] == "false"
        assert (await alice.get("files")).json()["data"] == [] and not await cloud.objects(SMALL)
        file_id = await upload(alice, jsonl(*map(line, range(4))))
        batch = await in_state(alice, await start_batch(alice, file_id), "completed", "failed")
        assert batch["status"] == "completed"
        assert batch["errors"]["data"][0]["code"] == "output_not_in_bucket"
        output = await alice.get(f"files/{batch['output_file_id']}/content")
        assert len(output.text.splitlines()) == 4 and len(kept(tmp_path)) == 1
        assert not kept(tmp_path)[0].name.endswith(".partial") and not files.files.unsettled_objects()


async def test_files_stay_where_they_are_when_the_choice_changes(cloud: FilesCloud, tmp_path: Path) -> None:
    await cloud.choose_only("")
    async with cloud.files(tmp_path) as files, client(files, "alice") as alice:
        before = await upload(alice, b"before")
    await cloud.choose_only(BUCKET)
    async with cloud.files(tmp_path) as files, client(files, "alice") as alice:
        chosen, tuned = await upload(alice, b"chosen"), await upload(alice, b"{}", "fine-tune")
        assert (await alice.get(f"files/{before}/content")).content == b"before"
    assert {path.name for path in kept(tmp_path)} == {before, tuned}
    with pytest.raises(FileMissing, match=f"s3://{BUCKET}/{key_of(chosen)}"):
        FileStore(tmp_path).path(cloud.project_id, chosen)
    await cloud.choose_only("")
    async with cloud.files(tmp_path) as files, client(files, "alice") as alice:
        after = await upload(alice, b"after")
        assert await error_of(await alice.get(f"files/{chosen}/content")) == (409, "file_bucket_removed")
        await cloud.choose_only(BUCKET)
        assert (await alice.get(f"files/{chosen}/content")).content == b"chosen"
        await cloud.choose_only("")
        assert (await alice.delete(f"files/{chosen}")).status_code == 200
    assert {path.name for path in kept(tmp_path)} == {before, tuned, after}
    assert (await cloud.objects())[key_of(chosen)] == b"chosen"


async def test_bytes_count_in_the_bucket_and_not_in_the_gateway(cloud: FilesCloud, tmp_path: Path) -> None:
    await cloud.choose_only(BUCKET)
    async with cloud.files(tmp_path, max_project_bytes=3000) as files, client(files, "alice") as alice:
        await upload(alice, b"x" * 2500)
        file_id = await upload(alice, b"x" * 2500)
        await upload(alice, b"x" * 2500, "fine-tune")
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        answer = await alice.post("batches", json=asked)  # the copy that a batch needs is the gateway's
        assert await error_of(answer) == (429, "insufficient_quota")


async def test_what_a_crash_left_in_the_bucket_is_removed(
    cloud: FilesCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cloud.choose_only(BUCKET)
    known = set(await cloud.objects())

    def crash(store: FileStore, *_: object) -> None:
        raise RuntimeError("killed")

    async with cloud.files(tmp_path) as files, client(files, "alice") as alice:
        with monkeypatch.context() as patched:
            patched.setattr(FileStore, "insert", crash)
            with pytest.raises(RuntimeError):
                await upload(alice, b"lost")
        [lost] = set(await cloud.objects()) - known
        assert [key_of(each.id) for each in files.files.unsettled_objects()] == [lost]
    async with cloud.files(tmp_path) as files:

        async def left() -> list[Any]:
            return await asyncio.to_thread(files.files.unsettled_objects)

        await until(left, holds=lambda found: not found)
    assert set(await cloud.objects()) == known


async def test_a_key_for_inference_alone_uses_the_bucket_through_the_gateway(
    cloud: FilesCloud, tmp_path: Path
) -> None:
    """The whole gateway, and an account without any right on the bucket."""
    await cloud.choose_only(BUCKET)
    account, group = await cloud.account("app"), await cloud.group("apps")
    await cloud.join(account, group)
    await cloud.permit(group, cloud.project_id, "inference.user")
    issued = await cloud.call(
        "nebius.iam.v1.StaticKeyService/Issue",
        metadata={"parent_id": cloud.project_id, "name": "studio"},
        spec={"account": {"service_account": {"id": account}}, "service": "AI_STUDIO"},
    )
    clock, api = SystemClock(), cloud.running.server.addresses.grpc
    settings = GatewaySettings(home=cloud.home, api=api)
    link, ledger = GrpcControlPlane(api, settings.key_file), open_ledger(tmp_path / "ledger.db", clock)
    gateway = Gateway(settings, link, ledger, clock)
    try:
        async with (
            gateway.running(),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(gateway.app),
                base_url="http://localhost/v1/",
                headers={"Authorization": f"Bearer {issued.token}"},
            ) as http,
        ):
            await until(lambda: gateway.table.is_known)
            file_id = await upload(http, b"{}")
            assert (await cloud.objects())[key_of(file_id)] == b"{}"
            assert (await http.get(f"files/{file_id}/content")).content == b"{}"
            assert (await http.delete(f"files/{file_id}")).status_code == 200
            assert key_of(file_id) not in await cloud.objects()
    finally:
        ledger.close()
        await link.close()


async def test_results_that_were_written_unanswered_are_not_kept_twice(
    cloud: FilesCloud, files: OpenAiFiles, alice: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, known = bucket_files._put, set(await cloud.objects())  # pyright: ignore[reportPrivateUsage]
    file_id = await upload(alice, LINES)

    def unanswered(file: Any, path: Path, s3: Any) -> str:
        put(file, path, s3)
        raise EndpointConnectionError(endpoint_url="gone")

    with monkeypatch.context() as patched:
        patched.setattr(bucket_files, "_put", unanswered)
        batch, rows = await start_batch(alice, file_id), BatchRows(files.files.database)

        def has_ended() -> bool:
            found = rows.find(batch["id"])
            return found is not None and not found.is_open

        await cloud.passing(has_ended)
    output = (await alice.get(f"batches/{batch['id']}")).json()["output_file_id"]
    assert set(await cloud.objects()) - known == {key_of(file_id), key_of(output)}
    await files.buckets.settle()  # pyright: ignore[reportPrivateUsage]
    assert set(await cloud.objects()) - known == {key_of(file_id)}
    assert len((await alice.get(f"files/{output}/content")).text.splitlines()) == 20


async def test_without_the_control_plane_the_bucket_is_away_and_the_rest_works(
    cloud: FilesCloud, files: OpenAiFiles, alice: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id, tuned = await upload(alice, b"{}"), await upload(alice, b"{}", "fine-tune")
    link: Any = files.buckets._keys  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(link._client, "_key_file", cloud.home / "absent")
    sent = {"data": {"purpose": "batch"}, "files": {"file": ("f", b"{}")}}
    for answer in (
        await alice.post("files", **sent),
        await alice.get(f"files/{file_id}/content"),
        await alice.delete(f"files/{file_id}"),
    ):
        assert await error_of(answer) == (503, "file_bucket_unavailable")
        assert answer.headers["Retry-After"]
    assert (await alice.get(f"files/{file_id}")).status_code == 200
    assert (await alice.get(f"files/{tuned}/content")).content == b"{}"
