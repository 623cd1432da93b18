"""Passwords, the limit on wrong ones, and the second factor of a user.

Passwords are hashed with Argon2id and checked in a thread. A check takes as long when the account does not
exist. Hash and second factor are secrets of the user account and are deleted with it. An attempt is counted
before its password is checked, so many attempts at the same time gain nothing. Counts are marks of the store:
they expire by themselves, survive a restart, and are bounded in number.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

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


def locked_until(tx: Transaction, counted: Iterable[Counted], now: datetime) -> datetime | None:
    """The time until which one of these has had too many; None when none has."""
    found = [(tx.mark(each.space, each.name, now), each.limit) for each in counted]
    return max((mark.until for mark, limit in found if mark and mark.amount >= limit), default=None)


def count_attempt(tx: Transaction, counted: Iterable[Counted], now: datetime) -> datetime | None:
    """Count one for each; when no more are allowed for now, until when, and nothing is counted."""
    counted = tuple(counted)
    locked = locked_until(tx, counted, now)
    if locked is not None:
        return locked
    for each in counted:
        known = tx.mark(each.space, each.name, now)
        if known is None and not _has_space(tx, each, now):
            return now + WINDOW
        mark = Mark(known.amount + 1, known.until) if known else Mark(1, now + WINDOW)
        tx.put_mark(each.space, each.name, mark)
    return None


def uncount_attempt(tx: Transaction, counted: Iterable[Counted], now: datetime) -> None:
    """The attempt that was counted was right after all, or was never made."""
    for each in counted:
        known = tx.mark(each.space, each.name, now)
        if known is not None and known.amount > 1:
            tx.put_mark(each.space, each.name, Mark(known.amount - 1, known.until))
        elif known is not None:
            tx.remove_mark(each.space, each.name)


def clear_attempts(tx: Transaction, counted: Iterable[Counted]) -> None:
    """The right password came, or an admin set a new one."""
    for each in counted:
        tx.remove_mark(each.space, each.name)


def clear_address_attempts(tx: Transaction, email: str) -> None:
    clear_attempts(tx, (of_address(email),))


def _has_space(tx: Transaction, wanted: Counted, now: datetime) -> bool:
    if tx.count_marks(wanted.space) < MAX_COUNTED:
        return True
    return tx.forget_marks(wanted.space, now, below=wanted.limit, limit=FORGOTTEN_TOGETHER) > 0


_TOTP = "totp"


def has_second_factor(tx: Transaction, account_id: str) -> bool:
    return bool(_read_totp(tx, account_id).get("is_confirmed"))


def propose_second_factor(tx: Transaction, account_id: str, secret: str) -> None:
    """It counts from the first right code on."""
    _write_totp(tx, account_id, {"secret": secret, "is_confirmed": False, "last_step": 0})


def use_code(tx: Transaction, account_id: str, code: str, now: datetime, *, confirm: bool = False) -> bool:
    """Whether the code is right and was not used before; it is used up now."""
    known = _read_totp(tx, account_id)
    if not known:
        return False
    step = totp_step(known["secret"], code, now, known["last_step"])
    if step is None:
        return False
    is_confirmed = known["is_confirmed"] or confirm
    _write_totp(tx, account_id, {**known, "last_step": step, "is_confirmed": is_confirmed})
    return True


def remove_second_factor(tx: Transaction, account_id: str) -> None:
    _write_totp(tx, account_id, {})


def _read_totp(tx: Transaction, account_id: str) -> dict[str, Any]:
    return json.loads(tx.secret(account_id, _TOTP) or b"{}")


def _write_totp(tx: Transaction, account_id: str, known: dict[str, Any]) -> None:
    tx.put_secret(account_id, _TOTP, json.dumps(known).encode())
