# pyright: strict
"""HTTP to model servers that have proved, on the same connection, that they have the key."""

from collections.abc import Iterable

import httpcore
import httpx

from neocloud.core.replica_proof import (
    ANSWER_BYTES,
    PROOF_BYTES,
    challenge_request,
    is_proof,
    new_challenge,
)

PROOF_SECONDS = 10.0


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
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109, the name that httpcore gives it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        try:
            await self._prove(stream, f"{host}:{port}")
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def _prove(self, stream: httpcore.AsyncNetworkStream, address: str) -> None:
        challenge, answer = new_challenge(), b""
        await stream.write(challenge_request(address, challenge), PROOF_SECONDS)
        while len(answer.partition(b"\r\n\r\n")[2]) < PROOF_BYTES and len(answer) <= ANSWER_BYTES:
            piece = await stream.read(ANSWER_BYTES, PROOF_SECONDS)
            if not piece:
                break
            answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        is_answer = head.startswith(b"HTTP/1.1 200 ")
        if not is_answer or not is_proof(body, self._key, challenge, address):
            raise httpcore.ConnectError(f"{address} did not prove that it has the deployment's key")
