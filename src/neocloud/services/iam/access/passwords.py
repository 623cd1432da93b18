"""Passwords, the limit on wrong ones, and the second factor of a user.

Passwords are hashed with Argon2id and checked in a thread. A check takes equally long when the account does
not exist. Hash and second factor are secrets of the user account and are deleted with it. An attempt is
counted before its password is checked, so many attempts at the same time gain nothing. Counts are marks of
the store: they expire by themselves, survive a restart, and are bounded in number.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypedDict

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from neocloud.core import contract
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Mark, Transaction
from neocloud.services.iam.rules.people import (
    FORGOTTEN_TOGETHER,
    MAX_COUNTED,
    WINDOW,
    Counted,
    of_address,
    totp_step,
)

_PASSWORD = "password"
MAX_CONCURRENT = 2
"""Concurrent checks: each takes 64 MiB and a processor while it lasts."""
MAX_WAITING = 16
"""Checks that wait for their turn; more are refused."""
MAX_WAIT_SECONDS = 10.0
"""A check that has waited for this long is refused."""


class PasswordChecker:
    """Hashes and checks passwords in threads, a few at a time, because that is slow on purpose. There is one
    in each control plane."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._waiting = 0
        self._dummy_hash = ""

    async def matches(
        self, password: str, password_hash: str | None, *, first: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Return whether the password is right. Without a hash it is not, which takes equally long to find
        out. `first` runs when it is the turn of this check. Raises ApiError (too many requests) when too many
        wait, and the errors of `first`."""
        if not self._dummy_hash:
            self._dummy_hash = await self.hash(secrets.token_urlsafe(32))
        async with self._queue():
            if first is not None:
                await first()
            return await asyncio.to_thread(self._matches, password, password_hash)

    async def hash(self, password: str) -> str:
        async with self._queue():
            return await asyncio.to_thread(self._hasher.hash, password)

    def is_outdated(self, hashed: str) -> bool:
        """Return whether a hash was made with other parameters than those in use now."""
        return self._hasher.check_needs_rehash(hashed)

    def _matches(self, password: str, hashed: str | None) -> bool:
        try:
            return self._hasher.verify(hashed or self._dummy_hash, password) and hashed is not None
        except (VerificationError, InvalidHashError):
            return False

    @asynccontextmanager
    async def _queue(self) -> AsyncGenerator[None]:
        if self._waiting >= MAX_WAITING:
            raise _too_many()
        self._waiting += 1
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise _too_many() from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()


def _too_many() -> contract.ApiError:
    return contract.too_many_requests(
        "Too many people are signing in at this moment. Try again in a few seconds.",
        retry_after_seconds=MAX_WAIT_SECONDS,
    )


def checker_of(dependencies: Dependencies) -> PasswordChecker:
    return dependencies.provided.get(PasswordChecker)


def generate_password() -> str:
    """Return a random password of 125 bits, in groups that can be read aloud."""
    alphabet = "abcdefghjkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(alphabet) for _ in range(5)) for _ in range(5))


def password_hash(tx: Transaction, account_id: str) -> str | None:
    found = tx.secret(account_id, _PASSWORD)
    return found.decode() if found else None


def put_password_hash(tx: Transaction, account_id: str, hashed: str) -> None:
    tx.put_secret(account_id, _PASSWORD, hashed.encode())


def locked_until(tx: Transaction, counted: Iterable[Counted], now: datetime) -> datetime | None:
    """Return the time until which one of these is locked; None when none is."""
    found = [(tx.mark(each.space, each.name, now), each.limit) for each in counted]
    return max((mark.until for mark, limit in found if mark and mark.amount >= limit), default=None)


def count_attempt(tx: Transaction, counted: Iterable[Counted], now: datetime) -> datetime | None:
    """Count one attempt for each. When one is locked, count nothing and return until when it is."""
    counted = tuple(counted)
    locked = locked_until(tx, counted, now)
    if locked is not None:
        return locked
    for each in counted:
        known = tx.mark(each.space, each.name, now)
        if known is None and not _can_count(tx, each, now):
            return now + WINDOW
        mark = Mark(known.amount + 1, known.until) if known else Mark(1, now + WINDOW)
        tx.put_mark(each.space, each.name, mark)
    return None


def uncount_attempt(tx: Transaction, counted: Iterable[Counted], now: datetime) -> None:
    """Take back one counted attempt, because its password was right or was never checked."""
    for each in counted:
        known = tx.mark(each.space, each.name, now)
        if known is not None and known.amount > 1:
            tx.put_mark(each.space, each.name, Mark(known.amount - 1, known.until))
        elif known is not None:
            tx.remove_mark(each.space, each.name)


def clear_attempts(tx: Transaction, counted: Iterable[Counted]) -> None:
    """Reset the counts, after the right password or when an admin has set a new one."""
    for each in counted:
        tx.remove_mark(each.space, each.name)


def clear_address_attempts(tx: Transaction, email: str) -> None:
    clear_attempts(tx, (of_address(email),))


def _can_count(tx: Transaction, wanted: Counted, now: datetime) -> bool:
    if tx.count_marks(wanted.space) < MAX_COUNTED:
        return True
    return tx.forget_marks(wanted.space, now, below=wanted.limit, limit=FORGOTTEN_TOGETHER) > 0


_TOTP = "totp"


class _Totp(TypedDict):
    """The stored second factor of an account."""

    secret: str
    is_confirmed: bool
    last_step: int
    """The time step of the last code that was used."""


def has_second_factor(tx: Transaction, account_id: str) -> bool:
    known = _read_totp(tx, account_id)
    return known is not None and known["is_confirmed"]


def propose_second_factor(tx: Transaction, account_id: str, secret: str) -> None:
    """Store a second factor that takes effect once a right code confirms it."""
    _write_totp(tx, account_id, {"secret": secret, "is_confirmed": False, "last_step": 0})


def use_code(tx: Transaction, account_id: str, code: str, now: datetime, *, confirm: bool = False) -> bool:
    """Return whether the code is right and was not used before. It cannot be used again."""
    known = _read_totp(tx, account_id)
    if known is None:
        return False
    step = totp_step(known["secret"], code, now, known["last_step"])
    if step is None:
        return False
    is_confirmed = known["is_confirmed"] or confirm
    _write_totp(tx, account_id, {**known, "last_step": step, "is_confirmed": is_confirmed})
    return True


def remove_second_factor(tx: Transaction, account_id: str) -> None:
    _write_totp(tx, account_id, None)


def _read_totp(tx: Transaction, account_id: str) -> _Totp | None:
    return json.loads(tx.secret(account_id, _TOTP) or b"{}") or None


def _write_totp(tx: Transaction, account_id: str, known: _Totp | None) -> None:
    tx.put_secret(account_id, _TOTP, json.dumps(known or {}).encode())
