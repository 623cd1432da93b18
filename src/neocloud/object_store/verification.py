"""Reads all that a store holds, and compares its counters with it. It reports and repairs nothing.

Each frame of a body is authenticated when it is opened, so a changed byte is found without another hash.
Objects that are encrypted by a key of the client cannot be read: their blobs are looked for alone, as are
those of unfinished uploads. Sums over many rows are read in a thread, by a connection of its own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.reader import Reader
from neocloud.object_store.errors import Damaged
from neocloud.object_store.metadata import contents, versions
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.contents import Span
from neocloud.object_store.metadata.transaction import BucketRow, find_bucket, no_such_bucket
from neocloud.object_store.metadata.versions import VersionRow

_PAGE = 100
OVERDUE = timedelta(hours=26)
"""Blobs that crashes left are deleted within an hour when they are a day old."""
Pace = Callable[[int], Awaitable[None]]
"""Called with the bytes that were read since the last call; it may wait."""


@dataclass(frozen=True)
class Problem:
    key: str
    """"": the bucket as a whole."""
    version_id: str
    what: str


@dataclass(frozen=True)
class StoreProblem:
    """Something wrong in a store."""

    bucket: str
    """Its name; "": the store as a whole."""
    problem: Problem


@dataclass
class Checked:
    """The progress of a verification."""

    versions: int = 0
    bytes: int = 0


async def _no_pace(length: int) -> None:
    pass


async def verify_store(
    engine: Engine, now: datetime, checked: Checked, pace: Pace = _no_pace
) -> AsyncIterator[StoreProblem]:
    """Yield what is wrong in a store. Raises StoreUnavailable, BlobError."""
    found = engine.database.reading.execute(
        "SELECT id, name FROM bucket WHERE forgotten_ms IS NULL ORDER BY number"
    ).fetchall()
    for bucket_id, name in found:
        if find_bucket(engine.database.reading, bucket_id) is not None:  # else it was purged meanwhile
            async for problem in verify_bucket(engine, bucket_id, checked, pace):
                yield StoreProblem(name, problem)
    for what in await _in_thread(engine, wrong_uses):
        yield StoreProblem("", Problem("", "", what))
    async for stat in engine.blobs.list():
        is_known = now - stat.written_at <= OVERDUE or contents.is_known(engine.database.reading, stat.name)
        if not is_known and await engine.blobs.stat(stat.name) is not None:  # else it was deleted meanwhile
            what = f"no object uses the blob {stat.name} ({stat.size:,} bytes)"
            yield StoreProblem("", Problem("", "", what))


async def verify_bucket(
    engine: Engine, bucket_id: str, checked: Checked | None = None, pace: Pace = _no_pace
) -> AsyncIterator[Problem]:
    """Yield what is wrong in a bucket in any state. Raises NoSuchBucket, StoreUnavailable.

    Objects that are encrypted by a key of the client cannot be read: their blobs are looked for alone.
    """
    bucket = find_bucket(engine.database.reading, bucket_id)
    if bucket is None:
        raise no_such_bucket()
    checked = checked or Checked()
    for what in await _in_thread(engine, lambda reading: wrong_counters(reading, bucket.number)):
        yield Problem("", "", what)
    seq = 0
    while page := _page(engine, bucket, seq):
        for row in page:
            seq = row.seq
            if row.content is None:
                continue
            if what := await _problem(engine, bucket, row, pace):
                yield Problem(row.key.decode(), row.version_id, what)
            checked.versions += 1
            checked.bytes += row.size
    for key, upload_id, content, size in _parts(engine, bucket):
        spans = contents.spans(engine.database.reading, content, 0, size)
        if (what := await _missing(engine, spans)) and _is_used(engine, content):
            yield Problem(key.decode(), "", f"unfinished upload {upload_id}: {what}")


async def _in_thread(engine: Engine, look: Callable[[Connection], Sequence[str]]) -> Sequence[str]:
    def run() -> Sequence[str]:
        reading = engine.database.open_reading()
        try:
            return look(reading)
        finally:
            reading.close()

    return await engine.in_thread(run)


def wrong_counters(reading: Connection, bucket: int) -> Sequence[str]:
    """Compare what is counted with what is there, at one moment."""
    found = reading.execute(
        "SELECT class, kind, sum(number), sum(bytes) FROM ("
        "SELECT class, kind, number, bytes FROM held WHERE bucket = ?"
        " UNION ALL SELECT class, CASE WHEN is_latest = 1 THEN '' ELSE 'noncurrent_' END"
        " || CASE WHEN part_count > 0 THEN 'multipart' ELSE 'simple' END, -1, -size"
        " FROM version WHERE bucket = ? AND is_marker = 0"
        " UNION ALL SELECT class, 'upload', -1, 0 FROM upload WHERE bucket = ?"
        " UNION ALL SELECT class, 'part', -1, -part.size"
        " FROM part JOIN upload ON upload.number = part.upload WHERE bucket = ?"
        ") AS counted GROUP BY class, kind HAVING sum(number) <> 0 OR sum(bytes) <> 0",
        (bucket,) * 4,
    )
    return [
        f"{storage_class}, {kind}: {number:+,} objects and {size:+,} bytes more are counted than there are"
        for storage_class, kind, number, size in found
    ]


def wrong_uses(reading: Connection) -> Sequence[str]:
    """Compare how often contents say that they are used with how often they are, at one moment."""
    found = reading.execute(
        "SELECT id, refs, used FROM (SELECT content.id, refs, coalesce(number, 0) AS used"
        " FROM content LEFT JOIN (SELECT content, count(*) AS number FROM ("
        "SELECT content FROM version WHERE content IS NOT NULL"
        " UNION ALL SELECT content FROM part UNION ALL SELECT source FROM piece"
        ") AS named GROUP BY content) AS uses ON uses.content = content.id) AS counted"
        " WHERE refs <> used LIMIT 100"
    )
    return [f"content {number} is used {used:,} times and counts {refs:,}" for number, refs, used in found]


def _page(engine: Engine, bucket: BucketRow, seq: int) -> Sequence[VersionRow]:
    found = engine.database.reading.execute(
        f"SELECT {versions.COLUMNS} FROM version WHERE bucket = ? AND seq > ? ORDER BY seq LIMIT ?",  # nosec B608
        (bucket.number, seq, _PAGE),
    )
    return [VersionRow._make(row) for row in found]


def _parts(engine: Engine, bucket: BucketRow) -> Sequence[tuple[bytes, str, int, int]]:
    return engine.database.reading.execute(
        "SELECT key, id, content, size FROM part JOIN upload ON upload.number = part.upload WHERE bucket = ?",
        (bucket.number,),
    ).fetchall()


def _is_used(engine: Engine, content: int) -> bool:
    found = engine.database.reading.execute(
        "SELECT EXISTS (SELECT 1 FROM part WHERE content = ?)", (content,)
    )
    return bool(found.fetchone()[0])


async def _problem(engine: Engine, bucket: BucketRow, row: VersionRow, pace: Pace) -> str:
    """Return what is wrong with the content of a version; "": nothing, or it was deleted meanwhile."""
    assert row.content is not None
    spans = contents.spans(engine.database.reading, row.content, 0, row.size)
    try:
        if row.customer_key_md5:
            what = await _missing(engine, spans)
        else:
            version = versions.show(row, bucket)
            length = 0
            async with Reader(engine, version, 0, row.size, spans, engine.sealer) as reader:
                await reader.start()
                async for chunk in reader:
                    length += len(chunk)
                    await pace(len(chunk))
            what = "" if length == row.size else f"{length:,} of {row.size:,} bytes are there"
    except Damaged:
        what = await _missing(engine, spans) or "the stored bytes are damaged"
    is_there = versions.select(engine.database.reading, "seq = ?", (row.seq,)) is not None
    return what if is_there else ""


async def _missing(engine: Engine, spans: Sequence[Span]) -> str:
    for blob in {span.leaf.blob for span in spans if span.leaf.blob is not None}:
        if await engine.blobs.stat(blob) is None:
            return "the stored bytes are missing"
    return ""
