"""Files over HTTP: upload, list, read, delete; whose they are; what breaks (AIS-01)."""

import errno
import hashlib
from pathlib import Path

import httpx
import pytest

from neocloud.model_gateway.composition import OpenAiFiles
from neocloud.model_gateway.openai_files.files import Draft, FileMissing, FileStore
from neocloud.testing.waiting import FakeClock
from tests.fast.model_gateway.openai_files.conftest import client, upload


def stored(objects: OpenAiFiles, tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "gateway" / "files").glob("*/*")]


async def test_what_was_uploaded_is_what_is_read(alice: httpx.AsyncClient) -> None:
    content = b"\r\n--boundary\x00" * 100_000
    made = await alice.post("files", data={"purpose": "user_data"}, files={"file": ("ä b.bin", content)})
    assert made.status_code == 200, made.text
    file = made.json()
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(content), "ä b.bin", "user_data")
    assert file["sha256"] == hashlib.sha256(content).hexdigest()
    assert (await alice.get(f"files/{file['id']}")).json() == file
    read = await alice.get(f"files/{file['id']}/content")
    assert read.content == content
    part = await alice.get(f"files/{file['id']}/content", headers={"Range": "bytes=2-11"})
    assert (part.status_code, part.content) == (206, content[2:12])


async def test_fields_may_come_after_the_file(alice: httpx.AsyncClient) -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="../../x.jsonl"\r\n\r\n{}\r\n'
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    made = await alice.post("files", content=body, headers=headers)
    assert made.json()["filename"] == "x.jsonl"
    assert made.json()["purpose"] == "batch"


async def test_lists_are_paged_in_both_orders(alice: httpx.AsyncClient) -> None:
    ids = [await upload(alice, b"{}", name=f"{n}") for n in range(5)]
    other = await upload(alice, b"{}", purpose="fine-tune")
    first = (await alice.get("files", params={"limit": 2, "purpose": "batch"})).json()
    assert ([f["id"] for f in first["data"]], first["has_more"]) == ([ids[4], ids[3]], True)
    rest = await alice.get("files", params={"after": ids[3], "limit": 9, "purpose": "batch"})
    assert ([f["id"] for f in rest.json()["data"]], rest.json()["has_more"]) == (ids[2::-1], False)
    oldest = (await alice.get("files", params={"order": "asc", "after": ids[3]})).json()
    assert [f["id"] for f in oldest["data"]] == [ids[4], other]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "no"}, "after"),
    ],
)
async def test_wrong_queries_say_which_part(alice: httpx.AsyncClient, query: dict, param: str) -> None:
    answer = await alice.get("files", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_file_of_another_tenant_does_not_exist(
    alice: httpx.AsyncClient, objects: OpenAiFiles
) -> None:
    file_id = await upload(alice, b"{}")
    async with client(objects, "mallory") as mallory:
        for verb, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            answer = await mallory.request(verb, f"files/{file_id}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")
        assert (await mallory.get("files")).json()["data"] == []
        assert (await mallory.get("files", params={"after": file_id})).status_code == 400
        answer = await mallory.get("files", headers={"OpenAI-Project": "project-a"})
        assert answer.status_code == 403
    assert (await alice.get(f"files/{file_id}")).status_code == 200


async def test_who_may_only_read_may_not_write(alice: httpx.AsyncClient, objects: OpenAiFiles) -> None:
    file_id = await upload(alice, b"{}")
    async with client(objects, "reader") as reader:
        assert (await reader.get(f"files/{file_id}")).status_code == 200
        assert (await reader.delete(f"files/{file_id}")).status_code == 404
        denied = await reader.post("files", data={"purpose": "batch"}, files={"file": ("f", b"{}")})
        assert denied.status_code == 403
    async with client(objects, "nobody") as nobody:
        assert (await nobody.get("files")).status_code == 401


async def test_who_works_in_several_projects_names_one(objects: OpenAiFiles) -> None:
    async with client(objects, "both") as both:
        answer = await both.get("files")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "OpenAI-Project")
        both.headers["OpenAI-Project"] = "project-c"
        file_id = await upload(both, b"{}")
        assert (await both.get(f"files/{file_id}")).status_code == 200
        both.headers["OpenAI-Project"] = "project-a"
        assert (await both.get(f"files/{file_id}")).status_code == 404


async def test_deleted_is_gone(alice: httpx.AsyncClient, objects: OpenAiFiles, tmp_path: Path) -> None:
    file_id = await upload(alice, b"{}")
    assert (await alice.delete(f"files/{file_id}")).json() == {
        "id": file_id,
        "object": "file",
        "deleted": True,
    }
    assert (await alice.get(f"files/{file_id}")).status_code == 404
    assert stored(objects, tmp_path) == []


HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (PURPOSE + HEAD + b"half of it", 400, "was interrupted"),
        (b"no form at all", 400, "not valid multipart"),
        (PURPOSE + b"--b--\r\n", 400, "no field `file`"),
        (HEAD + b"{}\r\n--b--\r\n", 400, "Invalid purpose ''"),
        (PURPOSE + HEAD + b"x" * 3_000_001 + b"\r\n--b--\r\n", 413, "limit of 3000000"),
        (PURPOSE + HEAD + b"1\r\n" + HEAD + b"2\r\n--b--\r\n", 400, "several"),
        (PURPOSE.replace(b"batch", b"x" * 70_000) + b"--b--\r\n", 400, "fields besides"),
    ],
)
async def test_bad_uploads_leave_nothing(
    alice: httpx.AsyncClient, objects: OpenAiFiles, tmp_path: Path, body: bytes, status: int, says: str
) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}

    async def pieces():
        for start in range(0, len(body), 999):
            yield body[start : start + 999]

    answer = await alice.post("files", content=pieces(), headers=headers)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]
    assert stored(objects, tmp_path) == []
    assert (await alice.get("files")).json()["data"] == []


async def test_a_full_disk_says_so_and_leaves_nothing(
    alice: httpx.AsyncClient, objects: OpenAiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(draft: Draft, chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Draft, "write", write)
    answer = await alice.post("files", data={"purpose": "batch"}, files={"file": ("f", b"{}")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
    assert answer.headers["x-should-retry"] == "false"
    assert stored(objects, tmp_path) == []


async def test_a_start_sweeps_what_a_crash_left(
    alice: httpx.AsyncClient, objects: OpenAiFiles, tmp_path: Path
) -> None:
    kept = await upload(alice, b"{}")
    folder = tmp_path / "gateway" / "files" / "project-a"
    (folder / "file-without-a-row").write_bytes(b"x")
    (folder / ".file-1.abcd.partial").write_bytes(b"x")
    with objects.files.draft("project-a") as running:
        running.write(b"still being written")
        await objects.start()
        assert running.keep("late", "batch").bytes == 19
    await objects.stop()
    assert {path.name for path in stored(objects, tmp_path)} == {
        kept,
        *[p.name for p in folder.glob("file-*")],
    }
    assert len(stored(objects, tmp_path)) == 2


def test_the_control_plane_reads_and_adds_files(tmp_path: Path) -> None:
    """FileStore in another process: path of a project's file, and a result added exactly once."""
    store = FileStore(tmp_path / "home")
    (tmp_path / "metrics.csv").write_text("step,train_loss\n1,2.5\n")
    first = store.add("p", tmp_path / "metrics.csv", "fine-tune-results", "metrics.csv", file_id="file-1")
    again = FileStore(tmp_path / "home").add(
        "p", tmp_path / "gone", "fine-tune-results", "m", file_id="file-1"
    )
    assert first == again == "file-1"
    assert store.path("p", "file-1").read_text().startswith("step")
    with pytest.raises(FileMissing):
        store.path("other", "file-1")


EXPIRY = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}


async def test_a_file_is_gone_when_its_time_has_come(
    alice: httpx.AsyncClient, objects: OpenAiFiles, clock: FakeClock, tmp_path: Path
) -> None:
    kept = await upload(alice, b"{}")
    made = await alice.post("files", data={"purpose": "batch", **EXPIRY}, files={"file": ("f", b"{}")})
    file = made.json()
    assert file["expires_at"] == file["created_at"] + 3600
    await clock.advance(3599)
    assert (await alice.get(f"files/{file['id']}/content")).content == b"{}"
    await clock.advance(1)
    for path in (f"files/{file['id']}", f"files/{file['id']}/content"):
        assert (await alice.get(path)).status_code == 404
    assert [each["id"] for each in (await alice.get("files")).json()["data"]] == [kept]
    assert len(stored(objects, tmp_path)) == 2
    await objects.buckets.delete_expired()  # pyright: ignore[reportPrivateUsage]
    assert [path.name for path in stored(objects, tmp_path)] == [kept]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"expires_after[anchor]": "now"}, "expires_after"),
        ({"expires_after[seconds]": "3599"}, "expires_after"),
        ({"expires_after[seconds]": "2592001"}, "expires_after"),
        ({"expires_after[seconds]": "9" * 60}, "expires_after"),
        ({"expires_after[seconds]": "-1"}, "expires_after"),
        ({"expires_after[seconds]": "1e4"}, "expires_after"),
        ({"expires_after[seconds]": None}, "expires_after"),
        ({"expires_after[anchor]": None}, "expires_after"),
        ({"expires_after[days]": "1"}, "expires_after[days]"),
        ({"expires_after": "1"}, "expires_after"),
    ],
)
async def test_a_wrong_time_is_refused(alice: httpx.AsyncClient, changes: dict, param: str) -> None:
    fields = {name: value for name, value in {**EXPIRY, **changes}.items() if value is not None}
    made = await alice.post("files", data={"purpose": "batch", **fields}, files={"file": ("f", b"{}")})
    assert (made.status_code, made.json()["error"]["param"]) == (400, param)
    assert (await alice.get("files")).json()["data"] == []
