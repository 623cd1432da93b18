"""Passwords: hashed with Argon2id, checked in a thread, and never in less time because nobody is there.

A password's hash is a secret of its user account and goes with it.
"""

import asyncio
import secrets
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction

PASSWORDS = "iam.passwords"
_PASSWORD = "password"
_HASHER = PasswordHasher()
_AT_ONCE = 4
"""Each check takes 64 MiB for as long as it lasts; more than these wait."""


class PasswordChecker:
    """Slow on purpose, so it works beside the event loop and only some at a time. One for the whole cloud, in
    `Dependencies.extras`."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def matches(self, password: str, password_hash: str | None) -> bool:
        """Without a hash the answer is no, and takes as long."""
        async with self._turn:
            return await asyncio.to_thread(_matches, password, password_hash)

    async def hash(self, password: str) -> str:
        async with self._turn:
            return await asyncio.to_thread(_HASHER.hash, password)


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


def is_outdated(hashed: str) -> bool:
    """Made with weaker parameters than those of today."""
    return _HASHER.check_needs_rehash(hashed)


@cache
def _nobodys_hash() -> str:
    return _HASHER.hash(secrets.token_urlsafe(32))


def _matches(password: str, hashed: str | None) -> bool:
    try:
        return _HASHER.verify(hashed or _nobodys_hash(), password) and hashed is not None
    except (VerificationError, InvalidHashError):
        return False
