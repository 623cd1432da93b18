# pyright: standard
"""A model server with vLLM's API that computes nothing, to test and measure the gateway before it.

    python -m neocloud.testing.mock_engine --port 8001 --tokens 64 --token-seconds 0.01

What it answers is as regular as an engine's and cheap to make, so that a measurement sees the gateway and not
this. How it fails is chosen by POST /mock {"fault": ...}, while it runs; GET /mock says what it did.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import httptools
import uvloop

from neocloud.testing.mock_answers import Behaviour, Counts, MockAnswer

FAULTS = {
    "": "none",
    "die": "the connection breaks after `after` chunks of a stream, or before the answer's last bytes",
    "drop": "the connection breaks before the answer's headers",
    "hang": "never answers",
    "stall": "falls silent after `after` chunks of a stream",
    "error": "500",
    "busy": "503",
    "compile": "500 for requests with a schema, as vLLM tells that one does not compile; others are answered",
    "stream-error": "an error as an event of the stream after `after` chunks, as vLLM tells it",
}

COMPILE_FAILURE = "Internal server error"


class Engine:
    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.counts = Counts()
        self.connections: set[MockConnection] = set()

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: MockConnection(self), host, port, backlog=2048)

    def compiles(self, seconds: float, done: Callable[[], None]) -> None:
        """Count a compilation, and call `done` at its end."""
        counts = self.counts
        counts.compiling += 1
        counts.most_compiling = max(counts.most_compiling, counts.compiling)

        def end() -> None:
            counts.compiling -= 1
            done()

        asyncio.get_running_loop().call_later(seconds, end)

    def drop_all(self) -> None:
        """Close all connections, as a killed process does."""
        for connection in list(self.connections):
            connection.transport.abort()


class MockConnection(asyncio.Protocol):
    """The connection of one client, with one request after the other."""

    transport: asyncio.Transport

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answering: asyncio.Task[None] | None = None
        self.can_write = asyncio.Event()
        self.can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.engine.connections.add(self)
        self.parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        self.can_write.set()
        if self.answering and not self.answering.done():
            self.answering.cancel()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:  # another protocol, such as HTTP/2
            self.transport.abort()

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers: dict[str, str] = {}
        self.body = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        method = self.parser.get_method().decode()
        path = self.url.decode().partition("?")[0]
        if path == "/mock":
            self._control(method)
        elif method == "GET":
            self._look(path)
        else:
            self._compute(path)

    def _control(self, method: str) -> None:
        if method == "POST":
            for name, value in json.loads(self.body).items():
                setattr(self.engine.behaviour, name, value)
        self._send(200, {**asdict(self.engine.counts), "behaviour": asdict(self.engine.behaviour)})

    def _look(self, path: str) -> None:
        if path == "/health":
            self._send(503 if self.engine.behaviour.fault == "busy" else 200, {})
        elif path == "/v1/models":
            self._send(
                200, {"object": "list", "data": [{"id": "mock", "object": "model", "max_model_len": 8192}]}
            )
        else:
            self._send(404, _error(404, "not found"))

    def _compute(self, path: str) -> None:
        behaviour, counts = self.engine.behaviour, self.engine.counts
        if behaviour.key and self.headers.get("authorization") != f"Bearer {behaviour.key}":
            self._send(401, {"error": "Unauthorized"})
            return
        counts.requests += 1
        try:
            body = json.loads(self.body)
        except ValueError as error:
            self._send(400, _error(400, str(error)))
            return
        counts.last = {"path": path, "headers": self.headers, "body": body}
        model = str(body.get("model"))
        counts.adapters[model] = counts.adapters.get(model, 0) + 1
        if behaviour.fault == "drop":
            self.transport.abort()
        elif behaviour.fault in ("error", "busy"):
            status = 500 if behaviour.fault == "error" else 503
            self._send(status, _error(status, "EngineCore encountered an issue"))
        elif behaviour.fault == "compile" and _is_compiled(body) and not body.get("stream"):
            self._send(500, _error(500, COMPILE_FAILURE))
        elif behaviour.compile_seconds and _is_compiled(body):
            self.engine.compiles(behaviour.compile_seconds, partial(self._answer_if_open, path, body))
        elif behaviour.fault != "hang":
            self._answer(path, body)

    def _answer_if_open(self, path: str, body: dict[str, Any]) -> None:
        if not self.transport.is_closing():
            self._answer(path, body)

    def _answer(self, path: str, body: dict[str, Any]) -> None:
        answer = MockAnswer(self.engine.behaviour, self.engine.counts, path, body)
        if body.get("stream"):
            self.answering = asyncio.ensure_future(self._run(self._stream(answer)))
        elif answer.seconds or self.engine.behaviour.fault not in ("", "compile"):
            self.answering = asyncio.ensure_future(self._run(self._whole(answer)))
        else:
            self.engine.counts.finished += 1
            answer.count(answer.tokens)
            self._send(200, answer.whole())

    async def _run(self, answering: Awaitable[None]) -> None:
        counts = self.engine.counts
        counts.in_flight += 1
        try:
            await answering
            counts.finished += 1
        except asyncio.CancelledError:
            counts.cancelled += 1
        finally:
            counts.in_flight -= 1

    async def _whole(self, answer: MockAnswer) -> None:
        await asyncio.sleep(answer.seconds)
        answer.count(answer.tokens)
        if self.engine.behaviour.fault == "die":
            self._write_head(200, b"application/json", 10_000)
            self.transport.abort()
            raise asyncio.CancelledError
        self._send(200, answer.whole())

    async def _stream(self, answer: MockAnswer) -> None:
        behaviour = self.engine.behaviour
        await asyncio.sleep(behaviour.first_seconds)
        self._write_head(200, b"text/event-stream; charset=utf-8", None)
        if answer.is_chat:
            self._write_chunk(answer.role_event())
        if behaviour.fault == "compile" and _is_compiled(answer.body):
            await self._fail_in_stream("stream-error", COMPILE_FAILURE)
            return
        for number, event in enumerate(answer.events()):
            if behaviour.fault not in ("", "compile") and number == behaviour.after:
                await self._fail_in_stream(behaviour.fault)
                return
            await self.can_write.wait()
            self._write_chunk(event)
            answer.count(1 if number < answer.tokens else 0)
            if behaviour.token_seconds and number < answer.tokens:
                await asyncio.sleep(behaviour.token_seconds)
        self.transport.write(b"0\r\n\r\n")

    async def _fail_in_stream(self, fault: str, message: str = "EngineCore died") -> None:
        if fault == "die":
            self.transport.abort()
            raise asyncio.CancelledError
        if fault == "stall":
            await asyncio.Event().wait()
        if fault == "stream-error":
            self._write_chunk(b"data: " + json.dumps(_error(500, message)).encode() + b"\n\n")
            self._write_chunk(b"data: [DONE]\n\n")
            self.transport.write(b"0\r\n\r\n")

    def _write_chunk(self, event: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _write_head(self, status: int, kind: bytes, length: int | None) -> None:
        size = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        self.transport.write(b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (status, kind, size))

    def _send(self, status: int, content: object) -> None:
        data = json.dumps(content, separators=(",", ":")).encode()
        head = b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, len(data)) + data)


def _is_compiled(body: dict[str, Any]) -> bool:
    return any(body.get(name) for name in ("structured_outputs", "response_format", "text"))


def _error(status: int, message: str) -> dict[str, object]:
    return {"error": {"message": message, "type": "InternalServerError", "param": None, "code": status}}


async def serve(host: str, port: int, behaviour: Behaviour) -> None:
    """Serve until SIGTERM. Print the address, since the port may be any free one."""
    server = await Engine(behaviour).listen(host, port)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    print(f"{bound_host}:{bound_port}", flush=True)  # noqa: T201
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 means any free port")
    for name, default in asdict(Behaviour()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    values = vars(parser.parse_args())
    host, port = values.pop("host"), values.pop("port")
    uvloop.run(serve(host, port, Behaviour(**values)))


if __name__ == "__main__":
    main()
