"""A client's connection to the API or the gateway: limits on the size and duration of its requests.

HTTP/1.1 is uvicorn's. Time is counted by checking all connections periodically, not by a timer for each
request, and only while the server waits for bytes from the client.
"""

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from neocloud.data_plane.http.connections import Answer, ClientConnections, Refusal

MAX_HEAD_BYTES = 32 * 1024
"""Bytes of the request line and headers, or of trailers."""
MAX_HEADERS = 100
"""Number of headers of a request, or of trailers."""
MIN_BODY_BYTES_PER_SECOND = 4 * 1024
"""Slowest average of a body, after `body_seconds`."""
BUSY_RETRY_SECONDS = 5
CONTINUE = b"HTTP/1.1 100 "
"""Start of the interim response, which has no body and is sent immediately."""
IDLE_CLOSE_SECONDS, LAST_CLOSE_SECONDS = 1.0, 5.0
"""When the server stops, an idle client has this long to close its TLS connection, and one that reads the
end of its last response. Clients that pool connections notice the end only when they use them again."""


class Part(IntEnum):
    """The part of a request that the next byte belongs to."""

    NONE = 0
    """No byte of the next request has arrived."""
    HEAD = 1
    BODY = 2


class ClientProtocol(HttpToolsProtocol):
    def __init__(self, connections: ClientConnections, **given: Any) -> None:
        """`given` holds the arguments of uvicorn."""
        super().__init__(**given)
        self._connections = connections
        self._limits = connections.limits
        self._cancel_handshake: Callable[[], object] | None = None
        self._is_ordinary: bool | None = None
        """Whether the connection is within the limits; None before it is counted."""
        self._part = Part.HEAD
        """A new client is expected to send a request."""
        self._has_begun = False
        self._waited_seconds = self._quiet_seconds = 0.0
        """Seconds in this part of a request, and since the last byte."""
        self._body_bytes = 0
        self._head_bytes = 0
        """Bytes of headers or trailers so far. The parser does not report an unfinished header."""
        self._fault: Refusal | None = None
        self._is_ending = False

    def client_left(self) -> None:
        """Called when the connection ends, or is about to, also without a request."""

    def begin_handshake(self, address: str, cancel: Callable[[], object]) -> None:
        """Count the connection during its TLS handshake, which `cancel` ends."""
        self._cancel_handshake = cancel
        self._is_ordinary = self._connections.enter(self, address)

    def handshake_failed(self) -> None:
        self._connections.leave(self)

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._cancel_handshake = None
        if self._is_ordinary is None:
            self._is_ordinary = self._connections.enter(self, self.client[0] if self.client else "")
        if not self._is_ordinary:
            self.app = _health_only(self.app, self._connections)

    def shutdown(self) -> None:
        """Close the connection, or let its response end first. Called by uvicorn when the server stops."""
        self._is_ending = True
        if not self.transport.is_closing():
            super().shutdown()
        if not self._is_answering():
            self._abort_after(IDLE_CLOSE_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_ending:
            self._abort_after(LAST_CLOSE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        self.client_left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._part is Part.NONE:
            self._begin()
        self._has_begun = True
        self._quiet_seconds = 0.0
        self._head_bytes += len(data)
        assert self.parser is not None, "The connection is open."
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._fault or _invalid_http())
            return
        except httptools.HttpParserUpgrade:
            self._head_bytes = 0  # another protocol is not offered; answered as HTTP/1.1
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._part is Part.NONE:
            self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._check_headers(len(self.url))
        super().on_headers_complete()
        self.cycle.transport = ResponseTransport(self.transport)
        self.headers = []  # trailers are ignored
        self._part = Part.BODY
        self._waited_seconds = 0.0
        self._head_bytes = self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_bytes += len(body)
        if not self.cycle.body and not self.cycle.response_complete:
            # uvicorn appends to it and copies it when the application receives it; of bytes it makes no copy.
            self.cycle.body = body  # type: ignore[assignment]
            body = b""
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.headers:
            self._check_headers(0)
        self._part = Part.NONE
        self._head_bytes = 0
        super().on_message_complete()

    # Called by ClientConnections

    def check(self, seconds: float) -> None:
        """Count time and close the connection when a limit is exceeded."""
        if self._cancel_handshake is not None:
            return  # has a limit of its own
        if self.transport.is_closing():
            return  # the kernel closes clients that do not read: see TCP_USER_TIMEOUT
        if self._part is Part.HEAD:
            if not self._is_answering():
                self._waited_seconds += seconds
                if self._waited_seconds > self._limits.head_seconds:
                    self._time_out("head", self._limits.head_seconds)
        elif self._part is Part.BODY:
            self._check_body(seconds)

    def abort(self) -> None:
        if self._cancel_handshake is not None:
            self._cancel_handshake()
        else:
            self.transport.abort()

    def _abort_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.transport.abort)

    def _check_body(self, seconds: float) -> None:
        limits = self._limits
        if self.flow.read_paused:
            return  # the client waits for the server
        self._waited_seconds += seconds
        self._quiet_seconds += seconds
        most = limits.body_seconds + self._body_bytes / MIN_BODY_BYTES_PER_SECOND
        if self._quiet_seconds > limits.body_quiet_seconds:
            self._time_out("body", limits.body_quiet_seconds)
        elif self._waited_seconds > most:
            self._time_out("body", most)

    def _begin(self) -> None:
        self._part = Part.HEAD
        self._waited_seconds = 0.0
        self._head_bytes = 0

    def _check_headers(self, size: int) -> None:
        """Raise Refusal, which stops the parser. `size` is added to the bytes of the headers or
        trailers."""
        size += sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._fault = _head_too_large()
            raise self._fault

    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _time_out(self, part: str, seconds: float) -> None:
        if not self._has_begun:
            self.transport.close()  # without a request there is nothing to answer
            return
        message = f"The {part} of the request did not arrive within {seconds:.0f} s. Send it without pauses."
        self._refuse(Refusal(408, "request_timeout", message))

    def _refuse(self, error: Refusal) -> None:
        """Send an error, unless this or an earlier request is being answered, and close the connection."""
        cycle = self.cycle
        in_body = self._part is Part.BODY
        if (not self.pipeline and not cycle.response_started) if in_body else not self._is_answering():
            self.transport.write(_encode(error, self._connections.answer))
        if self._is_answering():
            cycle.disconnected = True
            cycle.message_event.set()
            self.client_left()
        if not self.transport.is_closing():  # asyncio's TLS transport cannot be aborted after a second close
            self.transport.close()


def _health_only(app: ASGIApp, connections: ClientConnections) -> ASGIApp:
    """Wrap the application for spare connections: one request, to the health page alone."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        if scope["path"] == connections.health_path:
            await app(scope, receive, send_last)
            return
        refusal = _too_many()
        given, body = connections.answer(refusal)
        headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        headers.append((b"content-length", b"%d" % len(body)))
        await send_last({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def _encode(refusal: Refusal, answer: Callable[[Refusal], Answer]) -> bytes:
    """Return a complete HTTP response."""
    given, body = answer(refusal)
    headers = {**given, "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[refusal.status] + lines.encode() + b"\r\n" + body


def _invalid_http() -> Refusal:
    return Refusal(400, "invalid_http", "The request is not valid HTTP. Use an HTTP client.")


def _head_too_large() -> Refusal:
    return Refusal(
        431,
        "headers_too_large",
        f"The request headers or trailers exceed {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} fields."
        " Send fewer headers.",
    )


def _too_many() -> Refusal:
    message = "Too many open connections. Close unused ones, then try again."
    return Refusal(503, "too_many_connections", message, retry_after=BUSY_RETRY_SECONDS)


class ResponseTransport(asyncio.Transport):
    """Sends the headers of a response together with the start of its body: one system call in place of two.

    uvicorn writes them one after the other, and writes and closes only. Headers without a body are sent when
    the event loop runs next.
    """

    __slots__ = ("_headers", "_is_first", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._headers = b""
        self._is_first = True

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self._headers:
            data = self._headers + data
            self._headers = b""
        elif self._is_first and not data.startswith(CONTINUE):
            self._is_first = False
            self._headers = data
            asyncio.get_running_loop().call_soon(self._send_headers)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._send_headers()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _send_headers(self) -> None:
        if self._headers:
            headers, self._headers = self._headers, b""
            self._transport.write(headers)
