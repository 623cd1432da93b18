"""HTTP to model servers that have proved, on the same connection, that they have the key."""

import asyncio
import re
from collections.abc import Iterable
from typing import cast

import httpcore
import httpx

from neocloud.core.cleanup import aundo_on_error
from neocloud.data_plane.replica_proof import (
    ANSWER_BYTES,
    challenge_request,
    is_proof,
    new_challenge,
)

PROOF_SECONDS = 5.0

_START = b"HTTP/1.1 200 "
_LENGTH = re.compile(rb"\r\ncontent-length: 64\r\n", re.IGNORECASE)
_ANSWER = re.compile(rb"HTTP/1\.1 200 .*?\r\n\r\n(?P<body>.{64})\Z", re.DOTALL)


class ProvenTransport(httpx.AsyncBaseTransport):
    """A transport whose connections carry no request before the proof. Raises httpx.ConnectError without."""

    def __init__(self, key: str) -> None:
        self._pool = httpcore.AsyncConnectionPool(network_backend=_ProvingBackend(key))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            answer = await self._pool.request(
                request.method,
                str(request.url),
                headers=request.headers.raw,
                content=await request.aread(),
                extensions=request.extensions,
            )
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise httpx.ConnectError(str(error) or type(error).__name__, request=request) from error
        return httpx.Response(answer.status, headers=answer.headers, content=answer.content)

    async def aclose(self) -> None:
        await self._pool.aclose()


class _ProvingBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, key: str) -> None:
        self._key = key
        self._backend = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())  # its stub is of no class

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109, the name that httpcore gives it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        async with aundo_on_error(stream.aclose):
            await self._prove(stream, f"{host}:{port}")
        return stream

    async def _prove(self, stream: httpcore.AsyncNetworkStream, address: str) -> None:
        challenge = new_challenge()
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                await stream.write(challenge_request(address, challenge))
                body = await _body(stream)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{address} does not answer a challenge") from error
        if not is_proof(body, self._key, challenge, address):
            raise httpcore.ConnectError(f"{address} did not prove that it has the deployment's key")


async def _body(stream: httpcore.AsyncNetworkStream) -> bytes:
    """Return the body of an answer that may be a proof; b"" for any other answer, of which no more is read
    than its head."""
    answer = b""
    while not (found := _ANSWER.match(answer)):
        piece = await stream.read(ANSWER_BYTES)
        answer += piece
        if not piece or len(answer) > ANSWER_BYTES or not answer.startswith(_START[: len(answer)]):
            return b""
        if b"\r\n\r\n" in answer and not _LENGTH.search(answer):
            return b""
    return found["body"]
