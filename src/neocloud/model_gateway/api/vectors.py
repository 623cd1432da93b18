"""Check the input of /v1/embeddings and /v1/rerank, and translate rankings.

A text is a string, or a list of token numbers. One wrong item makes a model server refuse, or crash at, a
whole request, so each is checked here, and the error names its place.

Documents to rank are strings or objects with a `text`, as clients of Cohere and Jina send them; model servers
get strings. A model server repeats the documents in its answer; clients get them where they ask for them.
"""

from collections.abc import Mapping

import orjson

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.api.fields import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, RESPONSES

PATHS_OF_TASK: Mapping[str, tuple[str, ...]] = {
    "GENERATE": (CHAT, COMPLETIONS, RESPONSES),
    "EMBED": (EMBEDDINGS, RERANK),
    "RERANK": (RERANK,),
}
"""The paths that a deployment serves, by its task."""
VECTOR_PATHS = (EMBEDDINGS, RERANK)
MAX_EMBEDDING_INPUTS = 2048
"""The limit of OpenAI."""
MAX_DOCUMENTS = 1000
"""The limit of Cohere."""
MAX_DIMENSIONS = 65_536
MAX_TOKEN_NUMBER = 2**31 - 1
"""Model servers read token numbers into 32 bits. They know the vocabulary, and refuse the rest."""
MAX_TRUNCATED_TOKENS = 2**26
WHOLE_CONTEXT = -1
"""The value of `truncate_prompt_tokens` that stands for the model's context length."""
ENCODINGS = ("float", "base64")


def check_vectors(path: str, body: JsonObject) -> None:
    """Check a body of a path in VECTOR_PATHS; documents become strings. Raises OpenAiError 400.

    Fields that are null are removed: model servers accept some of them only absent.
    """
    for name in [name for name, value in body.items() if value is None]:
        del body[name]
    _check_number(body, "truncate_prompt_tokens", WHOLE_CONTEXT, MAX_TRUNCATED_TOKENS)
    if path == EMBEDDINGS:
        _check_embeddings(body)
    else:
        _check_ranking(body)


def _check_embeddings(body: JsonObject) -> None:
    _check_number(body, "dimensions", 1, MAX_DIMENSIONS)
    if body.get("encoding_format", "float") not in ENCODINGS:
        allowed = " or ".join(ENCODINGS)
        raise bad_request(
            f"encoding_format must be {allowed}.", param="encoding_format", code="invalid_value"
        )
    value = body.get("input")
    if isinstance(value, str):
        _require_text(value, "input", "input")
    elif isinstance(value, list) and value:
        if isinstance(value[0], int):
            _check_tokens(value, "input")
            return
        for position, item in enumerate(value):
            place = f"input[{position}]"
            if isinstance(item, list):
                _check_tokens(item, place)
            elif isinstance(item, str):
                _require_text(item, place, "input")
            else:
                raise _wrong_type("input", f"{place} must be a string or a list of token numbers.")
        _require_one_kind(value)


def _require_one_kind(items: list[Json]) -> None:
    if len({isinstance(item, str) for item in items}) > 1:
        raise _wrong_type(
            "input", "input mixes strings and lists of token numbers. Send one kind per request."
        )


def _check_tokens(tokens: list[Json], place: str) -> None:
    if not tokens:
        raise bad_request(f"{place} is empty.", param="input", code="invalid_value")
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int):
            raise _wrong_type("input", f"{place} must hold token numbers only, which are integers.")
        if not 0 <= token <= MAX_TOKEN_NUMBER:
            raise bad_request(
                f"{place} has the token number {token}, which no model has.",
                param="input",
                code="invalid_value",
            )


def _require_text(text: str, place: str, param: str) -> None:
    if not text:
        raise bad_request(f"{place} is an empty string.", param=param, code="invalid_value")


def _check_ranking(body: JsonObject) -> None:
    query = body.get("query")
    if not isinstance(query, str):
        raise _wrong_type("query", "query must be a string.")
    _require_text(query, "query", "query")
    _check_number(body, "top_n", 1, None)
    _check_number(body, "max_tokens_per_doc", 1, MAX_TRUNCATED_TOKENS)
    asked = body.get("return_documents")
    if asked is not None and not isinstance(asked, bool):
        raise _wrong_type("return_documents", "return_documents must be true or false.")
    documents = body.get("documents")
    if isinstance(documents, list):
        body["documents"] = [_text_of(document, position) for position, document in enumerate(documents)]
    elif "documents" in body:
        raise _wrong_type("documents", "documents must be a list.")


def _text_of(document: Json, position: int) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise _wrong_type(
            "documents", f"documents[{position}] must be a string, or an object whose text is one."
        )
    _require_text(text, f"documents[{position}]", "documents")
    return text


def _check_number(body: JsonObject, name: str, least: int, most: int | None) -> None:
    value = body.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(name, f"{name} must be an integer.")
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"between {least} and {most}"
        raise bad_request(f"{name} must be {allowed}, not {value}.", param=name, code="invalid_value")


def _wrong_type(param: str, message: str) -> OpenAiError:
    return bad_request(message, param=param, code="invalid_type")


def query_bytes(body: Mapping[str, Json]) -> int:
    """Return the bytes of a query as often as a model may read it: once with each document."""
    query, documents = body.get("query"), body.get("documents")
    length = len(query.encode()) if isinstance(query, str) else 0
    return length * (len(documents) if isinstance(documents, list) else 1)


def refused_path(model: str, task: str, path: str) -> OpenAiError | None:
    """Return the error of a request to a path that a model of this task does not serve."""
    served = PATHS_OF_TASK.get(task, PATHS_OF_TASK["GENERATE"])
    if path in served:
        return None
    use = " or ".join(f"POST {each}" for each in served)
    if task == "EMBED":
        does = f"only serves embeddings: use {use}."
    elif task == "RERANK":
        does = f"only ranks documents: use {use}."
    else:
        missing = "does not serve embeddings" if path == EMBEDDINGS else "does not rank documents"
        does = (
            f"generates text and {missing}: use {use}, or deploy an embedding model with"
            " `neo deploy MODEL --task embed`."
        )
    return bad_request(f"The model {model!r} {does}", param="model", code="model_not_for_this_endpoint")


def ranking(body: Mapping[str, Json], answer: bytes) -> bytes:
    """Return a model server's ranking as clients get it. Raises ValueError where it is none."""
    found: Json = orjson.loads(answer)
    results = found.get("results") if isinstance(found, dict) else None
    documents = body.get("documents")
    if not isinstance(found, dict) or not isinstance(results, list) or not isinstance(documents, list):
        raise ValueError("it has no list of results")
    ranked = [_result(each, documents, shows_text=body.get("return_documents") is True) for each in results]
    ranked.sort(key=lambda each: each[0], reverse=True)
    usage = found.get("usage")
    return orjson.dumps(
        {
            "id": found.get("id"),
            "object": "list",
            "model": found.get("model"),
            "results": [result for _, result in ranked],
            "usage": usage if isinstance(usage, dict) else {},
        }
    )


def _result(each: Json, documents: list[Json], *, shows_text: bool) -> tuple[float, JsonObject]:
    index = each.get("index") if isinstance(each, dict) else None
    score = each.get("relevance_score") if isinstance(each, dict) else None
    if not isinstance(index, int) or not 0 <= index < len(documents) or not isinstance(score, int | float):
        raise ValueError("a result has no index or no score")
    result: JsonObject = {"index": index, "relevance_score": score}
    if shows_text:
        result["document"] = {"text": documents[index]}
    return float(score), result
