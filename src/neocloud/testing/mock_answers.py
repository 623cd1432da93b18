# pyright: standard
"""The answers of the mock model server, in vLLM's shape: as regular as an engine's and cheap to make."""

import base64
import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NUMBER = 4_000_000_000
"""Stands for a number of tokens in an event that is made once."""
VECTOR = (0.5, 0.25, 0.125)
TOKEN_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass
class Behaviour:
    """The behaviour of the mock server. The max_tokens of a request takes precedence over `tokens`."""

    tokens: int = 64
    token_seconds: float = 0.0
    """The pause between two tokens; 0: none."""
    first_seconds: float = 0.0
    cached: int = 0
    """The number of the prompt's tokens that are reported as cached."""
    fault: str = ""
    after: int = 3
    key: str = ""
    """The bearer token that it requires."""
    pad: int = 0
    """Bytes added to each chunk's text."""
    compile_seconds: float = 0.0
    """How long it compiles the schema of a request, also when its client has left."""


@dataclass
class Counts:
    """Counts since its start."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    """Requests whose client left before the end."""
    in_flight: int = 0
    compiling: int = 0
    """Requests whose schema is being compiled."""
    most_compiling: int = 0
    adapters: dict[str, int] = field(default_factory=dict)
    """Requests by the model's engine name."""
    last: dict[str, Any] = field(default_factory=dict)
    """Headers and body of the last request."""


class MockAnswer:
    """The answer to one request, in vLLM's shape for its path."""

    def __init__(self, behaviour: Behaviour, counts: Counts, path: str, body: dict[str, Any]) -> None:
        self.behaviour, self.counts = behaviour, counts
        self.path = path
        self.body = body
        limits = [body.get(name) for name in TOKEN_LIMITS]
        asked = next((limit for limit in limits if limit), behaviour.tokens)
        self.is_chat = path == "/v1/chat/completions"
        self.is_embedding = path == "/v1/embeddings"
        self.is_ranking = path == "/v1/rerank"
        self.tokens = 0 if self.is_embedding or self.is_ranking else min(asked, behaviour.tokens)
        self.seconds = behaviour.first_seconds + self.tokens * behaviour.token_seconds
        self.text = " word" + "x" * behaviour.pad
        self.prompt_tokens = self._words()
        counts.prompt_tokens += self.prompt_tokens
        self.id = f"chatcmpl-{counts.requests}"
        self.created = int(time.time())

    def _words(self) -> int:
        """Count one token for each word, in every kind of request."""
        fields = ("messages", "prompt", "input", "documents")
        asked = next((self.body[name] for name in fields if self.body.get(name)), "")
        if isinstance(asked, list):
            return sum(
                len(str(item.get("content", "")).split()) if isinstance(item, dict) else 1 for item in asked
            )
        return len(str(asked).split())

    def count(self, tokens: int) -> None:
        self.counts.completion_tokens += tokens

    def usage(self, tokens: int | None = None) -> dict[str, object]:
        """Return what was used when so many tokens were made; None: all of them."""
        output = self.tokens if tokens is None else tokens
        cached = min(self.behaviour.cached, self.prompt_tokens)
        if self.path == "/v1/responses":
            return {
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": self.tokens,
                "total_tokens": self.prompt_tokens + self.tokens,
            }
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
        }

    def whole(self) -> dict[str, object]:
        text, model = self.text * self.tokens, self.body.get("model")
        if self.is_embedding:
            return {"object": "list", "data": self._vectors(), "model": model, "usage": self.usage()}
        if self.is_ranking:
            return {"id": self.id, "model": model, "results": self._ranking(), "usage": self.usage()}
        if self.path == "/v1/responses":
            return self._response("completed", text)
        choice: dict[str, object] = {"index": 0, "finish_reason": "stop", "logprobs": None}
        if self.path == "/v1/completions":
            choice["text"] = text
        else:
            choice["message"] = {"role": "assistant", "content": text, "tool_calls": []}
        kind = "text_completion" if self.path == "/v1/completions" else "chat.completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": model}
        return {**head, "choices": [choice], "usage": self.usage()}

    def _vectors(self) -> list[dict[str, object]]:
        """Return one vector for each input: the same for all, in the encoding that is asked for."""
        asked = self.body.get("input")
        inputs = len(asked) if isinstance(asked, list) and not isinstance(asked[0], int) else 1
        vector: object = list(VECTOR)
        if self.body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(VECTOR)}f", *VECTOR)).decode()
        return [{"object": "embedding", "index": index, "embedding": vector} for index in range(inputs)]

    def _ranking(self) -> list[dict[str, object]]:
        """Rank by the share of the words of the query that a document has, best first, as vLLM does."""
        query = {*self.body["query"].split()}
        results = [
            {
                "index": index,
                "document": {"text": text, "multi_modal": None},
                "relevance_score": len(query & {*text.split()}) / len(query),
            }
            for index, text in enumerate(self.body["documents"])
        ]
        results.sort(key=lambda each: each["relevance_score"], reverse=True)
        return results[: self.body.get("top_n") or None]

    def _response(self, status: str, text: str) -> dict[str, object]:
        message = {
            "type": "message",
            "id": "msg_1",
            "status": status,
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        head = {"id": self.id, "object": "response", "created_at": self.created, "status": status}
        return {**head, "model": self.body.get("model"), "output": [message], "usage": self.usage()}

    def role_event(self) -> bytes:
        """Return the first chunk of a chat's stream, which has no text."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return _event({**self._chunk_head(), "choices": [choice]})

    def _chunk_head(self) -> dict[str, object]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.body.get("model")}

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream, each as its bytes."""
        if self.path == "/v1/responses":
            yield from self._response_events()
            return
        options = self.body.get("stream_options") or {}
        head = self._chunk_head()
        text: dict[str, object] = {"text": self.text}
        said = {"delta": {"content": self.text}} if self.is_chat else text
        middle = {**head, "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": None}]}
        event = _event(middle)
        last = {**middle, "choices": [{**middle["choices"][0], "finish_reason": "stop"}]}
        if options.get("include_usage") and options.get("continuous_usage_stats"):
            counted = _event({**middle, "usage": self.usage(NUMBER)})
            total = b"%d" % (self.prompt_tokens + NUMBER)
            for number in range(1, self.tokens):
                one = counted.replace(b"%d" % NUMBER, b"%d" % number)
                yield one.replace(total, b"%d" % (self.prompt_tokens + number))
            yield _event({**last, "usage": self.usage()})
        else:
            for _ in range(self.tokens - 1):
                yield event
            yield _event(last)
        if options.get("include_usage"):
            yield _event({**head, "choices": [], "usage": self.usage()})
        yield b"data: [DONE]\n\n"

    def _response_events(self) -> Iterator[bytes]:
        whole = self._response("completed", self.text * self.tokens)
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        message = {"type": "message", "id": "msg_1", "status": "in_progress", "role": "assistant"}
        place: dict[str, object] = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": []}
        text = {**part, "text": self.text * self.tokens}
        events: list[dict[str, object]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
            {"type": "response.content_part.added", **place, "part": part},
            *({"type": "response.output_text.delta", **place, "delta": self.text},) * self.tokens,
            {"type": "response.output_text.done", **place, "text": text["text"]},
            {"type": "response.content_part.done", **place, "part": text},
            {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": {**message, "status": "completed", "content": [text]},
            },
            {"type": "response.completed", "response": whole},
        ]
        for number, event in enumerate(events):
            yield f"event: {event['type']}\n".encode() + _event({**event, "sequence_number": number})


def _event(content: object) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
