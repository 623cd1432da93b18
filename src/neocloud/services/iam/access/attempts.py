"""Counts wrong passwords, for every address alike, whether it has an account or not.

An attempt is counted before its password is looked at, so guessing many at once does not help. Counts are
marks of the store: they end by themselves, a restart forgets none, and a bounded number is kept.
"""

from collections.abc import Iterable
from datetime import datetime

from neocloud.core.store.protocol import Mark, Transaction
from neocloud.services.iam.rules.attempts import FORGOTTEN_AT_ONCE, MAX_COUNTED, WINDOW, Counted, of_address


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
        if known is None and not _has_room(tx, each, now):
            return now + WINDOW
        mark = Mark(known.amount + 1, known.until) if known else Mark(1, now + WINDOW)
        tx.put_mark(each.space, each.name, mark)
    return None


def take_back(tx: Transaction, counted: Iterable[Counted], now: datetime) -> None:
    """The attempt that was counted was right after all, or was never made."""
    for each in counted:
        known = tx.mark(each.space, each.name, now)
        if known is not None and known.amount > 1:
            tx.put_mark(each.space, each.name, Mark(known.amount - 1, known.until))
        elif known is not None:
            tx.remove_mark(each.space, each.name)


def forgive(tx: Transaction, counted: Iterable[Counted]) -> None:
    """The right password came, or an admin set a new one."""
    for each in counted:
        tx.remove_mark(each.space, each.name)


def forgive_address(tx: Transaction, email: str) -> None:
    forgive(tx, (of_address(email),))


def _has_room(tx: Transaction, wanted: Counted, now: datetime) -> bool:
    if tx.count_marks(wanted.space) < MAX_COUNTED:
        return True
    return tx.forget_marks(wanted.space, now, below=wanted.limit, limit=FORGOTTEN_AT_ONCE) > 0
