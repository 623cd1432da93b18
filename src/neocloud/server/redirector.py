"""A CONNECT proxy that leads the API's host names to this cloud, for clients without an option for a domain.

Such a client is given `grpc_proxy=http://127.0.0.1:PORT`; it asks for `compute.<domain>:443`, and gets this
cloud's TLS port, with its own check of the certificate. Every other destination is refused: it is not a way
out. It sees only encrypted bytes and keeps nothing.
"""

import asyncio
import contextlib
from collections.abc import Collection

MAX_HEAD_BYTES = 8192
HEAD_TIMEOUT_SECONDS = 10.0
_CHUNK = 64 * 1024


class Redirector:
    """Listens on loopback; `names` are the only destinations."""

    def __init__(self, names: Collection[str], target: tuple[str, int]) -> None:
        self._names = frozenset(names)
        self._target = target
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        assert self._server is not None, "start() comes first"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the port is taken."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=MAX_HEAD_BYTES)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._serve(head, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that went away, or never was one
        finally:
            self._calls.discard(task)
            writer.close()

    async def _serve(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        refusal = self._refusal(head)
        if refusal:
            writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            far_writer.close()

    def _refusal(self, head: bytes) -> str:
        """The status line's end for a request that is not let through, "" for one that is."""
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        destination = rest.partition(" ")[0]
        if method != "CONNECT":
            return "405 Method Not Allowed"
        name, _, port = destination.rpartition(":")
        if name.lower() not in self._names or port != "443":
            return "403 Forbidden"
        return ""


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes one way until their end, which is passed on."""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
