"""OpenAI's SDKs and vLLM's load generator against real vLLM behind the gateway (AIS-01, AIS-02).

What the engine must itself do for clients is seen here: streams, structured output, tools, usage, its own
refusals. The rest of the API is driven without a model in tests/real/conformance/openai.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from neocloud.services.inference.model_server_key import COMPILE_NICENESS
from neocloud.testing.waiting import wait_until
from tests import ROOT
from tests.clients import CLIENTS
from tests.e2e.inference.served import Served

HELLO: Any = [{"role": "user", "content": "How do I block my card when I have lost it on a journey abroad?"}]
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Amsterdam", "Utrecht"]}, "open": {"type": "boolean"}},
    "required": ["city", "open"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.gateway, api_key=served.token(), timeout=120) as client:
        yield client


def test_a_chat_whole_and_streamed_says_the_same(served: Served, client: openai.OpenAI) -> None:
    asked: Any = {"model": served.name, "messages": HELLO, "max_tokens": 12, "temperature": 0, "seed": 1}
    whole = client.chat.completions.create(**asked)
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options=options))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == streamed
    assert whole.usage and chunks[-1].usage
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens <= 12
    assert whole.usage.prompt_tokens == chunks[-1].usage.prompt_tokens > 10
    plain = list(client.chat.completions.create(**asked, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)


def test_structured_output_follows_the_schema(served: Served, client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}}
    # JSON may hold any number of blanks, and a tiny model likes them; repeating one costs it more each time.
    answer = client.chat.completions.create(
        model=served.name,
        messages=HELLO,
        max_tokens=400,
        temperature=0,
        frequency_penalty=2,
        response_format=form,
    )
    found = json.loads(answer.choices[0].message.content or "")
    assert found["city"] in ("Amsterdam", "Utrecht")
    assert isinstance(found["open"], bool)


def test_the_real_engine_compiles_with_the_lowest_priority(served: Served, client: openai.OpenAI) -> None:
    """The plugin is loaded by vLLM as it is, in the process of the engine; its threads stay."""
    more: Any = {"structured_outputs": {"regex": "(yes|no|perhaps)"}}
    client.chat.completions.create(model=served.name, messages=HELLO, max_tokens=8, extra_body=more)
    found = served.cloud.podman("exec", served.podman_name(), "sh", "-c", "cat /proc/[0-9]*/task/*/stat")
    threads = [line.rpartition(")")[2].split() for line in found.splitlines()]
    niceness = Counter(int(fields[16]) for fields in threads if len(fields) > 16)
    assert niceness[COMPILE_NICENESS] and niceness[0] > niceness[COMPILE_NICENESS]


def test_a_tool_is_called_with_arguments_of_its_schema(served: Served, client: openai.OpenAI) -> None:
    """Named, because a tiny model would never choose it itself."""
    function = {"name": "find_branch", "parameters": PLACE, "strict": True}
    tool: Any = {"type": "function", "function": function}
    chosen: Any = {"type": "function", "function": {"name": "find_branch"}}
    answer = client.chat.completions.create(
        model=served.name,
        messages=HELLO,
        max_tokens=400,
        temperature=0,
        frequency_penalty=2,
        tools=[tool],
        tool_choice=chosen,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls and len(calls) == 1, answer
    call = calls[0]
    assert call.type == "function" and call.function.name == "find_branch"
    found = json.loads(call.function.arguments)
    assert found["city"] in ("Amsterdam", "Utrecht") and isinstance(found["open"], bool)


def test_the_engines_own_refusals_keep_their_shape(served: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=served.name, messages=HELLO, temperature=-1)
    assert refused.value.request_id
    assert "temperature" in str(refused.value)
    long: Any = [{"role": "user", "content": "card " * 20_000}]
    with pytest.raises(openai.BadRequestError, match="(?i)context|maximum|length"):
        client.chat.completions.create(model=served.name, messages=long)


def test_a_batch_is_answered(served: Served, client: openai.OpenAI) -> None:
    body = {"model": served.name, "messages": HELLO, "max_tokens": 4, "temperature": 0}
    url = "/v1/chat/completions"
    lines = [{"custom_id": f"c-{n}", "method": "POST", "url": url, "body": body} for n in range(8)]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    batch_id = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h").id
    batch = wait_until(
        lambda: client.batches.retrieve(batch_id),
        "the batch is finished",
        holds=lambda seen: seen.status in ("completed", "failed"),
    )
    assert batch.request_counts and batch.request_counts.completed == 8, batch
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id or "").iter_lines()]
    said = {each["response"]["body"]["choices"][0]["message"]["content"] for each in answers}
    assert {each["custom_id"] for each in answers} == {line["custom_id"] for line in lines}
    assert len(said) == 1  # greedy, so all are equal


def test_fine_tuning_is_asked_of_the_control_plane(served: Served, client: openai.OpenAI) -> None:
    client.fine_tuning.jobs.list()
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.retrieve("finetuningjob-none")
    line = {"messages": [*HELLO, {"role": "user", "content": "?"}]}
    file = client.files.create(file=("t.jsonl", json.dumps(line).encode()), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="Line 1") as refused:
        client.fine_tuning.jobs.create(model=served.name, training_file=file.id)
    assert refused.value.code == "invalid_training_file"


def test_javascript(served: Served) -> None:
    subprocess.run([ROOT / "scripts" / "install-client", "openai-js"], check=True)
    sdk = CLIENTS / "openai-js"
    asked = {"model": served.name, "messages": HELLO, "max_tokens": 8, "temperature": 0}
    script = f"""
        import {{ createRequire }} from "node:module";
        const {{ default: OpenAI }} = createRequire("{sdk}/package.json")("openai");
        const asked = {json.dumps(asked)};
        const client = new OpenAI();
        const whole = (await client.chat.completions.create(asked)).choices[0].message.content;
        let streamed = "";
        for await (const chunk of await client.chat.completions.create({{ ...asked, stream: true }}))
            streamed += chunk.choices[0].delta.content ?? "";
        console.log(JSON.stringify([whole, streamed]));
    """
    environment = {**served.cloud.environment, "OPENAI_BASE_URL": served.gateway}
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script],
        env={**environment, "OPENAI_API_KEY": served.token()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    whole, streamed = json.loads(done.stdout)
    assert whole == streamed != ""


@pytest.mark.long
def test_the_load_of_vllms_own_bench_is_answered(served: Served, images: Path, tmp_path: Path) -> None:
    """`vllm bench serve` from the shared root, as it is; it counts what it was answered."""
    container = ["run", "--rm", "--network=host", f"--env=OPENAI_API_KEY={served.token()}"]
    container += [f"--volume={served.model}:/model:ro", f"--volume={tmp_path}:/result"]
    container += ["--rootfs", f"{images}/jail/rootfs:O", "vllm", "bench", "serve"]
    load = ["--backend=openai-chat", f"--base-url={served.gateway.removesuffix('/v1')}"]
    load += ["--endpoint=/v1/chat/completions", f"--model={served.name}", "--tokenizer=/model"]
    load += ["--dataset-name=random", "--random-input-len=32", "--random-output-len=8", "--ignore-eos"]
    load += ["--num-prompts=12", "--max-concurrency=4", "--save-result", "--result-dir=/result"]
    served.cloud.podman(*container, *load, "--result-filename=found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["completed"] == 12 and not found.get("failed")
    assert found["total_output_tokens"] == 12 * 8
