# pyright: standard
"""Send many requests at a time to an OpenAI-compatible address, time them, and count their answers."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neocloud.model_gateway.routing.upstream import ConnectionPool, ReplicaFailed


@dataclass(frozen=True)
class StreamOutcome:
    request_id: str
    status: int
    """0: the connection broke."""
    first_seconds: float
    """Seconds to the first byte of the answer's body."""
    seconds: float
    content: bytes

    @property
    def has_error(self) -> bool:
        return self.status != 200 or b'"error"' in self.content

    @property
    def is_whole(self) -> bool:
        """Return whether it is an answer, or a complete stream."""
        return self.status == 200 and (not self.content.startswith(b"data:") or b"[DONE]" in self.content)

    def usage(self) -> dict[str, Any] | None:
        """The usage of an answer, or of a stream that was requested with it."""
        events = self.content.split(b"\n\n") if self.content.startswith(b"data:") else [self.content]
        for event in reversed(events):
            if b'"usage"' in event:
                return json.loads(event.removeprefix(b"data: ")).get("usage")
        return None


def request_bytes(
    address: str, token: str, body: Mapping[str, object], path: str = "/v1/chat/completions"
) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def ask(pool: ConnectionPool, address: str, request: bytes) -> StreamOutcome:
    """Send one request; an error is an outcome too."""
    started = time.perf_counter()
    first, status, request_id = 0.0, 0, ""
    pieces: list[bytes] = []
    connection = None
    try:
        connection = await pool.acquire(address)
        connection.send(request)
        status = await connection.head()
        request_id = dict(connection.headers).get(b"x-request-id", b"").decode()
        while piece := await connection.read():
            first = first or time.perf_counter() - started
            pieces.append(piece)
    except ReplicaFailed:
        status = 0
    finally:
        if connection is not None:
            pool.release(address, connection)
    return StreamOutcome(request_id, status, first, time.perf_counter() - started, b"".join(pieces))


async def keep_asking(
    address: str,
    make_request: Callable[[int], bytes],
    *,
    streams: int,
    seconds: float,
    pool: ConnectionPool | None = None,
) -> list[StreamOutcome]:
    """Keep this many requests under way; at the end, finish those, and close the connections."""
    pool = pool or ConnectionPool()
    outcomes: list[StreamOutcome] = []
    deadline = time.perf_counter() + seconds
    numbers = iter(range(10**12))

    async def one_after_the_other(delay: float) -> None:
        await asyncio.sleep(delay)
        while time.perf_counter() < deadline:
            outcomes.append(await ask(pool, address, make_request(next(numbers))))

    spread = min(seconds / 10, 0.5)  # so that not all begin in the same moment
    await asyncio.gather(*(one_after_the_other(spread * place / streams) for place in range(streams)))
    pool.close()
    return outcomes
