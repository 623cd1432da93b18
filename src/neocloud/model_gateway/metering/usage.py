"""Token usage of requests, read from the responses of model servers.

Streams pass as complete events. Only an event with the key `"usage"` is parsed; this key cannot be part of a
JSON string, where quotes are escaped. The usage event is hidden from clients that did not request it.
"""

import json
import re
from dataclasses import dataclass

import orjson

from neocloud.core.contract.json_codec import Json, JsonObject


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one request."""

    input: int
    cached_input: int
    """The part of the input that the model server had in its cache."""
    output: int
    is_estimated: bool = False
    """Estimated by the gateway: the client left or the replica failed before usage was reported."""


@dataclass(frozen=True)
class RequestStart:
    """The data of a request before it is sent."""

    request_id: str
    tenant_id: str
    project_id: str
    """The project that pays."""
    subject_id: str
    deployment_id: str
    model_name: str
    """The name that the client used, which price list and usage report know."""
    input_tokens: int
    """Estimated; reserved by limits and budgets."""
    max_output_tokens: int
    is_batch: bool = False
    """Batches are exempt from the limits of live requests."""


_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_MARK = b'"usage"'
_HAS_CHOICE = b'"choices":[{'
_ONE_EACH = re.compile(rb',"usage":\{(?:[^{}]|\{[^{}]*\})*\}(?=[,}])')
"""Usage in an event with a choice, with the comma before it, as model servers write it."""
MAX_INDEX = 1 << 20
_END = b"\n\n"
_DECODER = json.JSONDecoder()
MAX_EVENT_BYTES = 64 * 1024 * 1024


class EventTooLong(Exception):
    """A model server sends something that is not a stream of events."""


class EventStream:
    """Splits a stream into complete events: `push` bytes and pass on what it returns.

    Model servers count in each event what its choice has so far; a prompt has so many `choices`.
    """

    __slots__ = (
        "_choices",
        "_counts",
        "_hides_each",
        "_hides_usage",
        "_last",
        "_rest",
        "_rest_size",
        "_total",
        "events",
        "is_done",
    )

    def __init__(self, *, hides_usage: bool, hides_each: bool = False, choices: int = 1) -> None:
        self._hides_usage = hides_usage
        self._hides_each = hides_each
        self._choices = choices
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._total: TokenUsage | None = None
        self._counts: dict[int, TokenUsage] = {}
        """The last usage of each choice."""
        self._last = b""
        """An event whose usage was not read yet."""
        self.events = 0
        """Events passed on so far. A model server sends one for a token or a few."""
        self.is_done = False
        """The stream has ended with its final event."""

    @property
    def usage(self) -> TokenUsage | None:
        """Return the usage of the whole stream; None before its end."""
        return self._total

    @property
    def usage_so_far(self) -> TokenUsage | None:
        """Return the usage counted up to the last event; None if the model server counts at the end."""
        if self._total is not None:
            return self._total
        self._read_last()
        if not self._counts:
            return None
        prompts = {index // self._choices: usage for index, usage in self._counts.items()}
        return TokenUsage(
            input=sum(usage.input for usage in prompts.values()),
            cached_input=sum(usage.cached_input for usage in prompts.values()),
            output=sum(usage.output for usage in self._counts.values()),
        )

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
        """Read usage from events, and hide it where the client did not ask for it."""
        kept: list[bytes] = []
        done = 0
        for match in _USAGE.finditer(data):
            place = match.start()
            if place < done:
                continue  # in an event that was read
            before = data.rfind(_END, done, place)
            start = done if before < 0 else before + 2
            end = data.index(_END, place) + 2
            kept.append(data[done:start])
            kept.append(self._shown(data[start:end]))
            done = end
        kept.append(data[done:])
        return b"".join(kept)

    def _shown(self, event: bytes) -> bytes:
        """Return what the client sees of an event with usage."""
        if _HAS_CHOICE in event and _ONE_EACH.search(event):
            if self._choices > 1 or self._counts:
                self._read_last()
            self._last = event
            return _ONE_EACH.sub(b"", event, count=1) if self._hides_each else event
        content = _content(event)
        found = usage_in(content)
        if found is None:
            return event
        is_final = not isinstance(content, dict) or content.get("choices") in (None, [])
        if not is_final:
            self._read(content)
            return event
        self._total = found
        is_alone = isinstance(content, dict) and content.get("choices") == []
        return b"" if self._hides_usage and is_alone else event

    def _read_last(self) -> None:
        if self._last:
            event, self._last = self._last, b""
            self._read(_content(event))

    def _read(self, content: Json) -> None:
        """Note the usage of an event by its choice."""
        found = usage_in(content)
        choices = content.get("choices") if isinstance(content, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        index = choice.get("index", 0) if isinstance(choice, dict) else 0
        if found is not None and isinstance(index, int) and 0 <= index < MAX_INDEX:
            self._counts[index] = found


def _content(event: bytes) -> Json:
    start = event.find(b"data:")
    try:
        return orjson.loads(event[start + 5 :])
    except orjson.JSONDecodeError:
        return None


def usage_in(content: Json) -> TokenUsage | None:
    """Return usage of a response or a final event, in either of OpenAI's two formats."""
    if not isinstance(content, dict):
        return None
    usage, response = content.get("usage"), content.get("response")
    if usage is None and isinstance(response, dict):  # an event of /v1/responses
        usage = response.get("usage")
    return token_usage(usage) if isinstance(usage, dict) else None


def token_usage(usage: JsonObject) -> TokenUsage | None:
    if "prompt_tokens" in usage:
        input_key, output_key, details_key = "prompt_tokens", "completion_tokens", "prompt_tokens_details"
    else:
        input_key, output_key, details_key = "input_tokens", "output_tokens", "input_tokens_details"
    tokens = usage.get(input_key)
    if not isinstance(tokens, int):
        return None
    details = usage.get(details_key)
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    output = usage.get(output_key)
    return TokenUsage(
        input=tokens,
        cached_input=cached if isinstance(cached, int) else 0,
        output=output if isinstance(output, int) else 0,
    )


def usage_of_answer(data: bytes) -> TokenUsage | None:
    """Return usage of a complete response by searching from its end, without parsing all of it."""
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
