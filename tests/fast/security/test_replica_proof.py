"""A listener at the address of a replica on a Slurm cluster gets neither key nor prompt before it has proved
that it has the deployment's key: for the control plane, and for the gateway.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from neocloud.data_plane import replica_proof
from neocloud.model_gateway.routing.upstream import ConnectionPool, ReplicaFailed
from neocloud.services.inference import model_server_key
from neocloud.services.inference.model_server_key import RequireKey
from neocloud.services.inference.reconcile.model_server import HttpModelServerClient, ModelServerUnreachable
from neocloud.services.inference.reconcile.slurm_backend import is_healthy

KEY = "the-key-of-the-deployment"
Answer = Callable[[bytes], Awaitable[bytes]]


async def _models(request: Any) -> JSONResponse:
    return JSONResponse({"data": [{"id": "bank"}]})


@asynccontextmanager
async def engine(monkeypatch: pytest.MonkeyPatch, key: str = KEY) -> AsyncIterator[str]:
    """A model server as vLLM is one: uvicorn, and the middleware."""
    monkeypatch.setenv("VLLM_API_KEY", key)
    app = Starlette(routes=[Route("/{path:path}", _models)])
    app.add_middleware(RequireKey)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def impostor(answer: Answer) -> AsyncIterator[tuple[str, bytearray]]:
    """Somebody else at a replica's address, and all that it was sent."""
    seen = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, TimeoutError):
            while data := await reader.read(65536):
                seen.extend(data)
                writer.write(await answer(data))
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def always(answer: bytes) -> Answer:
    async def same(_: bytes) -> bytes:
        return answer

    return same


def relay_to(address: str) -> Answer:
    """Passes each message on to the real model server, and its answer back."""

    async def passed_on(data: bytes) -> bytes:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with closing(writer):
            writer.write(data)
            return await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(64)

    return passed_on


async def refused_by_all(address: str, seen: bytearray) -> None:
    assert not await is_healthy(address, KEY)
    with pytest.raises(ModelServerUnreachable):
        await HttpModelServerClient().proving().names(address, KEY)
    with pytest.raises(ModelServerUnreachable):
        await HttpModelServerClient().proving().warm_up(address, KEY, "bank")
    pool = ConnectionPool()
    with pytest.raises(ReplicaFailed) as failed:
        await pool.acquire(address, proved_key=KEY)
    assert not failed.value.was_sent
    assert seen and KEY.encode() not in seen and b"Bearer" not in seen and b"prompt" not in seen


async def test_the_real_one_proves_it_and_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(monkeypatch) as address:
        assert await is_healthy(address, KEY)
        assert await HttpModelServerClient().proving().names(address, KEY) == {"bank"}
        pool = ConnectionPool()
        connection = await pool.acquire(address, proved_key=KEY)
        connection.send(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        assert await connection.head() == 200
        while await connection.read():
            pass
        pool.release(address, connection)
        assert await pool.acquire(address, proved_key=KEY) is connection
        pool.release(address, connection)
        with pytest.raises(ReplicaFailed):  # the address is another deployment's now
            await pool.acquire(address, proved_key="another-key")
        pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        http(b"{}"),
        http(b"0" * 64),
        http(b"", "401 Unauthorized"),
        http(replica_proof.proof("", "0" * 64, "127.0.0.1:1")),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"0" * 9000,
        b"\x00\xff not http",
        http(b"x" * 100_000),
    ],
    ids=["200", "digits", "401", "no key", "no length", "no http", "long"],
)
async def test_an_impostor_gets_no_key(answer: bytes) -> None:
    async with impostor(always(answer)) as (address, seen):
        await refused_by_all(address, seen)


async def test_an_impostor_that_asks_the_real_one_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof names the address at which the real one took the connection."""
    async with engine(monkeypatch) as real, impostor(relay_to(real)) as (address, seen):
        await refused_by_all(address, seen)
        assert b"X-Neocloud-Challenge" in seen


async def test_the_engine_of_another_deployment_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(monkeypatch, "another-key") as address:
        assert not await is_healthy(address, KEY)
        with pytest.raises(ReplicaFailed):
            await ConnectionPool().acquire(address, proved_key=KEY)


async def test_an_impostor_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("model_gateway.routing.upstream", "services.inference.reconcile.proven_transport"):
        monkeypatch.setattr(f"neocloud.{place}.PROOF_SECONDS", 0.2)
    async with impostor(always(b"")) as (address, seen):
        await refused_by_all(address, seen)


@pytest.mark.parametrize("challenge", ["", "0" * 63, "0" * 65, "é" * 64, "-" * 64])
async def test_no_other_text_is_signed(monkeypatch: pytest.MonkeyPatch, challenge: str) -> None:
    async with engine(monkeypatch) as address:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(replica_proof.challenge_request(address, challenge))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()


def test_both_sides_say_the_same() -> None:
    assert model_server_key.PROOF_PATH == replica_proof.PATH
    assert model_server_key.CHALLENGE_HEADER.decode() == replica_proof.CHALLENGE_HEADER.lower()
    assert not replica_proof.is_proof(replica_proof.proof("", "0", "a:1"), "", "0", "a:1")
