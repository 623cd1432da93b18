"""OpenAI's JavaScript SDK, curl, LangChain and litellm, as their users run them (AIS-01, AIS-02)."""

import json
from pathlib import Path

from tests.real.conformance.openai.conftest import InstalledClients, Studio
from tests.real.conformance.openai.engine import CALL

HERE = Path(__file__).parent
HELLO = '[{"role": "user", "content": "one two three"}]'


def test_the_javascript_sdk(studio: Studio, installed: InstalledClients) -> None:
    found = json.loads(studio.run("node", HERE / "drive_openai.mjs", installed("openai-js")))
    assert {"bank", "bank-polite"} <= set(found["models"])
    assert (found["chat"], found["stream"]) == (" word" * 3, " word" * 5)
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (3, 3)
    assert int(found["limit"]) > 0
    assert found["call"]["name"] == "balance_of"
    assert json.loads(found["call"]["arguments"]) == {"account": "7"}
    assert found["parsed"] == {"city": "Amsterdam", "branches": 3}
    assert found["embedding"] == [0.5, 0.25, 0.125]
    assert found["packed"] == [[0.5, 0.25, 0.125]] * 2
    assert (found["file"], found["deleted"]) == ("js.jsonl", True)
    assert (found["batch"], found["answered"]) == ("completed", ["js-0", "js-1", "js-2"])
    assert (found["job"], found["cancelled"]) == ("validating_files", "cancelled")
    assert found["events"] == ["Step 10", "Started"]
    assert found["errors"] == {
        "unknown": ["NotFoundError", 404, "model_not_found"],
        "cold": ["InternalServerError", 503, "model_not_ready"],
        "wrong": ["AuthenticationError", 401, "invalid_api_key"],
    }


def test_curl(studio: Studio, tmp_path: Path) -> None:
    def curl(*words: str) -> str:
        return studio.run("curl", "-sS", "-H", f"Authorization: Bearer {studio.gateway.token}", *words)

    def ask(body: str, *words: str) -> str:
        kind = ("-H", "Content-Type: application/json", "-d", body)
        return curl(*words, *kind, f"{studio.base_url}/chat/completions")

    assert "bank" in curl(f"{studio.base_url}/models")
    answer = json.loads(ask(f'{{"model": "bank", "messages": {HELLO}, "max_tokens": 1}}'))
    assert answer["choices"][0]["message"]["content"] == " word"
    streamed = ask(f'{{"model": "bank", "messages": {HELLO}, "stream": true}}', "-N").splitlines()
    assert streamed[-2:] == ["data: [DONE]", ""] or streamed[-1] == "data: [DONE]"
    refused = json.loads(ask('{"model": "bank", "messages": [}'))
    assert refused["error"]["type"] == "invalid_request_error"
    headers = ask(f'{{"model": "cold", "messages": {HELLO}}}', "-D", "-", "-o", "/dev/null").lower()
    assert headers.startswith("http/1.1 503")
    assert "retry-after: " in headers
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    file = json.loads(curl("-F", "purpose=user_data", "-F", f"file=@{path}", f"{studio.base_url}/files"))
    assert curl("-r", "1-3", f"{studio.base_url}/files/{file['id']}/content") == "ote"


def test_langchain(studio: Studio, installed: InstalledClients) -> None:
    python = installed("langchain") / "bin" / "python"
    # Its table of OpenAI's tokens comes from the internet; litellm brings the same file along.
    (table,) = installed("litellm").glob("lib/*/site-packages/litellm/litellm_core_utils/tokenizers")
    found = json.loads(studio.run(python, HERE / "drive_langchain.py", TIKTOKEN_CACHE_DIR=str(table)))
    assert (found["chat"], found["stream"]) == (" word" * 3, [" word"] * 3)
    assert (found["usage"]["input_tokens"], found["usage"]["output_tokens"]) == (3, 3)
    assert found["batch"] == [" word" * 3] * 2
    assert found["calls"] == [{"name": "balance_of", "args": {"account": "7"}}]
    assert found["place"] == ["Amsterdam", 3]
    assert found["embedding"] == [0.5, 0.25, 0.125]
    assert found["by_tokens"] == [[0.5, 0.25, 0.125]] * 2
    assert found["error"] == "model_not_found"


def test_litellm(studio: Studio, installed: InstalledClients) -> None:
    python = installed("litellm") / "bin" / "python"
    told = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else it asks the internet for its price list
    found = json.loads(studio.run(python, HERE / "drive_litellm.py", **told).splitlines()[-1])
    assert (found["chat"], found["stream"], found["usage"]) == (" word" * 3, " word" * 5, [3, 3])
    assert found["call"] == CALL["function"]["arguments"]
    assert found["embedding"] == [0.5, 0.25, 0.125]
    assert found["ranked"] == [[1, 1.0]]
    assert found["errors"] == {"none": ["NotFoundError", 404], "cold": ["ServiceUnavailableError", 503]}
