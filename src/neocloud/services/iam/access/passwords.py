"""Passwords: hashed with Argon2id, checked in a thread, and never in less time because nobody is there.

A password's hash is a secret of its user account and goes with it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from neocloud.core import contract
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction

_PASSWORD = "password"
MAX_AT_ONCE = 2
"""Each check takes 64 MiB and a processor for as long as it lasts; more than these wait,"""
MAX_WAITING = 16
"""more than these are sent away, whoever they are,"""
MAX_WAIT_SECONDS = 10.0
"""and who has waited so long, too."""


class PasswordChecker:
    """Slow on purpose, so it works beside the event loop and only some at a time. There is one in
    each control plane."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turn = asyncio.Semaphore(MAX_AT_ONCE)
        self._waiting = 0
        self._nobodys_hash = ""

    async def matches(
        self, password: str, password_hash: str | None, *, first: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Without a hash the answer is no, and takes as long. `first` runs when it is this one's turn. Raises
        ApiError (too many requests) when there are too many at once, and what `first` raises."""
        if not self._nobodys_hash:
            self._nobodys_hash = await self.hash(secrets.token_urlsafe(32))
        async with self._queue():
            if first is not None:
                await first()
            return await asyncio.to_thread(self._matches, password, password_hash)

    async def hash(self, password: str) -> str:
        async with self._queue():
            return await asyncio.to_thread(self._hasher.hash, password)

    def is_outdated(self, hashed: str) -> bool:
        """Made with other parameters than those of today."""
        return self._hasher.check_needs_rehash(hashed)

    def _matches(self, password: str, hashed: str | None) -> bool:
        try:
            return self._hasher.verify(hashed or self._nobodys_hash, password) and hashed is not None
        except (VerificationError, InvalidHashError):
            return False

    @asynccontextmanager
    async def _queue(self) -> AsyncIterator[None]:
        if self._waiting >= MAX_WAITING:
            raise _too_many()
        self._waiting += 1
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise _too_many() from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()


def _too_many() -> contract.ApiError:
    return contract.too_many_requests(
        "Too many people sign in at this moment. Try again in some seconds.",
        retry_after_seconds=MAX_WAIT_SECONDS,
    )


def checker_of(dependencies: Dependencies) -> PasswordChecker:
    return dependencies.provided.get(PasswordChecker)


def generate_password() -> str:
    """125 bits, in groups that can be read out."""
    alphabet = "abcdefghjkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(alphabet) for _ in range(5)) for _ in range(5))


def password_hash(tx: Transaction, account_id: str) -> str | None:
    found = tx.secret(account_id, _PASSWORD)
    return found.decode() if found else None


def put_password_hash(tx: Transaction, account_id: str, hashed: str) -> None:
    tx.put_secret(account_id, _PASSWORD, hashed.encode())
