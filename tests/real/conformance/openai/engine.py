"""An engine that says what the test wrote, to show what the gateway passes on untouched."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
HEAD = {"id": "chatcmpl-1", "created": 1_800_000_000, "model": "tools"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "balance_of", "arguments": '{"account": "7"}'},
}
JSON_TEXT = '{"city": "Amsterdam", "branches": 3}'


class ScriptedEngine(ThreadingHTTPServer):
    """`asked` is the body of the last request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def engine(self) -> ScriptedEngine:
        assert isinstance(self.server, ScriptedEngine)
        return self.server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.engine.asked = body
        if body.get("stream"):
            events = list(_streamed(body))
            data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
            self._send("text/event-stream", data + b"data: [DONE]\n\n")
        else:
            self._send("application/json", json.dumps(_whole(body)).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _send(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _whole(body: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": JSON_TEXT}
    if body.get("tools"):
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if body.get("tools") else "stop"}
    return {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}


def _streamed(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    function = CALL["function"]
    pieces = [
        {"id": CALL["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}},
        {"function": {"arguments": function["arguments"][:6]}},
        {"function": {"arguments": function["arguments"][6:]}},
    ]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"tool_calls": [{"index": 0, **piece}]} for piece in pieces]
    for number, delta in enumerate(deltas):
        finish = "tool_calls" if number == len(deltas) - 1 else None
        yield _chunk([{"index": 0, "delta": delta, "finish_reason": finish}])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**_chunk([]), "usage": USAGE}


def _chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {**HEAD, "object": "chat.completion.chunk", "choices": choices}


@contextmanager
def scripted_engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        thread = threading.Thread(target=engine.serve_forever, daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            engine.shutdown()
            thread.join()
