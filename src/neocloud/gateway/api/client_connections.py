# pyright: strict
"""Client connections: limits on their number, and on the size and duration of their requests.

HTTP/1.1 is uvicorn's. Time is counted by checking all connections periodically, not by a timer for each
request, and only while the gateway waits for bytes from the client. Beyond the limits a few spare connections
are accepted so that `/health` responds; the newest replaces the oldest.
"""

import asyncio
import ipaddress
import logging
import resource
from collections import Counter, OrderedDict
from enum import IntEnum
from typing import Any, Protocol

import httptools
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from neocloud.gateway.api.app import LEAVE_CALLBACKS, LeaveCallbacks, new_request_id
from neocloud.gateway.api.errors import OpenAiError, bad_request, unavailable
from neocloud.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 64
"""Connections beyond the limits, for `/health` alone."""
CHECK_SECONDS = 1.0
OTHER_FILES = 512
"""Open files that are reserved for the ledger, uploads and everything else but connections."""
_SITE_PREFIX = 64
"""Prefix length of an IPv6 network that counts as one client."""


class Connection(Protocol):
    def check(self, seconds: float) -> None:
        """Count `seconds` since the last check; close the connection when a limit is exceeded."""
        ...

    def abort(self) -> None: ...


class ClientConnections:
    """All connections of a gateway. Limits are those of the settings, lowered to what open files allow."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self._most = min(settings.max_connections, connections_allowed_by_files())
        if self._most < settings.max_connections:
            logger.warning(
                "The limit of open files allows %d connections of %d. Raise it (ulimit -Hn).",
                self._most,
                settings.max_connections,
            )
        self._ordinary: dict[Connection, str] = {}
        """The client that each connection counts for."""
        self._spare: OrderedDict[Connection, None] = OrderedDict()
        self._of_client: Counter[str] = Counter()

    def enter(self, connection: Connection, address: str) -> bool:
        """Count a connection until `leave`. Return False beyond the limits: it may only request /health."""
        client = client_of(address)
        is_one_too_many = client and self._of_client[client] >= self.settings.max_address_connections
        if not is_one_too_many and len(self._ordinary) < self._most:
            self._ordinary[connection] = client
            self._of_client[client] += 1
            return True
        if len(self._spare) >= SPARE_CONNECTIONS:
            oldest, _ = self._spare.popitem(last=False)
            oldest.abort()
        self._spare[connection] = None
        return False

    def leave(self, connection: Connection) -> None:
        self._spare.pop(connection, None)
        client = self._ordinary.pop(connection, None)
        if client is not None:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    async def check_periodically(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check(CHECK_SECONDS)

    def check(self, seconds: float) -> None:
        """Check all connections; `seconds` have passed since the last time."""
        for connection in [*self._ordinary, *self._spare]:
            try:
                connection.check(seconds)
            except Exception:  # a loop's border: one connection must not end the gateway
                logger.exception("A connection could not be checked and is closed")
                connection.abort()


def client_of(address: str) -> str:
    """Return what counts as one client; "" for loopback, which is not limited by address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            network = ipaddress.IPv6Network((found, _SITE_PREFIX), strict=False)
            return "" if found.is_loopback else str(network)
        found = found.ipv4_mapped
    return "" if found.is_loopback else str(found)


def connections_allowed_by_files() -> int:
    """Raise the limit of open files as far as possible and return how many connections it allows. Each
    may need another one to a model server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return 1 << 30
    return max((hard - OTHER_FILES) // 2 - SPARE_CONNECTIONS, 1)


MAX_HEAD_BYTES = 32 * 1024
"""Bytes of the request line and headers, or of trailers."""
MAX_HEADERS = 100
"""Number of headers of a request, or of trailers."""
MIN_BODY_BYTES_PER_SECOND = 4 * 1024
"""Slowest average of a body, after `body_seconds`."""
BUSY_RETRY_SECONDS = 5
IDLE_CLOSE_SECONDS, LAST_CLOSE_SECONDS = 1.0, 5.0
"""When the gateway stops, an idle client has this long to close its TLS connection, and one that reads the
end of its last response. Clients that pool connections notice the end only when they use them again."""
CONTINUE = b"HTTP/1.1 100 "
"""Start of the interim response, which has no body and is sent immediately."""


class Part(IntEnum):
    """The part of a request that the next byte belongs to."""

    NONE = 0
    """No byte of the next request has arrived."""
    HEAD = 1
    BODY = 2


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


class ClientProtocol(HttpToolsProtocol):
    def __init__(self, connections: ClientConnections, **given: Any) -> None:
        """`given` holds the arguments of uvicorn."""
        super().__init__(**given)
        self._connections = connections
        self._limits = connections.settings
        self._part = Part.HEAD
        """A new client is expected to send a request."""
        self._has_begun = False
        self._waited_seconds = self._quiet_seconds = 0.0
        """Seconds in this part of a request, and since the last byte."""
        self._body_bytes = 0
        self._head_bytes = 0
        """Bytes of headers or trailers so far. The parser does not report an unfinished header."""
        self._fault: OpenAiError | None = None
        self._is_ending = False
        self._leave_callbacks: LeaveCallbacks = set()

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._connections.enter(self, self.client[0] if self.client else ""):
            self.app = _health_only(self.app)

    def shutdown(self) -> None:
        """Close the connection, or let its response end first. Called by uvicorn when the gateway stops."""
        self._is_ending = True
        super().shutdown()
        if not self._is_answering():
            self._abort_after(IDLE_CLOSE_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_ending:
            self._abort_after(LAST_CLOSE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        self._client_left()
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
        self.scope["state"] = {LEAVE_CALLBACKS: self._leave_callbacks}
        self.headers = []  # trailers are ignored
        self._part = Part.BODY
        self._waited_seconds = 0.0
        self._head_bytes = self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_bytes += len(body)
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
        if self.transport.is_closing():
            return  # the kernel closes clients that do not read: see __main__.listen
        if self._part is Part.HEAD:
            if not self._is_answering():
                self._waited_seconds += seconds
                if self._waited_seconds > self._limits.head_seconds:
                    self._time_out("head", self._limits.head_seconds)
        elif self._part is Part.BODY:
            self._check_body(seconds)

    def abort(self) -> None:
        self.transport.abort()

    def _abort_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.transport.abort)

    def _check_body(self, seconds: float) -> None:
        limits = self._limits
        if self.flow.read_paused:
            return  # the client waits for the gateway
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
        """Raise OpenAiError, which stops the parser. `size` is added to the bytes of the headers or
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
        self._refuse(
            OpenAiError(
                408,
                f"The {part} of the request did not arrive within {seconds:.0f} s. Send it without pauses.",
                code="request_timeout",
            )
        )

    def _refuse(self, error: OpenAiError) -> None:
        """Send an error, unless this or an earlier request is being answered, and close the connection."""
        cycle = self.cycle
        in_body = self._part is Part.BODY
        if (not self.pipeline and not cycle.response_started) if in_body else not self._is_answering():
            self.transport.write(_encode(error))
        if self._is_answering():
            cycle.disconnected = True
            cycle.message_event.set()
            self._client_left()
        self.transport.close()

    def _client_left(self) -> None:
        for left in tuple(self._leave_callbacks):
            left()


def _health_only(app: ASGIApp) -> ASGIApp:
    """Wrap the application for spare connections: one request, to /health alone."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        if scope["path"] == "/health":
            await app(scope, receive, send_last)
            return
        error = _too_many()
        headers = [(name.lower().encode(), value.encode()) for name, value in _error_headers(error).items()]
        body = orjson.dumps(error.body())
        headers.append((b"content-length", b"%d" % len(body)))
        await send_last({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def _error_headers(error: OpenAiError) -> dict[str, str]:
    return {"Content-Type": "application/json", "X-Request-Id": new_request_id(), **error.headers}


def _encode(error: OpenAiError) -> bytes:
    """Return a complete HTTP response."""
    body = orjson.dumps(error.body())
    headers = {**_error_headers(error), "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body


def _invalid_http() -> OpenAiError:
    return bad_request("The request is not valid HTTP. Use an HTTP client.", code="invalid_http")


def _head_too_large() -> OpenAiError:
    return OpenAiError(
        431,
        f"The request headers or trailers exceed {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} fields."
        " Send fewer headers.",
        code="headers_too_large",
    )


def _too_many() -> OpenAiError:
    return unavailable(
        "Too many open connections. Close unused ones, then try again.",
        retry_after=BUSY_RETRY_SECONDS,
        code="too_many_connections",
    )
