"""Object stores for tests: open one, fill it, and compare what it counts with what is there."""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from neocloud.core.clock import Clock
from neocloud.object_store.blobs.driver import BlobDriver
from neocloud.object_store.metadata import postgres_connection
from neocloud.object_store.store import ObjectStore, open_store
from neocloud.object_store.types import (
    Attributes,
    Bucket,
    DefaultRetention,
    DesiredBucket,
    ObjectVersion,
    Versioning,
)
from neocloud.testing.waiting import FakeClock

KEY = bytes(range(32))
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Where flushes take no time; what a killed process wrote is there as on a disk."""
KIB, MIB = 1024, 1024**2
metadata: Path | None = None
"""The file with the address of the metadata of all stores, which the fixture `metadata` sets; None: they are
in SQLite."""


@asynccontextmanager
async def opened(
    home: Path, clock: Clock | None = None, *, blobs: BlobDriver | None = None, is_alone: bool = True
) -> AsyncIterator[ObjectStore]:
    store = await open_store(
        home, KEY, clock or FakeClock(), blobs=blobs, metadata=metadata, is_alone=is_alone
    )
    try:
        yield store
    finally:
        await store.close()


def desired(name: str = "bucket", **changes: Any) -> DesiredBucket:
    bucket = DesiredBucket(
        id=f"storagebucket-{name}",
        name=name,
        project_id="project-a",
        generation=1,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return replace(bucket, **changes)


async def make_bucket(
    store: ObjectStore,
    name: str = "bucket",
    *,
    has_object_lock: bool = False,
    default_retention: DefaultRetention | None = None,
    **changes: Any,
) -> Bucket:
    bucket = await store.apply_bucket(desired(name, **changes))
    if not has_object_lock:
        return bucket
    return await store.set_object_lock(bucket.id, default_retention)


async def make_versioned(store: ObjectStore, name: str = "bucket", **changes: Any) -> Bucket:
    return await make_bucket(store, name, versioning=Versioning.ENABLED, **changes)


async def put(
    store: ObjectStore,
    bucket: Bucket,
    key: str,
    body: bytes,
    attributes: Attributes | None = None,
    **options: Any,
) -> ObjectVersion:
    async with await store.open_write(bucket.id, len(body), key=key) as writer:
        for start in range(0, len(body), 300_000):
            await writer.write(body[start : start + 300_000])
        return await writer.commit(key, attributes or Attributes(), **options)


async def put_part(
    store: ObjectStore, bucket: Bucket, key: str, upload_id: str, number: int, body: bytes, **options: Any
):
    async with await store.open_write(bucket.id, len(body), **options) as writer:
        await writer.write(body)
        return await writer.commit_part(key, upload_id, number)


async def get(
    store: ObjectStore, bucket: Bucket, key: str, version_id: str | None = None, **options: Any
) -> bytes:
    async with await store.open_read(bucket.id, key, version_id, **options) as reader:
        body = b"".join([chunk async for chunk in reader])
        assert len(body) == reader.length
        return body


async def keys(store: ObjectStore, bucket: Bucket, **options: Any) -> list[str]:
    return [each.key for each in (await store.list_objects(bucket.id, **options)).objects]


def files(home: Path) -> list[Path]:
    return [folder / name for folder in (home / "blobs").iterdir() for name in os.listdir(folder)]


def empty(address_file: Path) -> None:
    """Drop all tables of metadata."""
    with psycopg.connect(address_file.read_text(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {postgres_connection.SCHEMA} CASCADE".encode())


def read(home: Path, query: str, *values: object) -> list[Any]:
    """Read the metadata as another process does."""
    if metadata:
        with closing(postgres_connection.connect(metadata.read_text())) as connection:
            return connection.execute(query.replace("?", "%s").encode(), values).fetchall()
    with sqlite3.connect(f"{(home / 'meta.db').as_uri()}?mode=ro", uri=True) as connection:
        found = connection.execute(query, values).fetchall()
    connection.close()
    return found


def check_sums(home: Path) -> None:
    """Check that counters equal what is there, that contents are used as often as they say, and that each
    blob that is named exists."""
    held = read(home, "SELECT bucket, class, kind, number, bytes FROM held WHERE number <> 0 OR bytes <> 0")
    counted = read(
        home,
        "SELECT bucket, class, CASE WHEN is_latest = 1 THEN '' ELSE 'noncurrent_' END"
        " || CASE WHEN part_count > 0 THEN 'multipart' ELSE 'simple' END AS kind, count(*), sum(size)"
        " FROM version WHERE is_marker = 0 GROUP BY 1, 2, 3"
        " UNION ALL SELECT bucket, class, 'upload', count(*), 0 FROM upload GROUP BY 1, 2"
        " UNION ALL SELECT bucket, class, 'part', count(*), sum(size)"
        " FROM part JOIN upload ON upload.number = part.upload GROUP BY 1, 2",
    )
    assert sorted(held) == sorted(counted)
    wrong = read(
        home,
        "SELECT id, refs FROM content WHERE refs <> (SELECT count(*) FROM version WHERE content = content.id)"
        " + (SELECT count(*) FROM part WHERE content = content.id)"
        " + (SELECT count(*) FROM piece WHERE source = content.id)",
    )
    assert not wrong, "contents are used more or less often than they say"
    latest = read(
        home,
        "SELECT count(*) FROM version WHERE is_latest <> CASE WHEN seq ="
        " (SELECT max(seq) FROM version AS v WHERE v.bucket = version.bucket AND v.key = version.key)"
        " THEN 1 ELSE 0 END",
    )
    assert latest == [(0,)]
    names = {path.name for path in files(home)}
    assert {name for (name,) in read(home, "SELECT blob FROM content WHERE blob IS NOT NULL")} <= names
