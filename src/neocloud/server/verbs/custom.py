"""Serve a service's own method: check request and permission, call the handler, record the change.

The handler writes to the store by itself, so its idempotency key is remembered after it, in a transaction
of its own; calls with the same key wait for one another meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.server.access import (
    accounts_of,
    refuse_limited,
    require,
    require_acting,
    require_references,
)
from neocloud.server.auditing import note_change
from neocloud.server.changes import recall, remember
from neocloud.server.request import IDEMPOTENCY_HEADER, Request
from neocloud.server.runtime import Runtime
from neocloud.server.validation import check


class Custom:
    def __init__(self, runtime: Runtime, method: Method) -> None:
        self._runtime = runtime
        self._method = method
        self._keys = KeyLocks()

    async def __call__(self, request: Request) -> Any:
        target = self._target(request)
        if self._method.permission:
            if not target:
                check(request.message)
                raise contract.bad_request([], "The request does not say which resource it is about.")
            await require(self._runtime, request, self._method.permission, target)
        else:
            self._check(request)
            if self._method.is_change:
                refuse_limited(request)
        if request.subject is not None:
            await require_references(self._runtime, request, target)
            if self._method.is_change and not self._method.is_ending:
                await require_acting(self._runtime, request, await accounts_of(self._runtime, target))
        self._check(request)
        if not self._method.is_change:
            return await self._handle(request)
        async with self._keys.held(f"{request.subject_id} {request.headers.get(IDEMPOTENCY_HEADER, '')}"):
            return await self._change(request, target)

    def _check(self, request: Request) -> None:
        if self._method.is_checked:
            check(request.message)

    def _target(self, request: Request) -> str:
        if self._method.target is not None:
            return self._method.target(request.message)
        return request.subject.tenant_id if request.subject else ""

    async def _handle(self, request: Request) -> Any:
        call = Call(request.subject, request.request_id, request.headers, self._runtime.dependencies)
        return await self._method.handler(call, request.message)

    async def _change(self, request: Request, target: str) -> Any:
        if IDEMPOTENCY_HEADER in request.headers:
            replayed = await self._runtime.store.read(lambda tx: recall(tx, request))
            if replayed is not None:
                return replayed
        answer = await self._handle(request)
        now = self._runtime.now()

        def record(tx: Transaction) -> None:
            note_change(tx, request, now, target)
            # An answer that holds a secret is given once and never kept.
            if contract.redact(answer) == answer:
                remember(tx, request, answer, self._runtime.now())

        await self._runtime.store.write(record)
        self._runtime.notify()
        return answer


class KeyLocks:
    """One lock for each key that is in use; nothing is kept for the others."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """A key that ends in a space stands for a request without one, and waits for nobody."""
        if key.endswith(" "):
            yield
            return
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
