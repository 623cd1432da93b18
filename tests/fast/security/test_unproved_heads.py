"""A server that has not proved to be a replica sends the gateway no more than an answer to a challenge may
have.
"""

import asyncio
from contextlib import suppress

import pytest

from neocloud.data_plane.replica_proof import ANSWER_BYTES
from neocloud.model_gateway.routing.upstream import ConnectionPool, ReplicaFailed


@pytest.mark.parametrize(
    "endless", [b"a: b\r\n" * 1000, b"a" * 6000, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" * 200]
)
async def test_a_head_without_end_is_not_read(endless: bytes) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        with suppress(ConnectionError):
            while sent < 64 << 20:
                writer.write(endless)
                sent += len(endless)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ReplicaFailed):
            await asyncio.wait_for(ConnectionPool().acquire(f"127.0.0.1:{port}", proved_key="key"), 2)
        await asyncio.sleep(0.1)
    assert sent < 32 << 20, f"the answer may have {ANSWER_BYTES} bytes"
