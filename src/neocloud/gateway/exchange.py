"""One request to a model while it is under way, and who takes its answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from neocloud.gateway.accounts import Account
from neocloud.gateway.asked import Asked
from neocloud.gateway.callers import Caller
from neocloud.gateway.upstream import Connection

Headers = Sequence[tuple[bytes, bytes]]


class Sink(Protocol):
    """Takes the answer. Each call may wait for a slow reader."""

    async def whole(self, status: int, headers: Headers, data: bytes) -> None: ...

    async def start(self, status: int, headers: Headers) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def end(self) -> None: ...


class Stopped(Exception):
    """The exchange was ended from outside; why is in it."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request under way. `stop` ends it at once, wherever it is."""

    request_id: str
    caller: Caller
    project_id: str
    asked: Asked
    wait_seconds: float = 0.0
    is_batch: bool = False
    renew: Callable[[], Awaitable[Caller]] | None = None
    """Gives the caller as it is now; the proxy asks while the request is under way."""
    arrived: float = field(default_factory=time.perf_counter)
    reason: str = ""
    """Why it was stopped: "client_left", "silent" or "right_ended"."""
    heard_at: float = 0.0
    """When the engine was last heard of, while we wait for it; 0: we do not."""
    sent_at: float = 0.0
    first_at: float = 0.0
    was_sent: bool = False
    """An engine may have worked on it."""
    status: int = 0
    connection: Connection | None = None
    waiting: "asyncio.Future[None] | None" = None
    account: Account | None = None
    renewed_at: float = field(default_factory=time.perf_counter)

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self.connection is not None:
            self.connection.abort()
        if self.waiting is not None:
            self.waiting.cancel()

    def check(self) -> None:
        if self.reason:
            raise Stopped(self.reason)
