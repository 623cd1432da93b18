"""Batches: each line answered once, whatever happens in between (AIS-01)."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.model_gateway.composition import OpenAiFiles
from neocloud.model_gateway.openai_files import batches
from neocloud.model_gateway.openai_files.batch_run import BatchResponse
from neocloud.model_gateway.settings import FileSettings
from neocloud.testing.waiting import FakeClock, until
from tests.fast.model_gateway.openai_files.batch_client import ScriptedBatchClient, ok
from tests.fast.model_gateway.openai_files.conftest import KnownCallers, NoKeys, client, upload

CHAT = "/v1/chat/completions"
Body = dict[str, Any]


def line(number: int, **over: Any) -> Body:
    body = {"model": "bank", "messages": [{"role": "user", "content": f"{number}"}]}
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body, **over}


def jsonl(*lines: Any) -> bytes:
    return "\n".join(json.dumps(each) for each in lines).encode() + b"\n"


def question(body: Any) -> str:
    return body["messages"][0]["content"]


@pytest.fixture
async def running(objects: OpenAiFiles) -> AsyncIterator[OpenAiFiles]:
    await objects.start()
    yield objects
    await objects.stop()


async def make(http: httpx.AsyncClient, content: bytes, **over: Any) -> Body:
    asked = {
        "input_file_id": await upload(http, content),
        "endpoint": CHAT,
        "completion_window": "24h",
        **over,
    }
    answer = await http.post("batches", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def in_state(http: httpx.AsyncClient, batch: Body, *states: str) -> Body:
    async def look() -> Body:
        return (await http.get(f"batches/{batch['id']}")).json()

    return await until(look, holds=lambda found: found["status"] in states, seconds=60, poll_seconds=0.002)


async def content(http: httpx.AsyncClient, file_id: str) -> list[Body]:
    text = (await http.get(f"files/{file_id}/content")).text
    return [json.loads(each) for each in text.splitlines()]


async def test_every_line_is_answered_once(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient
) -> None:
    def answer(body: Any) -> BatchResponse:
        if question(body) == "7":
            return BatchResponse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
        return ok(question(body))

    sender.answer = answer
    made = await make(alice, jsonl(*map(line, range(50))), metadata={"for": "test"})
    assert (made["status"], made["metadata"]) == ("validating", {"for": "test"})
    done = await in_state(alice, made, "completed")
    assert done["request_counts"] == {"total": 50, "completed": 49, "failed": 1}
    assert done["model"] == "bank"
    output = await content(alice, done["output_file_id"])
    assert sorted(each["custom_id"] for each in output) == sorted(f"line-{n}" for n in range(50) if n != 7)
    for each in output:
        said = each["response"]["body"]["choices"][0]["message"]["content"]
        assert (each["custom_id"], each["response"]["status_code"], each["error"]) == (
            f"line-{said}",
            200,
            None,
        )
    [failed] = await content(alice, done["error_file_id"])
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("line-7", 400)
    assert {caller.subject_id for caller in sender.callers} == {"alice"}
    assert len(set(sender.request_ids)) == 50


@pytest.mark.parametrize(
    ("lines", "number", "code"),
    [
        ([line(0), line(1, method="GET")], 2, "invalid_method"),
        ([line(0), line(0)], 2, "duplicate_custom_id"),
        ([line(0, custom_id=None)], 1, "invalid_custom_id"),
        ([line(0, url="/v1/embeddings")], 1, "mismatched_url"),
        ([line(0, body=[])], 1, "invalid_body"),
        ([line(0, body={})], 1, "missing_model"),
        ([line(0), line(1, body={"model": "other"})], 2, "mismatched_model"),
        ([line(0, body={"model": "bank", "stream": True})], 1, "stream_in_batch"),
        ([line(0), line(1), "text"], 3, "invalid_json_line"),
        ([], 1, "empty_file"),
    ],
)
async def test_a_bad_line_fails_the_batch_and_is_named(
    running: OpenAiFiles,
    alice: httpx.AsyncClient,
    sender: ScriptedBatchClient,
    lines: list[Any],
    number: int,
    code: str,
) -> None:
    failed = await in_state(alice, await make(alice, jsonl(*lines)), "failed")
    assert [(error["line"], error["code"]) for error in failed["errors"]["data"]] == [(number, code)]
    assert sender.sent == []
    assert failed["output_file_id"] is None


async def test_a_large_file_is_checked_in_another_process(
    running: OpenAiFiles, alice: httpx.AsyncClient
) -> None:
    long = {"model": "bank", "messages": [{"role": "user", "content": "x" * 1000}]}
    lines = [line(n, body=long) for n in range(400)]
    failed = await in_state(alice, await make(alice, jsonl(*lines, *lines[-200:]) + b"{broken"), "failed")
    errors = failed["errors"]["data"]
    assert len(errors) == 100  # the first ones
    assert errors[0]["message"] == "Line 401: custom_id 'line-200' is not unique; line 201 has it too."


@pytest.mark.parametrize(
    ("over", "param"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {}}, "output_expires_after"),
    ],
)
async def test_wrong_batches_say_which_part(
    running: OpenAiFiles, alice: httpx.AsyncClient, over: Body, param: str
) -> None:
    asked = {
        "input_file_id": await upload(alice, jsonl(line(0))),
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    answer = await alice.post("batches", json={**asked, **over})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_cold_model_is_asked_by_one_line_until_it_answers(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient, clock: FakeClock
) -> None:
    cold = BatchResponse(503, {"error": {"code": "model_not_ready"}}, retry_after=20)
    sender.answer = lambda body: cold
    made = await make(alice, jsonl(*map(line, range(40))))
    await until(lambda: len(sender.sent) == 1)
    for asked in (2, 3):
        await clock.advance(20)
        await until(lambda asked=asked: len(sender.sent) == asked)
    assert sender.most_running == 1
    sender.answer = lambda body: ok()
    await clock.advance(20)
    done = await in_state(alice, made, "completed")
    assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}


async def test_live_requests_go_first(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient
) -> None:
    sender.live = 1000
    made = await make(alice, jsonl(*map(line, range(40))))
    await in_state(alice, made, "completed")
    assert sender.most_running == 1
    sender.live, sender.most_running = 0, 0
    sender.gate.clear()
    made = await make(alice, jsonl(*map(line, range(100))))
    await until(lambda: sender.running == 1)  # the first alone: it may be cold
    sender.gate.set()
    sender.gate = asyncio.Event()
    await until(lambda: sender.running == FileSettings.batch_concurrency)
    sender.gate.set()
    await in_state(alice, made, "completed")
    assert sender.most_running == FileSettings.batch_concurrency


async def test_a_failing_engine_is_asked_three_times(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient, clock: FakeClock
) -> None:
    sender.answer = lambda body: BatchResponse(502, {"error": {"message": "died"}})
    made = await make(alice, jsonl(line(0)))
    await until(lambda: len(sender.sent) == 1)
    await clock.advance(10)
    done = await in_state(alice, made, "completed")
    assert len(sender.sent) == 3
    assert done["request_counts"] == {"total": 1, "completed": 0, "failed": 1}


async def test_a_spent_budget_is_an_error_at_once(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient
) -> None:
    sender.answer = lambda body: BatchResponse(429, {"error": {"code": "insufficient_quota"}})
    done = await in_state(alice, await make(alice, jsonl(line(0))), "completed")
    assert done["request_counts"]["failed"] == 1
    assert len(sender.sent) == 1


async def test_cancelled_keeps_what_was_answered(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient
) -> None:
    hold = asyncio.Event()
    send = sender.send

    async def send_or_hold(*words: Any, **named: Any) -> BatchResponse:
        answer = await send(*words, **named)
        if len(sender.sent) > 5:
            await hold.wait()
        return answer

    sender.send = send_or_hold  # type: ignore[method-assign]
    made = await make(alice, jsonl(*map(line, range(100))))
    await until(lambda: len(sender.sent) > 5)
    cancelling = (await alice.post(f"batches/{made['id']}/cancel")).json()
    assert cancelling["status"] in ("cancelling", "cancelled")
    done = await in_state(alice, made, "cancelled")
    output = await content(alice, done["output_file_id"])
    assert len(output) == done["request_counts"]["completed"] == 5
    assert done["error_file_id"] is None
    again = await alice.post(f"batches/{made['id']}/cancel")
    assert again.json()["status"] == "cancelled"


async def test_lines_left_when_the_window_is_over_are_errors(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient, clock: FakeClock
) -> None:
    sender.answer = lambda body: ok() if question(body) == "0" else BatchResponse(503, {}, retry_after=60)
    made = await make(alice, jsonl(*map(line, range(3))))
    await until(lambda: len(sender.sent) >= 2)
    await clock.advance(24 * 3600)
    done = await in_state(alice, made, "expired")
    assert done["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    errors = await content(alice, done["error_file_id"])
    assert {each["error"]["code"] for each in errors} == {"batch_expired"}


async def test_a_restart_goes_on_and_asks_nothing_twice_that_was_answered(
    alice: httpx.AsyncClient,
    objects: OpenAiFiles,
    sender: ScriptedBatchClient,
    clock: FakeClock,
    tmp_path: Path,
) -> None:
    await objects.start()
    sender.gate.clear()
    made = await make(alice, jsonl(*map(line, range(20))))
    await until(lambda: sender.running == 1)
    await objects.stop()
    # as a kill leaves it: some whole records, and half of one
    results = tmp_path / "gateway" / "batches" / made["id"] / "results"
    record = {"id": "batch_req_1", "custom_id": "line-0", "response": {"status_code": 200}, "error": None}
    results.write_bytes(f"1\t+\t{json.dumps(record)}\n".encode() + b'2\t+\t{"id": "batch_r')
    await alice.delete(f"files/{made['input_file_id']}")

    later = ScriptedBatchClient()
    restarted = OpenAiFiles(tmp_path, KnownCallers(), later, NoKeys(), "127.0.0.1:1", clock=clock)
    await restarted.start()
    async with client(restarted, "alice") as http:
        done = await in_state(http, made, "completed")
        output = await content(http, done["output_file_id"])
        files = (await http.get("files")).json()["data"]
        # the folder of a batch is removed after its state is shown
        await until(lambda: not any((tmp_path / "gateway" / "batches").iterdir()))
    await restarted.stop()
    assert sorted(each["custom_id"] for each in output) == sorted(f"line-{n}" for n in range(20))
    assert sorted(map(question, later.sent), key=int) == [f"{n}" for n in range(1, 20)]
    assert [file["id"] for file in files] == [done["output_file_id"]]


async def test_a_project_has_so_many_open_batches(
    running: OpenAiFiles, alice: httpx.AsyncClient, sender: ScriptedBatchClient, tmp_path: Path
) -> None:
    sender.gate.clear()
    made = [await make(alice, jsonl(line(0))) for _ in range(3)]
    asked = {"input_file_id": made[0]["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    refused = await alice.post("batches", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_batches")
    assert len(list((tmp_path / "gateway" / "batches").iterdir())) == 3
    sender.gate.set()
    await in_state(alice, made[0], "completed")
    assert (await alice.post("batches", json=asked)).status_code == 200
    listed = (await alice.get("batches", params={"limit": 2})).json()
    assert (len(listed["data"]), listed["has_more"]) == (2, True)
    rest = (await alice.get("batches", params={"after": listed["last_id"]})).json()
    assert [each["id"] for each in rest["data"]] == [made[1]["id"], made[0]["id"]]


async def test_a_batch_of_another_tenant_does_not_exist(
    running: OpenAiFiles, alice: httpx.AsyncClient, objects: OpenAiFiles
) -> None:
    made = await make(alice, jsonl(line(0)))
    async with client(objects, "mallory") as mallory:
        assert (await mallory.get(f"batches/{made['id']}")).status_code == 404
        assert (await mallory.post(f"batches/{made['id']}/cancel")).status_code == 404
        asked = {"input_file_id": made["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        assert (await mallory.post("batches", json=asked)).status_code == 400
    async with client(objects, "reader") as reader:
        assert (await reader.post("batches", json=asked)).status_code == 403


async def test_a_full_disk_makes_a_batch_wait(
    running: OpenAiFiles,
    alice: httpx.AsyncClient,
    clock: FakeClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [True]
    pwrite = batches.os.pwrite

    def write(handle: int, data: bytes, offset: int) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return pwrite(handle, data, offset)

    monkeypatch.setattr(batches.os, "pwrite", write)
    made = await make(alice, jsonl(*map(line, range(5))))
    await until(lambda: clock._sleepers and (tmp_path / "gateway/batches" / made["id"] / "results").exists())
    assert (await alice.get(f"batches/{made['id']}")).json()["status"] == "in_progress"
    full[0] = False
    async with asyncio.timeout(60):
        while (await alice.get(f"batches/{made['id']}")).json()["status"] != "completed":
            await clock.advance(30)
            await asyncio.sleep(0.002)
    assert shutil.disk_usage(tmp_path).free


async def test_results_are_kept_as_long_as_was_asked(
    alice: httpx.AsyncClient, running: OpenAiFiles, clock: FakeClock
) -> None:
    made = await make(alice, jsonl(line(1)), output_expires_after={"anchor": "created_at", "seconds": 7200})
    found = await in_state(alice, made, "completed")
    file = (await alice.get(f"files/{found['output_file_id']}")).json()
    assert file["expires_at"] == file["created_at"] + 7200
    await clock.advance(7200)
    assert (await alice.get(f"files/{found['output_file_id']}/content")).status_code == 404
    assert (await alice.get(f"files/{made['input_file_id']}")).status_code == 200
