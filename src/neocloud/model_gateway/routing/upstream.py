"""Connections to model servers: one request at a time on each, kept for the next one.

A small HTTP/1.1 client: general ones cost more than the rest of the gateway together (rfd 0014). It passes
bodies as bytes and stops reading while the client is slow.
"""

import asyncio
from collections import defaultdict, deque
from contextlib import suppress

import httptools

from neocloud.core.cleanup import undo_on_error
from neocloud.data_plane.replica_proof import ANSWER_BYTES, challenge_request, is_proof, new_challenge

HIGH_WATER = 256 * 1024
"""Bytes of a response that may wait for a slow reader; beyond it, reading stops."""
CONNECT_SECONDS = 5.0
PROOF_SECONDS = 5.0
"""For the proof of a model server, which may be busy."""
MAX_IDLE = 256
"""Idle connections kept for one replica."""


class ReplicaFailed(Exception):
    """The replica did not respond. `was_sent`: it may have started to process the request."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class Connection(asyncio.Protocol):
    """One connection. Call `send`, then `head`, then `read` until it returns b"", then return it to the
    pool or `abort` it."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.is_open = False
        self.is_reused = False
        self.proved_key = ""
        """The key that the model server has proved to have; "" where none was asked."""
        self._unproved_left: int | None = None
        """While a proof is awaited: how many bytes may still come. The parser itself has no limit."""
        self._changed: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.may_be_reused = False
        self._has_head = False
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_paused = False

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._wake()

    def data_received(self, data: bytes) -> None:
        if self._unproved_left is not None:
            self._unproved_left -= len(data)
            if self._unproved_left < 0:
                self.abort()
                self._wake()
                return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
        self._wake()

    def eof_received(self) -> None:
        """A response without a length ends with the connection."""
        if self._has_head and not self.is_complete and not self._has_length():
            self.is_complete = True
        self._wake()

    def _has_length(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:  # 100 Continue: the response follows
            self.headers = []
            return
        self.status = status
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._size += len(body)
        if self._size > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._has_head:
            self.is_complete = True
            self.may_be_reused = self.parser.should_keep_alive()

    # Called by the relay

    def send(self, data: bytes) -> None:
        """Raises ReplicaFailed when the connection has closed, which its reader may not have noticed yet."""
        self._reset()
        try:
            self.transport.write(data)
        except RuntimeError as error:  # uvloop raises it for a closed handle
            raise ReplicaFailed("the connection ended before the request", was_sent=True) from error

    async def head(self) -> int:
        """Return the status once the headers have arrived."""
        while not self._has_head:
            if not self.is_open:
                raise ReplicaFailed("the connection ended before an answer", was_sent=True)
            await self._change()
        return self.status

    async def read(self) -> bytes:
        """Return all bytes that have arrived; b"" at the end of the response."""
        while not self._chunks:
            if self.is_complete:
                return b""
            if not self.is_open:
                raise ReplicaFailed("the connection ended within an answer", was_sent=True)
            await self._change()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._is_paused:
            self._is_paused = False
            with suppress(RuntimeError):  # it closed meanwhile
                self.transport.resume_reading()
        return data

    async def prove(self, address: str, key: str) -> None:
        """Ask the model server, before anything else is sent, to prove that it has the key. Raises
        ReplicaFailed when it does not."""
        challenge, answer = new_challenge(), b""
        self._unproved_left = ANSWER_BYTES
        self.send(challenge_request(address, challenge))
        status = await self.head()
        while status == 200 and len(answer) <= ANSWER_BYTES and (data := await self.read()):
            answer += data
        if not self.may_be_reused or not is_proof(answer, key, challenge, address):
            raise ReplicaFailed("it did not prove that it has the deployment's key", was_sent=False)
        self.proved_key = key
        self._unproved_left = None

    def abort(self) -> None:
        """Close the connection immediately, so that the model server stops computing."""
        self.is_open = False
        self.transport.abort()

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class ConnectionPool:
    """Idle connections by address."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, deque[Connection]] = defaultdict(deque)

    async def acquire(self, address: str, *, fresh: bool = False, proved_key: str = "") -> Connection:
        """Return a connection; with `proved_key`, one whose model server has proved to have that key. Raises
        ReplicaFailed."""
        idle = self._idle[address]
        while idle and not fresh:
            connection = idle.pop()
            if connection.proved_key != proved_key:
                connection.abort()
            elif connection.is_open and not connection.transport.is_closing():
                connection.is_reused = True
                return connection
        host, _, port = address.rpartition(":")
        opening = asyncio.get_running_loop().create_connection(Connection, host.strip("[]"), int(port))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await opening
        except OSError as error:  # TimeoutError is one
            raise ReplicaFailed(f"no connection: {error or 'timed out'}", was_sent=False) from error
        if proved_key:
            await self._prove(connection, address, proved_key)
        return connection

    @staticmethod
    async def _prove(connection: Connection, address: str, key: str) -> None:
        try:
            with undo_on_error(connection.abort):
                async with asyncio.timeout(PROOF_SECONDS):
                    await connection.prove(address, key)
        except (TimeoutError, ReplicaFailed) as error:
            raise ReplicaFailed(str(error) or "no answer to the challenge", was_sent=False) from error

    def release(self, address: str, connection: Connection) -> None:
        idle = self._idle[address]
        is_clean = connection.is_complete and connection.may_be_reused and connection.is_open
        if is_clean and len(idle) < MAX_IDLE:
            idle.append(connection)
        else:
            connection.abort()

    def keep_only(self, addresses: set[str]) -> None:
        """Close the connections of replicas that no longer exist."""
        for address in self._idle.keys() - addresses:
            for connection in self._idle.pop(address):
                connection.abort()

    def close(self) -> None:
        self.keep_only(set())


def model_request(address: str, path: str, body: bytes, *, key: str, request_id: str) -> bytes:
    """Return the bytes of a request to a model server; `key` is "" where it needs none."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\n{authorization}"
        f"Content-Type: application/json\r\nX-Request-Id: {request_id}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
