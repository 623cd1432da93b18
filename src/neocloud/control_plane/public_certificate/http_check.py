"""Answer an authority's check of a name by HTTP (http-01 of RFC 8555), on a port that is open no longer."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from socket import socket

CHECK_SECONDS = 5.0
"""Time for one request, with its answer."""
MAX_CHECK_BYTES = 4096
MAX_CHECKS = 64
"""Connections; the newest replaces the oldest, so that other clients do not keep an authority out."""


@asynccontextmanager
async def answering(listeners: Sequence[socket], answers: Mapping[str, str]) -> AsyncGenerator[None]:
    """Answer GET requests for these paths while the context lasts, and nothing else."""
    connections: dict[asyncio.StreamWriter, None] = {}
    """In the order in which they began."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= MAX_CHECKS:
            oldest = next(iter(connections))
            del connections[oldest]
            oldest.transport.abort()
        connections[writer] = None
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, *_ = [*head.split(b"\r\n")[0].decode("latin-1").split(" "), "", ""]
                found = answers.get(path) if method == "GET" else None
                writer.write(_response(found))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.transport.abort()
            connections.pop(writer, None)

    servers = [await asyncio.start_server(serve, sock=each, limit=MAX_CHECK_BYTES) for each in listeners]
    try:
        yield
    finally:
        for server in servers:
            server.close()
        for each in tuple(connections):
            each.transport.abort()  # which ends its task without a traceback in the log


def _response(content: str | None) -> bytes:
    status, body = ("404 Not Found", b"") if content is None else ("200 OK", content.encode())
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body
