"""One client cannot take all connections to gRPC."""

import asyncio
import socket
from contextlib import ExitStack

import grpc.aio
import pytest

from neocloud.server.grpc_connections import ConnectionShares, _Connection, _shut_down
from neocloud.testing.waiting import until

MOST = 3


def each_address(address: str) -> str:
    """Count loopback, too."""
    return address


async def is_closed(connection: socket.socket) -> bool:
    """Read what the server sends first, until it ends the connection or sends no more."""
    loop = asyncio.get_running_loop()
    with pytest.raises((TimeoutError, EOFError)) as raised:
        while True:
            try:
                async with asyncio.timeout(0.05):
                    read = await loop.sock_recv(connection, 4096)
            except ConnectionResetError:
                read = b""
            if not read:
                raise EOFError
    return raised.type is EOFError


async def test_the_newest_connections_beyond_a_share_are_closed() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    shares = ConnectionShares({port}, MOST, each_address)
    with ExitStack() as stack:

        async def connect() -> socket.socket:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            made.setblocking(False)
            opened.append(made)
            await until(lambda: len(shares.connections()) == len(opened))
            return made

        opened: list[socket.socket] = []
        for _ in range(MOST):
            await connect()
        assert shares.check() == 0
        for _ in range(2):
            await connect()
        assert ConnectionShares({port}, MOST).check() == 0, "this machine's own are not limited"
        assert shares.check() == 2
        assert [await is_closed(each) for each in opened] == [False] * MOST + [True] * 2
        await until(lambda: len(shares.connections()) == MOST)
        assert shares.check() == 0
    await server.stop(0)


def test_another_file_that_got_the_descriptor_meanwhile_is_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other:
        _shut_down(_Connection(one.fileno(), "socket:[0]", "192.0.2.7"))
        one.send(b"still open")
        assert other.recv(64) == b"still open"
