# pyright: strict
"""The gateway's side of `core.client_protocol`: OpenAI errors, and responses with fewer system calls."""

import asyncio
from typing import Any

import orjson

from neocloud.core.client_connections import Answer, ClientConnections, Refusal
from neocloud.core.client_protocol import ClientProtocol
from neocloud.gateway.api.app import LEAVE_CALLBACKS, LeaveCallbacks, new_request_id
from neocloud.gateway.api.errors import OpenAiError, bad_request, unavailable
from neocloud.gateway.settings import GatewaySettings

HEALTH_PATH = "/health"
CONTINUE = b"HTTP/1.1 100 "
"""Start of the interim response, which has no body and is sent immediately."""


def gateway_connections(settings: GatewaySettings) -> ClientConnections:
    return ClientConnections(settings, HEALTH_PATH, _answer)


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


class GatewayProtocol(ClientProtocol):
    def __init__(self, connections: ClientConnections, **given: Any) -> None:
        super().__init__(connections, **given)
        self._leave_callbacks: LeaveCallbacks = set()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.cycle.transport = ResponseTransport(self.transport)
        self.scope["state"] = {LEAVE_CALLBACKS: self._leave_callbacks}

    def client_left(self) -> None:
        for left in tuple(self._leave_callbacks):
            left()


def _answer(refusal: Refusal) -> Answer:
    error = _openai_error(refusal)
    headers = {"Content-Type": "application/json", "X-Request-Id": new_request_id(), **error.headers}
    return headers, orjson.dumps(error.body())


def _openai_error(refusal: Refusal) -> OpenAiError:
    if refusal.retry_after is not None:
        return unavailable(refusal.message, retry_after=refusal.retry_after, code=refusal.code)
    if refusal.status == 400:
        return bad_request(refusal.message, code=refusal.code)
    return OpenAiError(refusal.status, refusal.message, code=refusal.code)
