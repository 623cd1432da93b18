# pyright: strict
"""What uvicorn writes responses to: one system call for the headers and the start of the body."""

import asyncio

CONTINUE = b"HTTP/1.1 100 "
"""Start of the interim response, which has no body and is sent immediately."""


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
