"""Measure the input of a model request before the model server counts its tokens exactly."""

import re
from collections.abc import Mapping, Set

import orjson

from neocloud.core.contract.json_codec import Json
from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.api.fields import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MAX_MEDIA,
    RERANK,
    RESPONSES,
    check_media,
)
from neocloud.model_gateway.api.vectors import query_bytes

INPUT_FIELD = {
    CHAT: "messages",
    COMPLETIONS: "prompt",
    EMBEDDINGS: "input",
    RERANK: "documents",
    RESPONSES: "input",
}
BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1024
PREFIX_LENGTH = 1024


def wrong_type(name: str, expected: str) -> OpenAiError:
    return bad_request(f"{name} must be {expected}.", param=name, code="invalid_type")


def measure(path: str, body: Mapping[str, Json], media_domains: Set[str]) -> tuple[int, int, str]:
    """Return (bytes of text, images, prefix) of the input. Tools count by their text."""
    name = INPUT_FIELD[path]
    value = body.get(name)
    if value is None or value == []:
        if name in body or path != RESPONSES:
            raise bad_request(f"{name} is missing or empty.", param=name, code="missing_required_parameter")
        return 0, 0, ""
    if isinstance(value, str) and path != CHAT:
        return _length(value), 0, value[:PREFIX_LENGTH]
    if not isinstance(value, list):
        raise wrong_type(name, "a list" if path == CHAT else "a string or a list")
    size, images = _measure_items(value, name, media_domains)
    if images > MAX_MEDIA:
        found = f"{name} has {images} images, sounds and videos; the limit is {MAX_MEDIA} per request."
        raise bad_request(found, param=name, code="too_many_media")
    for field_name in ("tools", "functions"):
        extra = body.get(field_name)
        if isinstance(extra, list):
            size += len(orjson.dumps(extra))
    instructions = body.get("instructions")
    if path == RESPONSES and isinstance(instructions, str):
        size += _length(instructions)
    if path == RERANK:
        size += query_bytes(body)
    return size, images, "".join([_start(item) for item in value[:2]])[:PREFIX_LENGTH]


def _start(item: Json) -> str:
    """Return enough of a message to recognize it. `repr` of all of it would copy long texts."""
    content = item.get("content") if isinstance(item, dict) else item
    return content[:PREFIX_LENGTH] if isinstance(content, str) else repr(content)[:PREFIX_LENGTH]


def _measure_items(items: list[Json], name: str, media_domains: Set[str]) -> tuple[int, int]:
    size = images = 0
    for position, item in enumerate(items):
        if isinstance(item, dict):
            content = item.get("content")
            if isinstance(content, str):
                size += _length(content) + BYTES_PER_TOKEN  # the template's text around it
            elif isinstance(content, list):
                more, pictures = _measure_parts(content)
                size, images = size + more, images + pictures
            if not isinstance(content, str) or len(item) > 2:
                check_media(item, name, media_domains)
            calls = item.get("tool_calls")
            if isinstance(calls, list):
                _check_calls(calls, f"messages[{position}].tool_calls")
                size += len(orjson.dumps(calls))
            output = item.get("output")
            if name == "input" and output is not None:  # of a tool, in /v1/responses
                size += _length(output) if isinstance(output, str) else len(orjson.dumps(output))
                images += _measure_parts(output)[1] if isinstance(output, list) else 0
        elif name == "messages":
            raise bad_request(
                f"messages[{position}] must be an object with a role.", param="messages", code="invalid_type"
            )
        elif isinstance(item, str):
            size += _length(item)
        elif isinstance(item, int):
            size += BYTES_PER_TOKEN  # a token's number
        elif isinstance(item, list):
            size += BYTES_PER_TOKEN * len(item)
        else:
            raise bad_request(
                f"Item {position} of the input is neither a string nor a list of tokens.", code="invalid_type"
            )
    return size, images


def _check_calls(calls: list[Json], name: str) -> None:
    """Raise OpenAiError 400 that names a call whose arguments are no text, as the model server cannot."""
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and not isinstance(function.get("arguments", ""), str):
            place = f"{name}[{number}].function.arguments"
            raise bad_request(f"{place} must be a string that holds JSON.", param=place, code="invalid_type")
        if not isinstance(call, dict):
            raise bad_request(f"{name}[{number}] must be an object.", param=name, code="invalid_type")


_MEDIA_TYPE = re.compile("image|audio|video|file")


def _measure_parts(parts: list[Json]) -> tuple[int, int]:
    size = images = 0
    for part in parts:
        if isinstance(part, dict):
            text = part.get("text")
            is_text = isinstance(text, str)
            size += _length(text) if isinstance(text, str) else 0
            urls = sum(key.endswith("_url") for key in part)
            is_media = not is_text or bool(_MEDIA_TYPE.search(str(part.get("type"))))
            images += max(urls, int(is_media))
    return size, images


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
