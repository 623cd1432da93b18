"""Tokens of an answer, read from the engine's bytes; and the usage event kept from clients who did not ask.

Streams pass as whole events without being parsed: only an event that has the word `"usage"` outside of a text
is looked into. That word cannot stand inside of a JSON text, where quotes are escaped.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one request."""

    input: int
    cached_input: int
    """Of the input: found in the engine's cache."""
    output: int
    is_estimated: bool = False
    """Counted by us, as the engine did not get to tell: the client left, or a replica died."""


@dataclass(frozen=True)
class RequestStart:
    """What is known of a request before it is sent on."""

    request_id: str
    tenant_id: str
    project_id: str
    """Who pays."""
    subject_id: str
    deployment_id: str
    model_name: str
    """As the client said it: the price list and the usage report know it by this name."""
    input_tokens: int
    """Estimated; what limits and budgets set aside."""
    max_output_tokens: int
    is_batch: bool = False
    """Batches take no part of the live limits."""


_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_MARK = b'"usage"'
_END = b"\n\n"
_DECODER = json.JSONDecoder()
MAX_EVENT_BYTES = 64 * 1024 * 1024


class EventTooLong(Exception):
    """An engine sends what is not a stream of events."""


class EventStream:
    """Of one answer. `push` what comes, pass on what it gives; half an event waits for its other half."""

    __slots__ = ("_hides_usage", "_rest", "_rest_size", "events", "is_done", "usage")

    def __init__(self, *, hides_usage: bool) -> None:
        self._hides_usage = hides_usage
        self._rest: list[bytes] = []
        self._rest_size = 0
        self.usage: TokenUsage | None = None
        self.events = 0
        """Passed on so far: an engine sends one for a token, or for a few."""
        self.is_done = False
        """The engine ended the stream in words, not just in bytes."""

    def push(self, data: bytes) -> bytes:
        if self._rest:
            data = b"".join((*self._rest, data))
            self._rest.clear()
            self._rest_size = 0
        if not data.endswith(_END):
            end = data.rfind(_END) + 2
            if end == 1:
                self._hold(data)
                return b""
            self._hold(data[end:])
            data = data[:end]
        if _MARK in data and _USAGE.search(data):
            data = self._look_into(data)
        self.events += data.count(_END)
        return data

    def _hold(self, rest: bytes) -> None:
        self._rest.append(rest)
        self._rest_size += len(rest)
        if self._rest_size > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")

    def _look_into(self, data: bytes) -> bytes:
        """Only at the events that have usage: mostly one, the last."""
        kept, done = [], 0
        for match in _USAGE.finditer(data):
            place = match.start()
            if place < done:
                continue  # in an event that was looked at
            before = data.rfind(_END, done, place)
            start = done if before < 0 else before + 2
            end = data.index(_END, place) + 2
            kept.append(data[done:start])
            event = data[start:end]
            if not self._is_usage(event):
                kept.append(event)
            done = end
        kept.append(data[done:])
        return b"".join(kept)

    def _is_usage(self, event: bytes) -> bool:
        """Takes the numbers; True for an event that has nothing else and is not to be seen."""
        start = event.find(b"data:")
        try:
            content = orjson.loads(event[start + 5 :])
        except orjson.JSONDecodeError:
            return False
        found = usage_in(content)
        if found is not None:
            self.usage = found
        return self._hides_usage and content.get("choices") == []


def usage_in(content: Any) -> TokenUsage | None:
    """Of an answer, or of a stream's last event, in either of OpenAI's two shapes."""
    if not isinstance(content, dict):
        return None
    usage = content.get("usage")
    if usage is None and isinstance(content.get("response"), dict):  # an event of /v1/responses
        usage = content["response"].get("usage")
    return token_usage(usage) if isinstance(usage, dict) else None


def token_usage(usage: dict[str, Any]) -> TokenUsage | None:
    if "prompt_tokens" in usage:
        asked, said, details = "prompt_tokens", "completion_tokens", "prompt_tokens_details"
    else:
        asked, said, details = "input_tokens", "output_tokens", "input_tokens_details"
    if not isinstance(usage.get(asked), int):
        return None
    cached = (usage.get(details) or {}).get("cached_tokens") or 0
    return TokenUsage(input=usage[asked], cached_input=cached, output=usage.get(said) or 0)


def usage_of_answer(data: bytes) -> TokenUsage | None:
    """From a whole answer, without reading all of it: engines say usage near the end."""
    places = [match.end() - 1 for match in _USAGE.finditer(data)]
    for place in reversed(places):
        try:
            usage, _ = _DECODER.raw_decode(data[place : place + 4096].decode("utf-8", "replace"))
        except ValueError:
            continue
        found = token_usage(usage)
        if found is not None:
            return found
    return None
