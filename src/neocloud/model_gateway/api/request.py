"""Parse a model request: the few fields that the gateway reads, and their checks.

Other fields that `fields` allows pass to the model server unchanged. All work is bounded by the size of the
body, which is limited before it is read.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field

import orjson

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import bad_request
from neocloud.model_gateway.api.fields import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RERANK,
    RESPONSES,
    InvalidJson,
    check_fields,
    parse_json,
)
from neocloud.model_gateway.api.lengths import (
    BYTES_PER_TOKEN,
    IMAGE_TOKENS,
    INPUT_FIELD,
    measure,
    wrong_type,
)
from neocloud.model_gateway.api.vectors import (
    MAX_DOCUMENTS,
    MAX_EMBEDDING_INPUTS,
    VECTOR_PATHS,
    check_vectors,
    ranking,
    refused_path,
)
from neocloud.model_gateway.authentication import Caller
from neocloud.model_gateway.compiled.reading import Compiled, read_compiled

OUTPUT_FIELDS = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    EMBEDDINGS: (),
    RERANK: (),
    RESPONSES: ("max_output_tokens",),
}
LONGEST_TOKEN = 16
"""Bytes. A prompt with more than this per token of the context is too long for any tokenizer."""
MAX_CHOICES = 128
MAX_PROMPTS = 128
MAX_SEQUENCES = 1024
"""Prompts times choices of one request of /v1/completions."""
DEFAULT_OUTPUT_TOKENS = 4096
"""Reserved for a response without max_tokens of a model whose context length is not known."""
COMPLETIONS_DEFAULT_TOKENS = 16
"""Default of OpenAI and vLLM for /v1/completions without max_tokens."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    path: str
    body: JsonObject
    model: str
    is_stream: bool
    shows_usage: bool
    """The client requested the usage event."""
    shows_each_usage: bool
    """The client requested usage in each event."""
    choices: int
    prompts: int
    """Number of prompts. Each gets as many completions as there are choices."""
    max_output_tokens: int | None
    """Requested limit of one choice."""
    input_bytes: int
    images: int
    prefix: str
    """Start of the input: requests with the same prefix profit from one replica's cache."""
    compiled: Compiled | None = None
    """The data that the model server compiles for it."""

    @property
    def input_tokens(self) -> int:
        return self.input_bytes // BYTES_PER_TOKEN + 1 + self.images * IMAGE_TOKENS

    @property
    def sequences(self) -> int:
        """Number of sequences that the model server generates."""
        return self.choices * self.prompts

    def require_task(self, task: str) -> None:
        """Raise OpenAiError where a model of this task does not serve this path, whether or not a replica
        runs."""
        refused = refused_path(self.model, task, self.path)
        if refused is not None:
            raise refused

    def require_demanded_call(self) -> None:
        """Raise OpenAiError where the model may choose to call a tool, which it would never be shown."""
        tools = self.body.get("tools")
        has_functions = isinstance(tools, list) and any(
            isinstance(each, dict) and each.get("type") == "function" for each in tools
        )
        if has_functions and self.body.get("tool_choice") in (None, "auto"):
            raise bad_request(
                f"The chat template of {self.model!r} leaves tools out, so it would never call one by itself."
                ' Set tool_choice to "required" or to a function: the call then follows its schema. Or use a'
                " model whose template shows tools.",
                param="tool_choice",
                code="tools_not_shown",
            )

    def require_length(self, context_length: int) -> None:
        """Raise OpenAiError where the request is certainly too long. The model server counts exactly
        and rejects the rest."""
        if not context_length:
            return
        is_truncated = self.path in VECTOR_PATHS and self.body.get("truncate_prompt_tokens") is not None
        if not is_truncated and self.input_bytes > context_length * LONGEST_TOKEN * self.prompts:
            raise bad_request(
                f"This model's maximum context length is {context_length} tokens, and your input of"
                f" {self.input_bytes} bytes exceeds it. Shorten the input.",
                param=INPUT_FIELD[self.path],
                code="context_length_exceeded",
            )
        if self.max_output_tokens is not None and self.max_output_tokens > context_length:
            name = next(name for name in OUTPUT_FIELDS[self.path] if self.body.get(name) is not None)
            raise bad_request(
                f"{name} is too large: {self.max_output_tokens}. This model's maximum context length is"
                f" {context_length} tokens for input and output together.",
                param=name,
                code="invalid_value",
            )

    def max_total_output_tokens(self, context_length: int) -> int:
        """Return the most tokens that the model server may generate."""
        if self.path in VECTOR_PATHS:
            return 0
        each = self.max_output_tokens
        if each is None:
            rest = max(context_length - self.input_tokens, 1) if context_length else DEFAULT_OUTPUT_TOKENS
            each = COMPLETIONS_DEFAULT_TOKENS if self.path == COMPLETIONS else rest
        return each * self.sequences

    def for_model_server(self, served_name: str) -> bytes:
        """Return the body for the model server: with its own name of the model, and usage requested in each
        event of a stream, so that one that breaks off is billed as counted."""
        body: JsonObject = {**self.body, "model": served_name}
        if self.is_stream and self.path in (CHAT, COMPLETIONS):
            options = body.get("stream_options")
            given = options if isinstance(options, dict) else {}
            body["stream_options"] = {**given, "include_usage": True, "continuous_usage_stats": True}
        body.pop("return_documents", None)
        return orjson.dumps(body)

    def for_client(self, answer: bytes) -> bytes:
        """Return the body for the client. Raises ValueError where the model server's is not of this path."""
        return ranking(self.body, answer) if self.path == RERANK else answer


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Everything that is known of a model request when it is admitted."""

    request_id: str
    caller: Caller
    project_id: str
    request: ModelRequest
    wait_seconds: float = 0.0
    """How long the client waits for a replica to start."""
    is_batch: bool = False
    refresh_caller: Callable[[], Awaitable[Caller]] | None = None
    """Returns the caller with its present permissions; called periodically while the request runs."""
    arrived_at: float = field(default_factory=time.perf_counter)


def parse_body(raw: bytes) -> JsonObject:
    """Raises OpenAiError 400 that names the character."""
    try:
        body = parse_json(raw)
    except InvalidJson as error:
        raise bad_request(f"The body {error}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return body


def read_request(path: str, body: JsonObject, media_domains: Set[str] = frozenset()) -> ModelRequest:
    """Check a body that `parse_json` returned. Raises OpenAiError 400."""
    check_fields(path, body)
    _drop_empty_tools(path, body)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request(
            "You must provide a model parameter. `neo model list` and GET /v1/models list yours.",
            param="model",
        )
    is_stream = _boolean(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise wrong_type("stream_options", "an object")
    if options is not None and not is_stream:
        raise bad_request("stream_options is only allowed when stream is true.", param="stream_options")
    if path in VECTOR_PATHS:
        check_vectors(path, body)
    size, images, prefix = measure(path, body, media_domains)
    choices = max(_whole(body, "n", MAX_CHOICES) or 1, _best_of(path, body))
    prompts = _prompts(path, body)
    if path == COMPLETIONS and choices * prompts > MAX_SEQUENCES:
        found = (
            f"{prompts} prompts with {choices} choices each exceed the limit of {MAX_SEQUENCES} completions."
        )
        raise bad_request(f"{found} Send fewer per request.", param="n", code="invalid_value")
    return ModelRequest(
        path=path,
        body=body,
        model=model,
        is_stream=is_stream,
        shows_usage=bool(options and options.get("include_usage")),
        shows_each_usage=bool(options and options.get("continuous_usage_stats")),
        choices=choices,
        prompts=prompts,
        max_output_tokens=_output_limit(path, body),
        input_bytes=size,
        images=images,
        prefix=prefix,
        compiled=None if path in VECTOR_PATHS else read_compiled(body),
    )


def _best_of(path: str, body: Mapping[str, Json]) -> int:
    """Return how many completions are computed for each prompt; n of them are returned."""
    return (_whole(body, "best_of", MAX_CHOICES) or 1) if path == COMPLETIONS else 1


_MAX_PROMPTS = {
    COMPLETIONS: MAX_PROMPTS,
    EMBEDDINGS: MAX_EMBEDDING_INPUTS,
    RERANK: MAX_DOCUMENTS,
}


def _prompts(path: str, body: Mapping[str, Json]) -> int:
    """Count prompts: a list of strings or of token lists has several, a list of tokens is one."""
    most = _MAX_PROMPTS.get(path)
    value = body.get(INPUT_FIELD[path])
    if most is None or not isinstance(value, list):
        return 1
    count = sum(not isinstance(item, int) for item in value) or 1
    if count > most:
        name = INPUT_FIELD[path]
        found = (
            f"{name} has {count} entries; the limit is {most} per request. Split it into several requests."
        )
        raise bad_request(found, param=name, code="too_many_prompts")
    return count


def _drop_empty_tools(path: str, body: JsonObject) -> None:
    """Treat `tools` that are empty or null as absent, with what only says how to use them."""
    if path not in (CHAT, RESPONSES) or body.get("tools") not in (None, []):
        return
    body.pop("tools", None)
    if body.get("tool_choice") not in (None, "auto", "none") and not body.get("functions"):
        raise bad_request("tool_choice needs tools, and the request has none.", param="tool_choice")
    if not body.get("functions"):
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)


def _output_limit(path: str, body: Mapping[str, Json]) -> int | None:
    if path == COMPLETIONS and body.get("echo") and body.get("max_tokens") == 0:
        return 0  # only the log-probabilities of the prompt
    limits = [_whole(body, name, None) for name in OUTPUT_FIELDS[path]]
    return next((limit for limit in limits if limit is not None), None)


def _boolean(body: Mapping[str, Json], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_type(name, "true or false")
    return bool(value)


def _whole(body: Mapping[str, Json], name: str, most: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer")
    if value < 1 or (most is not None and value > most):
        allowed = "at least 1" if most is None else f"between 1 and {most}"
        hint = " /v1/completions takes 0 with echo." if name == "max_tokens" and value == 0 else ""
        raise bad_request(f"{name} must be {allowed}, not {value}.{hint}", param=name, code="invalid_value")
    return value
