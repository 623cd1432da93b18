"""Between ASGI and the proxy: bodies in, answers and errors out, and word of a client that left."""

import itertools
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.exchange import Headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ClientLeft(Exception):
    """Before its request was whole."""


_PROCESS = secrets.token_hex(10)
_NUMBERS = itertools.count(1)


def new_request_id() -> str:
    """Never given twice, also by another process; no secret. Random bytes for each cost 20 microseconds."""
    return f"req_{_PROCESS}{next(_NUMBERS):012x}"


async def read_body(
    scope_headers: dict[bytes, bytes], receive: Receive, most_bytes: int, take: Callable[[int], None]
) -> bytes:
    """`take` is told of each piece's bytes as it comes, and may raise.

    Raises OpenAiError 413 as soon as it is too large, without reading the rest.
    """
    said = scope_headers.get(b"content-length", b"")
    if said.isdigit() and int(said) > most_bytes:
        raise too_large(most_bytes)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    body: bytes = message.get("body", b"")
    take(len(body))
    if not message.get("more_body"):
        return body
    pieces, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > most_bytes:
            raise too_large(most_bytes)
        take(len(pieces[-1]))
    return b"".join(pieces)


def too_large(most_bytes: int) -> OpenAiError:
    return OpenAiError(
        413,
        f"The request body is larger than the limit of {most_bytes} bytes. Send less data per request.",
        code="request_too_large",
    )


class HttpSink:
    """The proxy's answer, on its way to an HTTP client."""

    __slots__ = ("_send", "_request_id", "has_started")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.has_started = False

    async def whole(self, status: int, headers: Headers, data: bytes) -> None:
        await self.start(status, (*headers, (b"content-length", b"%d" % len(data))))
        await self._send({"type": "http.response.body", "body": data})

    async def start(self, status: int, headers: Headers) -> None:
        self.has_started = True
        all_headers = [*headers, (b"x-request-id", self._request_id)]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def error(self, error: OpenAiError) -> None:
        headers = [(b"content-type", b"application/json")]
        headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        if error.status == 413:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self.whole(error.status, headers, orjson.dumps(error.body()))


async def watch_client(receive: Receive, left: Callable[[], None]) -> None:
    """Once the body is read, the next word of a client is that it left."""
    await receive()
    left()
