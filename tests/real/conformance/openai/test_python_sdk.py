"""OpenAI's Python SDK, unmodified: what its users call, and what they catch (AIS-01, AIS-02)."""

import json
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from neocloud.testing.gateway import route
from neocloud.testing.waiting import wait_until
from tests.real.conformance.openai.conftest import OTHER_TENANT, Studio
from tests.real.conformance.openai.engine import CALL

HELLO: Any = [{"role": "user", "content": "one two three"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "balance_of", "parameters": {"type": "object", "properties": {"account": {}}}},
}


def test_models(client: openai.OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert {"bank", "bank-polite", "cold", "tools"} <= models.keys()
    assert client.models.retrieve("bank-polite").id == "bank-polite"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_a_chat(client: openai.OpenAI, studio: Studio) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="bank", messages=HELLO, temperature=0.6, max_tokens=3
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == " word" * 3
    assert answer.usage and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3)
    assert answer.model == "bank"
    assert studio.mock.counts()["last"]["body"]["temperature"] == 0.6
    for name in ("limit", "remaining", "reset"):
        assert raw.headers[f"x-ratelimit-{name}-tokens"]
    assert raw.headers["x-request-id"] == answer._request_id
    assert int(raw.headers["openai-processing-ms"]) >= 0


def test_a_stream_with_and_without_usage(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="bank-polite", messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " word" * 5
    assert all(chunk.usage is None for chunk in chunks)
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="bank", messages=HELLO, stream=True, stream_options=options)
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 5


async def test_many_at_a_time(studio: Studio) -> None:
    import asyncio  # noqa: PLC0415

    async with openai.AsyncOpenAI(base_url=studio.base_url, api_key=studio.gateway.token) as client:
        create = client.chat.completions.create
        answers = await asyncio.gather(
            *(create(model="bank", messages=HELLO, max_tokens=2) for _ in range(16))
        )
    assert {answer.choices[0].message.content for answer in answers} == {" word word"}


def test_tools_whole_and_streamed(client: openai.OpenAI, studio: Studio) -> None:
    asked: Any = {"model": "tools", "messages": HELLO, "tools": [TOOL], "tool_choice": "required"}
    answer = client.chat.completions.create(**asked, parallel_tool_calls=True)
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls or []
    assert call.to_dict() == CALL
    for name in ("tools", "tool_choice"):
        assert studio.scripted.asked[name] == asked[name]
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    [streamed] = final.choices[0].message.tool_calls or []
    assert json.loads(streamed.function.arguments) == {"account": "7"}


class Place(pydantic.BaseModel):
    city: str
    branches: int


def test_structured_output(client: openai.OpenAI, studio: Studio) -> None:
    answer = client.chat.completions.parse(model="tools", messages=HELLO, response_format=Place)
    assert answer.choices[0].message.parsed == Place(city="Amsterdam", branches=3)
    schema = studio.scripted.asked["response_format"]["json_schema"]
    assert (schema["strict"], schema["name"]) == (True, "Place")


def test_completions_and_responses(client: openai.OpenAI) -> None:
    text = client.completions.create(model="bank", prompt="one two", max_tokens=2)
    assert text.choices[0].text == " word word"
    response = client.responses.create(model="bank", input="one two", max_output_tokens=4)
    assert response.output_text == " word" * 4
    events = list(client.responses.create(model="bank", input="one", stream=True))
    assert events[-1].type == "response.completed"


def test_embeddings(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="embedder", input="one two", encoding_format="float")
    assert found.data[0].embedding == [0.5, 0.25, 0.125]
    for inputs in (["one", "two"], [[1, 2], [3]]):
        packed = client.embeddings.create(model="embedder", input=inputs)  # asks for base64
        assert [each.embedding for each in packed.data] == [[0.5, 0.25, 0.125]] * 2
        assert [each.index for each in packed.data] == [0, 1]


def test_files(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    path.write_text('{"messages": []}\n')
    with path.open("rb") as content:
        made = client.files.create(file=content, purpose="user_data")
    assert (made.filename, made.bytes, made.status) == (path.name, 17, "processed")
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == path.read_bytes()
    for number in range(3):
        client.files.create(file=(f"{number}.txt", b"x"), purpose="user_data")
    found = list(client.files.list(purpose="user_data", limit=2))  # the SDK asks for page after page
    assert [file.filename for file in found][:4] == ["2.txt", "1.txt", "0.txt", path.name]
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)


def test_a_batch(client: openai.OpenAI, studio: Studio) -> None:
    body = {"model": "bank", "messages": HELLO, "max_tokens": 1}
    lines = [
        {"custom_id": f"c-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n in range(40)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    batch = _finished(client, made.id)
    assert batch.status == "completed", batch
    assert batch.request_counts and batch.request_counts.to_dict() == {
        "total": 40,
        "completed": 40,
        "failed": 0,
    }
    output = [json.loads(line) for line in client.files.content(batch.output_file_id or "").iter_lines()]
    assert sorted(each["custom_id"] for each in output) == sorted(line["custom_id"] for line in lines)
    assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in output} == {" word"}
    assert [each.id for each in client.batches.list(limit=1)][0] == made.id
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(made.id)
    with studio.client(key=OTHER_TENANT) as other, pytest.raises(openai.NotFoundError):
        other.batches.retrieve(made.id)


def _finished(client: openai.OpenAI, batch_id: str) -> Any:
    unfinished = ("validating", "in_progress", "finalizing")
    return wait_until(
        lambda: client.batches.retrieve(batch_id),
        "the batch is finished",
        holds=lambda batch: batch.status not in unfinished,
        seconds=120,
    )


def test_fine_tuning(client: openai.OpenAI, studio: Studio) -> None:
    line = {"messages": [*HELLO, {"role": "assistant", "content": "four"}]}
    file = client.files.create(file=("t.jsonl", json.dumps(line).encode()), purpose="fine-tune")
    hyperparameters: Any = {"n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": "auto"}
    job = client.fine_tuning.jobs.create(
        model="bank",
        training_file=file.id,
        suffix="polite",
        method={"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
    )
    assert (job.status, job.model) == ("validating_files", "bank")
    assert (job.model_extra or {})["user_provided_suffix"] == "polite"
    assert job.method and job.method.supervised and job.method.supervised.hyperparameters
    assert job.method.supervised.hyperparameters.n_epochs == 2
    assert client.fine_tuning.jobs.retrieve(job.id).id == job.id
    assert job.id in [each.id for each in client.fine_tuning.jobs.list()]
    assert [event.message for event in client.fine_tuning.jobs.list_events(job.id)] == ["Step 10", "Started"]
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id))
    assert [each.step_number for each in checkpoints] == [20, 10]
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    assert studio.control_plane.jobs.authorizations == {f"Bearer {studio.gateway.token}"}


@pytest.mark.parametrize(
    ("asked", "kind", "code"),
    [
        ({"model": "none"}, openai.NotFoundError, "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "x " * 999_999}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        ({"max_tokens": -1}, openai.BadRequestError, None),
        ({"model": "cold"}, openai.InternalServerError, "model_not_ready"),
    ],
)
def test_errors_are_the_exceptions_that_users_catch(
    client: openai.OpenAI, asked: Any, kind: type[openai.APIStatusError], code: str | None
) -> None:
    with pytest.raises(kind) as refused:
        client.chat.completions.create(**{"model": "bank", "messages": HELLO, **asked})
    assert code is None or refused.value.code == code
    assert refused.value.request_id
    assert isinstance(refused.value.body, dict) and refused.value.body["message"]


def test_who_may_not(studio: Studio) -> None:
    with studio.client(key="wrong") as wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    with studio.client(key=OTHER_TENANT) as other:
        assert [model.id for model in other.models.list()] == []
        with pytest.raises(openai.NotFoundError):  # another tenant's adapter
            other.chat.completions.create(model="bank-polite", messages=HELLO)
    with studio.client() as client, pytest.raises(openai.PermissionDeniedError):
        client.with_options(project="project-b").chat.completions.create(model="bank", messages=HELLO)


def test_limits(client: openai.OpenAI) -> None:
    for _ in range(2):
        client.chat.completions.create(model="narrow", messages=HELLO, max_tokens=1)
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="narrow", messages=HELLO, max_tokens=1)
    headers = refused.value.response.headers
    assert (refused.value.code, headers["x-ratelimit-remaining-requests"]) == ("rate_limit_exceeded", "0")
    assert 0 < int(headers["retry-after"]) <= 60


def test_the_sdk_waits_for_a_cold_model(studio: Studio) -> None:
    """The first answer is 503 with Retry-After; the SDK asks again by itself, and then it is there."""
    traffic = studio.control_plane.traffic
    with studio.client(max_retries=60) as client:
        import threading  # noqa: PLC0415

        def wake() -> None:
            wait_until(lambda: any("cold" in str(report) for report in traffic), seconds=60)
            studio.gateway.set_routes(*studio.routes(cold=route("cold", replicas=[studio.mock.address])))

        waker = threading.Thread(target=wake)
        waker.start()
        try:
            answer = client.chat.completions.create(model="cold", messages=HELLO, max_tokens=1)
        finally:
            waker.join()
            studio.gateway.set_routes(*studio.routes())
    assert answer.choices[0].message.content == " word"
