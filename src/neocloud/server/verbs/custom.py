"""Serve a service's own method: check request and permission, call the handler, commit the change.

An alias is served here too: the method behind it gets the translated request.

The handler of a change prepares what it needs and returns a Write, which is committed together with its
audit event and idempotency key. The exception are methods with effects outside of the store (a job submitted
to Slurm, a check of a cluster, an injected fault): their handlers return the answer, which is recorded
afterwards, in a transaction of its own, so a crash in between leaves the effect without a record. Calls of
these with the same idempotency key wait for one another.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.core.service import AnyMethod, Call, MethodAlias, NewOperation, Write
from neocloud.core.store.protocol import Transaction
from neocloud.server.access import (
    accounts_of,
    refuse_limited,
    require,
    require_acting,
    require_references,
)
from neocloud.server.changes import Answered, commit, insert_operation, recall, record
from neocloud.server.request import IDEMPOTENCY_HEADER, Endpoint, Request, Runtime
from neocloud.server.validation import check


class Custom:
    def __init__(self, runtime: Runtime, method: AnyMethod) -> None:
        self._runtime = runtime
        self._method = method
        self._keys = KeyLocks()

    async def __call__(self, request: Request) -> Message:
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
            answer = await self._handle(request)
            assert isinstance(answer, Message), f"{self._method.path} is a read, and returns no Write."
            return answer
        if not self._method.has_outside_effects:
            return await self._change(request, target)
        async with self._keys.held(f"{request.subject_id} {request.headers.get(IDEMPOTENCY_HEADER, '')}"):
            return await self._change_outside(request, target)

    def _check(self, request: Request) -> None:
        if self._method.is_checked:
            check(request.message)

    def _target(self, request: Request) -> str:
        if self._method.target is not None:
            return self._method.target(request.message)
        return request.subject.tenant_id if request.subject else ""

    async def _handle(self, request: Request) -> Message | Write[Message]:
        call = Call(request.subject, request.request_id, request.headers, self._runtime.dependencies)
        return await self._method.handler(call, request.message)

    async def _change(self, request: Request, target: str) -> Message:
        # Before the handler, too: it may refuse what its first attempt made true, or count an attempt.
        if (replayed := await self._recall(request)) is not None:
            return replayed
        write = await self._handle(request)
        assert isinstance(write, Write), f"{self._method.path} is a change, and returns no Write."

        def work(tx: Transaction) -> Answered:
            answer = write.work(tx)
            if not isinstance(answer, NewOperation):
                return Answered(answer, target)
            message = insert_operation(tx, request, answer, self._runtime.now())
            if answer.has_removed:
                return Answered(message, answer.row.id, removed=answer.row)
            # A create is about what it made. A row that is not kept has no place any more.
            return Answered(message, answer.row.id if tx.get(answer.row.id) is not None else target)

        answer = await commit(self._runtime, request, work)
        write.after_commit()
        return answer if write.complete is None else await write.complete(answer)

    async def _change_outside(self, request: Request, target: str) -> Message:
        if (replayed := await self._recall(request)) is not None:
            return replayed
        answer = await self._handle(request)
        assert isinstance(answer, Message), f"{self._method.path} acts outside of the store."
        done = Answered(answer, target)
        await self._runtime.store.write(lambda tx: record(tx, request, done, self._runtime.now()))
        self._runtime.notify()
        return answer

    async def _recall(self, request: Request) -> Message | None:
        if IDEMPOTENCY_HEADER not in request.headers:
            return None
        return await self._runtime.store.read(lambda tx: recall(tx, request))


class KeyLocks:
    """One lock for each key that is in use; nothing is kept for the others."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def held(self, key: str) -> AsyncGenerator[None, None]:
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


class AliasEndpoint:
    def __init__(self, alias: MethodAlias, other: Endpoint) -> None:
        self._alias = alias
        self._other = other

    async def __call__(self, request: Request) -> Message:
        rpc = replace(self._other.rpc, path=request.rpc.path)
        message = self._alias.request(request.message)
        translated = replace(request, rpc=rpc, message=message, original_message=request.message)
        answer = await self._other.serve(translated)
        return answer if self._alias.answer is None else self._alias.answer(answer)
