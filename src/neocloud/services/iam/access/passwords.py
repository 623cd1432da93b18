"""Passwords: hashed with Argon2id, checked in a thread, and never in less time because nobody is there.

A password's hash is a secret of its user account and goes with it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from neocloud.core import contract
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction

PASSWORDS = "iam.passwords"
_PASSWORD = "password"
_AT_ONCE = 4
"""Each check takes 64 MiB for as long as it lasts; more than these wait,"""
_MAX_WAITING = 64
"""and more than these are sent away, whoever they are."""


class PasswordChecker:
    """Slow on purpose, so it works beside the event loop and only some at a time. One for the whole cloud, in
    `Dependencies.extras`."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0
        self._nobodys_hash = ""

    async def matches(self, password: str, password_hash: str | None) -> bool:
        """Without a hash the answer is no, and takes as long."""
        if not self._nobodys_hash:
            self._nobodys_hash = await self.hash(secrets.token_urlsafe(32))
        async with self._queue():
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
        if self._waiting >= _MAX_WAITING:
            raise contract.unavailable("Too many people sign in at this moment. Try again in some seconds.")
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1


def checker_of(dependencies: Dependencies) -> PasswordChecker:
    return dependencies.extras[PASSWORDS]


def generate_password() -> str:
    """125 bits, in groups that can be read out."""
    alphabet = "abcdefghjkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(alphabet) for _ in range(5)) for _ in range(5))


def password_hash(tx: Transaction, account_id: str) -> str | None:
    found = tx.secret(account_id, _PASSWORD)
    return found.decode() if found else None


def put_password_hash(tx: Transaction, account_id: str, hashed: str) -> None:
    tx.put_secret(account_id, _PASSWORD, hashed.encode())
