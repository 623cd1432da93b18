"""Counts wrong passwords, for every address alike, whether it has an account or not.

The counts lie in a fixed number of buckets in the store: guessing addresses cannot make it grow, and a
restart forgets nothing. An attempt is counted before its password is looked at, so guessing many at once does
not help.
"""

import hashlib
import json
from datetime import UTC, datetime

from neocloud.core.store.protocol import Transaction
from neocloud.services.iam.access.users import normal_address
from neocloud.services.iam.resources import SECRETS_ID
from neocloud.services.iam.rules.attempts import Attempts

_BUCKETS = 256


def count_attempt(tx: Transaction, email: str, now: datetime) -> datetime | None:
    """Count one; when no more are allowed for now, until when, and nothing is counted."""
    bucket, name = _bucket(tx, email)
    locked_until = bucket.locked_until(name, now)
    if locked_until is None:
        bucket.count(name, now)
        _write(tx, email, bucket)
    return locked_until


def forgive(tx: Transaction, email: str) -> None:
    """The right password came, or an admin set a new one."""
    bucket, name = _bucket(tx, email)
    if bucket.forget(name):
        _write(tx, email, bucket)


def _bucket(tx: Transaction, email: str) -> tuple[Attempts, str]:
    digest = _digest(email)
    known = json.loads(tx.secret(SECRETS_ID, _place(digest)) or b"{}")
    entries = {name: (count, datetime.fromtimestamp(at, UTC)) for name, (count, at) in known.items()}
    return Attempts(entries), digest[2:18]


def _write(tx: Transaction, email: str, bucket: Attempts) -> None:
    known = {name: (count, at.timestamp()) for name, (count, at) in bucket.entries.items()}
    tx.put_secret(SECRETS_ID, _place(_digest(email)), json.dumps(known).encode())


def _digest(email: str) -> str:
    return hashlib.sha256(normal_address(email).encode()).hexdigest()


def _place(digest: str) -> str:
    return f"attempts/{int(digest[:2], 16) % _BUCKETS}"
