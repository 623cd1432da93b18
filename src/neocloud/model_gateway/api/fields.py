"""Check the JSON of callers: its depth and size, and which fields and media may reach the model server.

All JSON of tenants is read by `parse_json`. It counts values in the bytes before anything is built from them:
ten million empty lists are 30 MB of text and a gigabyte of memory.

OpenAI's fields pass, and vLLM's harmless sampling parameters. All other fields are rejected by name, as the
OpenAI API does: some would let a caller choose the chat template (a program), transfers of the KV cache to
other hosts, the priority over other tenants, or the setup of the image processor. Among media, only `data:`
URLs and https URLs of allowed hosts pass, since a model server fetches URLs from inside the operator's
network.
"""

import re
from collections.abc import Iterator, Mapping, Set
from ipaddress import ip_address
from urllib.parse import urlsplit

import orjson

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request

MAX_DEPTH = 64
"""Levels of lists and objects. JSON schemas of tools, the deepest that clients send, have some twenty."""
MAX_VALUES = 500_000
"""Values of one body or line: a body of 128 prompts of 3,900 token numbers each."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


class InvalidJson(ValueError):
    """The message says what is wrong, as the end of a sentence that names the text."""

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"{reason} at line {line}, column {column}" if line else reason)
        self.of_line = f"{reason} at column {column}" if line else reason
        """The message where the text is a line of a file."""


def parse_json(raw: bytes | bytearray) -> Json:
    """Return the value of a JSON text. Raises InvalidJson."""
    opened = raw.count(b"[") + raw.count(b"{")
    if opened + raw.count(b",") > MAX_VALUES:
        _require_few_values(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"is not valid JSON: {error.msg}", error.lineno, error.colno) from None
    if opened > MAX_DEPTH:
        _require_flat(value)
    return value


def _require_few_values(raw: bytes | bytearray) -> None:
    """Count again, ignoring the contents of strings."""
    bare = _STRING.sub(b"", raw)
    if bare.count(b"[") + bare.count(b"{") + bare.count(b",") > MAX_VALUES:
        raise InvalidJson(f"has more than {MAX_VALUES} values")


def _require_flat(value: Json) -> None:
    """Check level by level, since deep texts would exhaust Python's stack."""
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                below += [child for child in each.values() if isinstance(child, dict | list)]
            elif isinstance(each, list):
                below += [child for child in each if isinstance(child, dict | list)]
        if not below:
            return
        level = below
    raise InvalidJson(f"is nested more than {MAX_DEPTH} levels deep")


MAX_MEDIA = 64
"""Images, sounds and videos of one request."""
_REFUSED_TYPES = ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil")
"""Tensors, which a model server reads with code that trusts them."""


def check_media(value: Json, param: str, allowed: Set[str]) -> None:
    """Check all media in a value of the input. Raises OpenAiError 400.

    `parse_json` bounds the depth of the recursion.
    """
    for url in _urls(value, param):
        if not _is_allowed(url, allowed):
            raise _refused_url(url, param, allowed)


def _urls(value: Json, param: str) -> Iterator[Json]:
    """Yield every value under a key that model servers take for a URL."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict | list):
                yield from _urls(each, param)
    elif isinstance(value, dict):
        kind = value.get("type")
        if kind in _REFUSED_TYPES or not value.keys().isdisjoint(_REFUSED_TYPES):
            raise bad_request("Media embeddings are not accepted. Send the media itself.", param=param)
        for key, each in value.items():
            if key.endswith("_url"):
                yield each.get("url") if isinstance(each, dict) else each
            if key != "annotations" and isinstance(each, dict | list):
                yield from _urls(each, param)


def _is_allowed(url: Json, allowed: Set[str]) -> bool:
    if url is None:
        return True  # the model server reports what is missing
    if not isinstance(url, str):
        return False
    if url[:5].lower() == "data:":
        return True
    if not allowed or not url.isascii() or not url.isprintable() or "\\" in url or " " in url:
        return False
    try:
        found = urlsplit(url)
        host, has_login, _ = found.hostname or "", "@" in found.netloc, found.port
    except ValueError:
        return False
    return found.scheme == "https" and not has_login and host in allowed and not _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _refused_url(url: Json, param: str, allowed: Set[str]) -> OpenAiError:
    hosts = f" or an https URL on {', '.join(sorted(allowed))}" if allowed else ""
    return bad_request(
        f"The URL {str(url)[:80]!r} is not allowed. Send the media as a data: URL{hosts}.",
        param=param,
        code="media_url_not_allowed",
    )


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
RESPONSES = "/v1/responses"

MAX_ENTRIES: Mapping[str, int] = {
    "stop": 64,
    "bad_words": 64,
    "stop_token_ids": 1024,
    "logit_bias": 1024,
    "tools": 128,
    "functions": 128,
    "metadata": 16,
    "chat_template_kwargs": 32,
}
"""Most entries of a field that is a list or an object."""
MAX_TEMPLATE_TEXT = 1024
"""Most characters of a string in `chat_template_kwargs`."""

_EVERYWHERE = frozenset(("model", "user"))
_SAMPLING = frozenset(
    (
        *("frequency_penalty", "presence_penalty", "temperature", "top_p", "seed", "stop", "logit_bias"),
        *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output"),
        *("ignore_eos", "skip_special_tokens", "structured_outputs", "cache_salt", "stream"),
        *("stream_options", "truncate_prompt_tokens", "truncation_side"),
    )
)
_TEXT = frozenset(
    (
        *("n", "max_tokens", "logprobs", "response_format", "length_penalty", "min_tokens", "echo"),
        *("spaces_between_special_tokens", "prompt_logprobs", "logprob_token_ids", "allowed_token_ids"),
        *("bad_words", "add_special_tokens", "return_tokens_as_token_ids", "return_token_ids"),
        *("repetition_detection", "thinking_token_budget"),
    )
)
_OPENAI_ACCOUNT = frozenset(
    (
        *("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        "prompt_cache_retention",
    )
)
ALLOWED: Mapping[str, frozenset[str]] = {
    CHAT: _EVERYWHERE
    | _SAMPLING
    | _TEXT
    | _OPENAI_ACCOUNT
    | {
        *("messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "functions"),
        *("function_call", "parallel_tool_calls", "reasoning_effort", "verbosity", "modalities", "audio"),
        *("prediction", "web_search_options", "chat_template_kwargs", "add_generation_prompt"),
        "continue_final_message",
    },
    COMPLETIONS: _EVERYWHERE | _SAMPLING | _TEXT | {"prompt", "suffix", "best_of"},
    EMBEDDINGS: _EVERYWHERE
    | {
        *("input", "encoding_format", "dimensions", "truncate_prompt_tokens", "truncation_side"),
        *("add_special_tokens", "embed_dtype", "endianness"),
    },
    RERANK: _EVERYWHERE
    | {
        *("query", "documents", "top_n", "return_documents", "max_tokens_per_doc"),
        *("truncate_prompt_tokens", "truncation_side"),
    },
    RESPONSES: _EVERYWHERE
    | _SAMPLING
    | _OPENAI_ACCOUNT
    | {
        *("input", "instructions", "include", "max_output_tokens", "max_tool_calls", "reasoning", "text"),
        *("parallel_tool_calls", "tool_choice", "tools", "top_logprobs", "truncation"),
        "chat_template_kwargs",
    },
}
"""Allowed fields by path."""
OPERATORS = frozenset(
    (
        *("chat_template", "kv_transfer_params", "ec_transfer_params", "priority", "mm_processor_kwargs"),
        *("media_io_kwargs", "vllm_xargs", "logits_processors", "request_id", "session_id", "mm_payload"),
        *("return_mm_kwargs", "routed_experts_prompt_start", "prompt_embeds", "stream_interval"),
        *("include_reasoning", "use_beam_search", "watermarking", "documents"),
    )
)
"""Fields of vLLM that callers cannot set: they change how the model server works, or hide its work from the
gateway."""
NOT_STORED = frozenset(("background", "previous_response_id", "conversation", "prompt"))
"""Fields of /v1/responses that model servers do not get; `retrieval.responses` reads an earlier id first."""
STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation", "continuous_usage_stats"))
_TEMPLATE_NAMES = frozenset(("chat_template", "tokenize", "conversation", "messages", "tools", "documents"))
"""Names that the model server itself passes to the template."""
_CHECKED = frozenset((*MAX_ENTRIES, "stream_options"))


def check_fields(path: str, body: JsonObject) -> None:
    """Raise OpenAiError 400 that names an unsupported field. Unsupported fields that are null are removed."""
    allowed = ALLOWED[path]
    if not body.keys() <= allowed:
        for name in body.keys() - allowed:
            if body[name] is not None and not (name == "background" and body[name] is False):
                raise _refused_field(path, name)
            del body[name]
    for name in body.keys() & _CHECKED:
        _check_field(path, name, body[name])


def _check_field(path: str, name: str, value: Json) -> None:
    most = MAX_ENTRIES.get(name)
    if most is not None and isinstance(value, list | dict) and len(value) > most:
        raise bad_request(f"{name} has more than {most} entries.", param=name, code="invalid_value")
    if name == "chat_template_kwargs":
        _check_template(value)
    elif name == "stream_options" and isinstance(value, dict):
        unknown = next((option for option in value if option not in STREAM_OPTIONS), None)
        if unknown is not None:
            raise _unknown_field(path, f"stream_options.{unknown[:64]}")
    elif name == "tools" and path == RESPONSES and isinstance(value, list):
        for tool in value:
            if isinstance(tool, dict) and tool.get("type") not in ("function", "custom"):
                kind = str(tool.get("type"))[:64]
                found = f"The tool type {kind!r} is not supported. Use function, custom or file_search."
                raise bad_request(found, param="tools", code="invalid_value")


def _check_template(value: Json) -> None:
    """Accept switches such as `enable_thinking`, and no name of the template or its input."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise bad_request("chat_template_kwargs must be an object.", param="chat_template_kwargs")
    for name, each in value.items():
        is_plain = each is None or isinstance(each, bool | int | float | str)
        if isinstance(each, str) and len(each) > MAX_TEMPLATE_TEXT:
            is_plain = False
        if not is_plain or name in _TEMPLATE_NAMES:
            raise bad_request(
                f"chat_template_kwargs.{name[:64]} is not allowed: values must be booleans, numbers or short"
                " strings, and names of the template's own input are reserved.",
                param="chat_template_kwargs",
                code="invalid_value",
            )


def _refused_field(path: str, name: str) -> OpenAiError:
    if name in OPERATORS:
        return bad_request(
            f"{name} cannot be set by callers. Remove it.",
            param=name,
            code="parameter_not_allowed",
        )
    if path == RESPONSES and name in NOT_STORED:
        return bad_request(
            f"{name} is not supported. Send the whole conversation in input, or the `previous_response_id` of"
            " a stored response.",
            param=name,
            code="parameter_not_allowed",
        )
    return _unknown_field(path, name[:64])


def _unknown_field(path: str, name: str) -> OpenAiError:
    return bad_request(
        f"Unknown parameter {name!r} at {path}. Remove it.", param=name, code="unknown_parameter"
    )
