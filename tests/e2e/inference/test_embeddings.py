"""The embedding model that comes with Neocloud: added by its name, served by a real vLLM, called by OpenAI's
SDK.

What only a real model can show is seen here: vectors like the original's, and the right passage first.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.cloud import Cloud
from tests.e2e.inference.served import Served

MODEL = "all-minilm-l6-v2"
BLOCKED, PARAPHRASE = "The bank blocked my card.", "My payment card was locked by the bank."
BEES = "Bees make honey in summer."
ORIGINAL = {
    BLOCKED: (-0.00515, 0.03295, -0.01287, 0.01555, 0.01558, -0.09188),
    BEES: (-0.00959, -0.01532, 0.04373, 0.04681, -0.00614, 0.01003),
}
"""The first numbers of the vectors that sentence-transformers 6.2.0 makes of the package's model."""
TOLERANCE = 1e-3
"""The model server computes in 16 bits."""
TOKENS = [101, 1996, 2924, 8534, 2026, 4003, 1012, 102]
"""The tokens of BLOCKED, with those that begin and end a text."""
PASSAGES = (
    "Opening hours of branches are Monday to Friday from nine to five.",
    "A mortgage with a fixed rate keeps its rate for the agreed years.",
    "To block a lost or stolen card, open the app, choose the card and tap Block, or call us at any hour.",
    "Interest on savings is paid at the end of each quarter.",
    "Transfers to accounts in other countries take up to three working days.",
)


@pytest.fixture(scope="module")
def minilm(cloud: Cloud) -> Iterator[Served]:
    cloud.neo("model", "add", MODEL, seconds=400)
    shape = ("--platform", "cpu-local", "--preset", "1vcpu-4gb")
    deployed = cloud.neo("deploy", MODEL, *shape, "--price", "0.01", seconds=400)
    assert "/v1/embeddings" in deployed.stdout
    yield Served(cloud, MODEL, Path())
    cloud.neo("deployment", "delete", MODEL, "--yes")
    cloud.neo("model", "delete", MODEL, "--yes")


@pytest.fixture(scope="module")
def client(minilm: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=minilm.gateway, api_key=minilm.token(), timeout=120) as client:
        yield client


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_it_says_what_it_is(minilm: Served) -> None:
    model = json.loads(minilm.cloud.neo("model", "get", MODEL, "--output", "json").stdout)
    assert (model["spec"]["license"], model["status"]["task"]) == ("Apache-2.0", "EMBED")
    assert (int(model["status"]["context_length"]), int(model["status"]["parameters"])) == (256, 22_713_216)


def test_its_vectors_are_those_of_the_original(client: openai.OpenAI) -> None:
    texts = [BLOCKED, BEES, PARAPHRASE]
    answer = client.embeddings.create(model=MODEL, input=texts)  # asks for base64
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TOKENS)
    found = {text: each.embedding for text, each in zip(texts, answer.data, strict=True)}
    for text, numbers in ORIGINAL.items():
        assert len(found[text]) == 384 and math.isclose(dot(found[text], found[text]), 1, abs_tol=1e-3)
        assert found[text][: len(numbers)] == pytest.approx(numbers, abs=TOLERANCE)
    assert dot(found[BLOCKED], found[PARAPHRASE]) > dot(found[BLOCKED], found[BEES]) + 0.5
    by_tokens = client.embeddings.create(model=MODEL, input=[TOKENS], encoding_format="float")
    assert by_tokens.data[0].embedding == pytest.approx(found[BLOCKED], abs=TOLERANCE)
    assert by_tokens.usage.prompt_tokens == len(TOKENS)


def test_it_puts_the_right_passage_first(minilm: Served) -> None:
    question = "What must I do when I have lost my card?"
    said = minilm.cloud.neo("embed", MODEL, "--query", question, *PASSAGES, "--output", "json")
    ranked = json.loads(said.stdout)
    assert [each["index"] for each in ranked][0] == 2 and len(ranked) == len(PASSAGES)
    scores = [each["relevance_score"] for each in ranked]
    assert scores == sorted(scores, reverse=True) and scores[0] - scores[1] > 0.1


def test_what_it_cannot_read_is_refused_and_it_goes_on(client: openai.OpenAI) -> None:
    long = "word " * 1000
    for asked, complaint in (
        (long, "256"),
        ([[101, 40_000, 102]], "check_embedding_ctx_length"),
        ([[0] * 1000], "256"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=MODEL, input=asked)
        assert complaint in caught.value.message, caught.value.message
    with pytest.raises(openai.BadRequestError, match="Matryoshka"):
        client.embeddings.create(model=MODEL, input="a", dimensions=64)
    cut = client.embeddings.create(model=MODEL, input=long, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 256


def test_a_question_is_answered_from_documents(
    minilm: Served, served: Served, client: openai.OpenAI, tmp_path: Path
) -> None:
    """RAG-05: documents of a bank, found by the real model in words that they do not use, and told to another
    one with their source. A document that is replaced changes the answer at once."""
    for number, passage in enumerate(PASSAGES):
        (tmp_path / f"passage-{number}.txt").write_text(passage)
    files = [str(path) for path in sorted(tmp_path.glob("*.txt"))]
    neo = minilm.cloud.neo
    neo("vector-store", "create", "bank", *files)
    found = json.loads(neo("vector-store", "search", "bank", "my debit card was stolen", "-o", "json").stdout)
    assert found[0]["filename"] == "passage-2.txt" and found[0]["score"] > found[1]["score"] + 0.1
    store = next(each.id for each in client.vector_stores.list() if each.name == "bank")
    tool: Any = {"type": "file_search", "vector_store_ids": [store], "max_num_results": 1}
    question = "Somebody took my wallet with my debit card. What now?"
    with client.responses.stream(
        model=served.name,
        input=question,
        tools=[tool],
        include=["file_search_call.results"],
        max_output_tokens=20,
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_response()
    assert {"response.file_search_call.completed", "response.output_text.delta"} <= kinds
    search, message = answer.output
    assert search.type == "file_search_call" and search.results and search.results[0].text == PASSAGES[2]
    assert message.type == "message" and message.content[0].type == "output_text"
    assert [each.filename for each in message.content[0].annotations] == ["passage-2.txt"]  # type: ignore[union-attr]
    assert answer.usage and answer.usage.input_tokens > 40 and answer.usage.output_tokens > 0
    client.vector_stores.files.delete(file_id=search.results[0].file_id or "", vector_store_id=store)
    after = client.responses.create(
        model=served.name,
        input=question,
        tools=[tool],
        include=["file_search_call.results"],
        max_output_tokens=5,
    )
    assert after.output[0].type == "file_search_call" and after.output[0].results
    assert after.output[0].results[0].text != PASSAGES[2]
    neo("vector-store", "delete", "bank", "--yes")
