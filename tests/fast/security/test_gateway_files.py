"""Limits of uploads, of a project's files and of their checks in the gateway."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from neocloud.model_gateway.composition import OpenAiFiles
from neocloud.model_gateway.openai_files import quota, validation
from neocloud.model_gateway.openai_files.files_api import MAX_FIELDS
from neocloud.model_gateway.settings import FileSettings
from neocloud.testing.waiting import until
from tests.fast.model_gateway.openai_files.conftest import alice, client, clock, jobs, objects, sender, upload

__all__ = ["alice", "clock", "jobs", "objects", "sender"]

HEADERS = {"Content-Type": "multipart/form-data; boundary=b"}
KIBIBYTE = b"x" * 1024


@pytest.fixture
def settings() -> FileSettings:
    return FileSettings(max_file_bytes=3_000_000, max_project_files=3, max_project_bytes=2_000_000)


def field(name: str, content: bytes = b"") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), content)


class Sent:
    """A body without an end, of which is counted what was taken."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        while self.taken < 50_000_000:
            self.taken += len(self.pieces[-1])
            yield self.pieces[-1]


@pytest.mark.parametrize(
    "pieces",
    [
        (field("a") * 500,),
        (field("a", KIBIBYTE),),
        (b"preamble" * 1000,),
        (b"--b\r\nX-Long: ", KIBIBYTE),
        (b'--b\r\nContent-Disposition: form-data; name="', KIBIBYTE),
        (b"--b\r\n", b"X-Many: 1\r\n" * 100),
        (field("file", b"1") + b"--b--\r\n", b"epilogue" * 1000),
    ],
)
async def test_what_is_beside_the_file_is_bounded(alice: httpx.AsyncClient, pieces: tuple[bytes]) -> None:
    sent = Sent(*pieces)
    answer = await alice.post("files", content=sent, headers=HEADERS)
    assert answer.status_code == 400, answer.text
    assert sent.taken < 1_000_000


async def test_as_many_fields_as_are_allowed_are_read(alice: httpx.AsyncClient) -> None:
    fields = b"".join(field(f"f{number}") for number in range(MAX_FIELDS - 1))
    body = fields + field("purpose", b"batch") + field("file", b"{}") + b"--b--\r\n"
    answer = await alice.post("files", content=body, headers=HEADERS)
    assert answer.json()["error"]["code"] == "unknown_parameter"


async def test_the_files_of_a_project_are_bounded(alice: httpx.AsyncClient, objects: OpenAiFiles) -> None:
    ids = [await upload(alice, b"{}") for _ in range(3)]
    answer = await alice.post("files", data={"purpose": "batch"}, files={"file": ("f", b"{}")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")
    async with client(objects, "mallory") as mallory:
        await upload(mallory, b"{}")  # another project has its own
    await alice.delete(f"files/{ids[0]}")
    await upload(alice, b"{}")


async def test_uploads_at_the_same_time_do_not_overrun_the_limit(
    alice: httpx.AsyncClient, objects: OpenAiFiles, tmp_path: Path
) -> None:
    content = b"x" * 900_000
    sent = [
        alice.post("files", data={"purpose": "user_data"}, files={"file": ("f", content)}) for _ in range(6)
    ]
    answers = await asyncio.gather(*sent)
    assert sum(answer.status_code == 200 for answer in answers) == 2
    assert {answer.status_code for answer in answers} == {200, 429}
    kept = [path.stat().st_size for path in (tmp_path / "gateway" / "files").glob("*/*")]
    assert sum(kept) == 1_800_000


async def test_an_input_that_was_deleted_counts_until_its_batch_is_over(
    alice: httpx.AsyncClient, sender: Any, objects: OpenAiFiles
) -> None:
    sender.gate.clear()
    line = b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"model": "m"}}\n'
    file_id = await upload(alice, line + b" " * 1_500_000)
    asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = (await alice.post("batches", json=asked)).json()
    await alice.delete(f"files/{file_id}")
    form = {"data": {"purpose": "user_data"}, "files": {"file": ("f", b"x" * 900_000)}}
    assert (await alice.post("files", **form)).status_code == 429
    await alice.post(f"batches/{batch['id']}/cancel")
    await until(
        lambda: alice.get(f"batches/{batch['id']}"), holds=lambda seen: seen.json()["status"] == "cancelled"
    )
    assert (await alice.post("files", **form)).status_code == 200
    await objects.stop()


async def test_the_disk_keeps_a_reserve(alice: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    few = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=(2 << 30) - 1))
    monkeypatch.setattr(quota, "shutil", few)
    answer = await alice.post("files", data={"purpose": "batch"}, files={"file": ("f", b"{}")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
    monkeypatch.setattr(quota, "shutil", shutil)
    await upload(alice, b"{}")


class Running:
    """Processes of the checker, as many as are started at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.gate = asyncio.Event()

    async def start(self, *words: str, **_: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        return self

    async def communicate(self) -> tuple[bytes, bytes]:
        await self.gate.wait()
        self.now -= 1
        return b'{"errors": [], "total_errors": 0, "lines": 1, "properties": {}}', b""

    returncode = 0


async def test_two_files_are_checked_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    monkeypatch.setattr(validation, "_SLOTS", validation._Slots(validation.MAX_PROCESSES))
    monkeypatch.setattr(validation.asyncio, "create_subprocess_exec", running.start)
    large = tmp_path / "large"
    large.write_bytes(b"{}\n" * 200_000)
    check = partial(validation.validate_file, "batch", large, endpoint="", max_lines=1, max_line_bytes=1)
    checks = [asyncio.create_task(check()) for _ in range(18)]
    await until(lambda: validation._SLOTS.waiting >= 16)
    with pytest.raises(Exception) as refused:
        validation.require_validation_slot()
    assert getattr(refused.value, "status", 0) == 429 and "Retry-After" in refused.value.headers  # type: ignore[attr-defined]
    running.gate.set()
    await asyncio.gather(*checks)
    assert running.most == 2
    validation.require_validation_slot()


async def test_a_checker_has_limits(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b'{"prompt": "a", "completion": "b"}\n' * 30_000)
    result = await validation.validate_file("training", large)
    assert result.lines == 30_000 and not result.errors
