"""Applies the lifecycle rules of a bucket: what is due is expired, moved to another class or aborted.

The worker looks at pages of versions and then changes what it found in transactions, each of which looks
again: an object that was rewritten or read meanwhile, or is locked, stays. A worker that is killed continues
where the rules still match.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.errors import ObjectLocked
from neocloud.object_store.lifecycle_rules import LifecycleFilter, LifecycleRule, Transition
from neocloud.object_store.metadata import database, uploads, versions
from neocloud.object_store.metadata.transaction import BucketRow, Transaction, kind_of, to_ms, to_time
from neocloud.object_store.metadata.uploads import UploadRow
from neocloud.object_store.metadata.versions import VersionRow
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import DeleteItem

_PAGE = 500


class LifecycleAction(StrEnum):
    EXPIRE = "expire"
    """Delete the object: with versioning, write a delete marker."""
    REMOVE = "remove"
    """Remove a noncurrent version or a delete marker that has no versions."""
    MOVE = "move"
    """Change the storage class."""
    ABORT = "abort"
    """Abort an upload."""


@dataclass(frozen=True)
class _Due:
    action: LifecycleAction
    row: VersionRow
    rank: int
    """Its place among the noncurrent versions of its key."""
    storage_class: StorageClass | None = None


@dataclass(frozen=True)
class _Round:
    now: datetime
    tracked_ms: int
    """Since when reads are known."""


async def apply_lifecycle(engine: Engine, bucket_id: str, now: datetime) -> Mapping[LifecycleAction, int]:
    """Do all that is due in a bucket; return how often. Raises NoSuchBucket, StoreFull, StoreUnavailable."""
    done: Counter[LifecycleAction] = Counter()
    bucket = engine.bucket(bucket_id)
    rules = [rule for rule in bucket.bucket.lifecycle if rule.is_enabled]
    if not rules:
        return done
    await engine.database.flush()  # the reads so far
    round = _Round(now, database.tracked_since_ms(engine.database.reading))
    position, rank = (b"", 2**62), 0
    while True:
        page = _page(engine, bucket, *position)
        due: list[_Due] = []
        for row in page:
            rank = rank + 1 if row.key == position[0] and not row.is_latest else int(not row.is_latest)
            position = (row.key, row.seq)
            due += _due(rules, bucket, row, rank, round)
        if due:
            done += await engine.database.write(lambda tx, due=due: _act(tx, bucket_id, due, round))
        if len(page) < _PAGE:
            break
        await asyncio.sleep(0)
    done += await _abort_uploads(engine, bucket, rules, now)
    return done


def _page(engine: Engine, bucket: BucketRow, key: bytes, seq: int) -> Sequence[VersionRow]:
    """Return the next versions by key, the newest first."""
    found = engine.database.reading.execute(
        f"SELECT {versions.COLUMNS} FROM version WHERE bucket = ? AND key = ? AND seq < ?"  # nosec B608
        " ORDER BY key, seq DESC LIMIT ?",
        (bucket.number, key, seq, _PAGE),
    ).fetchall()
    found += engine.database.reading.execute(
        f"SELECT {versions.COLUMNS} FROM version WHERE bucket = ? AND key > ?"  # nosec B608
        " ORDER BY key, seq DESC LIMIT ?",
        (bucket.number, key, _PAGE - len(found)),
    ).fetchall()
    return [VersionRow._make(row) for row in found]


def _due(
    rules: Sequence[LifecycleRule], bucket: BucketRow, row: VersionRow, rank: int, round: _Round
) -> Iterator[_Due]:
    """Return what has to be done with a version: one thing at most, deletion first. If several transitions
    are due, the last one counts, so that rules do not move an object back and forth."""
    matching = [rule for rule in rules if _matches(rule.filter, bucket, row)]
    if any(_expires(rule, row, rank, round.now) for rule in matching):
        is_expired = row.is_latest and not row.is_marker
        yield _Due(LifecycleAction.EXPIRE if is_expired else LifecycleAction.REMOVE, row, rank)
        return
    moves = [move for rule in matching if (move := _move(rule, row, rank, round.tracked_ms))]
    moves = [(at, target) for at, target in moves if at <= round.now]
    if moves and (target := max(moves, key=lambda move: move[0])[1]) != row.storage_class:
        yield _Due(LifecycleAction.MOVE, row, rank, target)


def _expires(rule: LifecycleRule, row: VersionRow, rank: int, now: datetime) -> bool:
    if row.is_latest and row.is_marker:
        return rule.expire_lone_delete_markers
    if row.is_latest:
        return _is_reached(rule.expire_at, now) or _is_over(row.modified_ms, rule.expire_days, now)
    if rule.noncurrent_days is None and not rule.noncurrent_kept:
        return False
    return rank > rule.noncurrent_kept and _is_over(row.noncurrent_ms, rule.noncurrent_days or 0, now)


def _move(
    rule: LifecycleRule, row: VersionRow, rank: int, tracked_ms: int
) -> tuple[datetime, StorageClass] | None:
    """Return when the rule moves a version, and into which class; None: never, as things are."""
    if row.is_marker:
        return None
    if row.is_latest:
        at = rule.transition and _moves_at(rule.transition, row, tracked_ms)
        return None if rule.transition is None or at is None else (at, rule.transition.storage_class)
    days, to = rule.noncurrent_transition_days, rule.noncurrent_transition_class
    if days is None or to is None or row.noncurrent_ms is None or rank <= rule.noncurrent_transition_kept:
        return None
    return _end(row.noncurrent_ms, days), to


def _moves_at(to: Transition, row: VersionRow, tracked_ms: int) -> datetime | None:
    if to.days is not None:
        return _end(row.modified_ms, to.days)
    if to.days_since_last_access is not None:
        last_ms = max(row.modified_ms, row.accessed_ms or 0, tracked_ms)
        return _end(last_ms, to.days_since_last_access)
    return to.date


def _matches(filter: LifecycleFilter, bucket: BucketRow, row: VersionRow) -> bool:
    if not row.key.startswith(filter.prefix.encode()):
        return False
    if row.is_marker:
        return not filter.tags and filter.larger_than is None and filter.smaller_than is None
    if filter.larger_than is not None and row.size <= filter.larger_than:
        return False
    if filter.smaller_than is not None and row.size >= filter.smaller_than:
        return False
    return not filter.tags or filter.tags.items() <= versions.show(row, bucket).attributes.tags.items()


def _is_reached(date: datetime | None, now: datetime) -> bool:
    return date is not None and date <= now


def _is_over(since_ms: int | None, days: int | None, now: datetime) -> bool:
    """Return whether so many days are over, and the midnight (UTC) after them."""
    if since_ms is None or days is None:
        return False
    return now >= _end(since_ms, days)


def _end(since_ms: int, days: int) -> datetime:
    """Return the midnight (UTC) after so many days."""
    end = to_time(since_ms) + timedelta(days=days)
    midnight = end.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if midnight == end else midnight + timedelta(days=1)


def expiration(bucket: BucketRow, row: VersionRow) -> datetime | None:
    """Return when the rules let a version go, as far as that is known now: noncurrent versions of which some
    are kept, and delete markers, depend on what comes."""
    ends: list[datetime] = []
    for rule in bucket.bucket.lifecycle:
        if row.is_marker or not rule.is_enabled or not _matches(rule.filter, bucket, row):
            continue
        if row.is_latest and rule.expire_at is not None:
            ends.append(rule.expire_at)
        days = rule.expire_days if row.is_latest else rule.noncurrent_days
        since_ms = row.modified_ms if row.is_latest else row.noncurrent_ms
        if days is not None and since_ms is not None and (row.is_latest or not rule.noncurrent_kept):
            ends.append(_end(since_ms, days))
    return min(ends, default=None)


def _act(tx: Transaction, bucket_id: str, due: Sequence[_Due], round: _Round) -> Counter[LifecycleAction]:
    bucket = tx.bucket(bucket_id)
    rules = [rule for rule in bucket.bucket.lifecycle if rule.is_enabled]
    done: Counter[LifecycleAction] = Counter()
    for each in due:
        row = versions.select(tx.connection, "seq = ?", (each.row.seq,))
        if row is None or row.is_latest != each.row.is_latest:
            continue
        if not any(_is_same(each, now_due) for now_due in _due(rules, bucket, row, each.rank, round)):
            continue
        try:
            done[each.action] += _do(tx, bucket, row, each)
        except ObjectLocked:
            continue
    return done


def _is_same(one: _Due, other: _Due) -> bool:
    return (one.action, one.storage_class) == (other.action, other.storage_class)


def _do(tx: Transaction, bucket: BucketRow, row: VersionRow, due: _Due) -> bool:
    if due.action is LifecycleAction.EXPIRE:
        item = DeleteItem(row.key.decode())
        versions.delete(tx, bucket, row.key, item, bypass_governance=False)
    elif due.action is LifecycleAction.MOVE:
        assert due.storage_class is not None
        kind = kind_of(bool(row.is_latest), row.part_count)
        tx.changes.add(row.bucket, StorageClass(row.storage_class), kind, -1, -row.size)
        tx.changes.add(row.bucket, due.storage_class, kind, 1, row.size)
        tx.connection.execute("UPDATE version SET class = ? WHERE seq = ?", (due.storage_class, row.seq))
    else:
        if row.is_latest and _has_others(tx, row):
            return False
        versions.check_unlocked(tx, row, bypass_governance=False)
        versions.remove(tx, row)
    return True


def _has_others(tx: Transaction, row: VersionRow) -> bool:
    return (
        versions.select(tx.connection, "bucket = ? AND key = ? AND seq <> ?", (row.bucket, row.key, row.seq))
        is not None
    )


async def _abort_uploads(
    engine: Engine, bucket: BucketRow, rules: Sequence[LifecycleRule], now: datetime
) -> Counter[LifecycleAction]:
    where = "bucket = ? AND created_ms <= ? ORDER BY number"
    done: Counter[LifecycleAction] = Counter()
    days = [each.abort_upload_days for each in rules if each.abort_upload_days is not None]
    if not days:
        return done
    oldest = to_ms(now - timedelta(days=min(days)))
    found = [
        UploadRow._make(row) for row in uploads.select(engine.database.reading, where, bucket.number, oldest)
    ]
    for each in found:
        if any(
            each.key.startswith(rule.filter.prefix.encode())
            and _is_over(each.created_ms, rule.abort_upload_days, now)
            for rule in rules
        ):
            done[LifecycleAction.ABORT] += await engine.database.write(lambda tx, each=each: _abort(tx, each))
    return done


def _abort(tx: Transaction, upload: UploadRow) -> int:
    found = uploads.by_id(tx.connection, upload.id)
    if found is None:
        return 0
    uploads.abort(tx, found)
    return 1
