"""Repositories of a registry and their blobs, within a transaction.

A blob is an object of the registry's bucket, whose key is its digest. Repositories that have it share it.
Blobs that no manifest names are removed after a while; `used_ms` is when it was uploaded or asked for last.
"""

from collections.abc import Iterable

from neocloud.object_store.errors import BlobUnknown, ContentInUse
from neocloud.object_store.metadata import contents, uploads, versions
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.contents import NewContent
from neocloud.object_store.metadata.transaction import BucketRow, Transaction
from neocloud.object_store.metadata.uploads import UploadRow
from neocloud.object_store.metadata.versions import NewVersion
from neocloud.object_store.types import ALWAYS, Attributes

RENEW_MS = 600_000
"""A blob that is asked for is marked as used at most so often."""


def find(connection: Connection, bucket: int, name: str) -> int | None:
    row = connection.execute(
        "SELECT number FROM repository WHERE bucket = ? AND name = ?", (bucket, name)
    ).fetchone()
    return row[0] if row else None


def ensure(tx: Transaction, bucket: int, name: str) -> int:
    tx.connection.execute(
        "INSERT INTO repository (bucket, name) VALUES (?, ?) ON CONFLICT DO NOTHING", (bucket, name)
    )
    found = find(tx.connection, bucket, name)
    assert found is not None
    return found


def blob_used_ms(connection: Connection, bucket: int, repository: int | None, digest: str) -> int:
    """Return when a blob was used last; one that a manifest names is always in use. Raises BlobUnknown."""
    row = connection.execute(
        "SELECT CASE WHEN refs > 0 THEN 9e15 ELSE used_ms END FROM repository_blob"
        " WHERE bucket = ? AND digest = ? AND repository = ?",
        (bucket, digest, repository),
    ).fetchone()
    if row is None:
        raise BlobUnknown("The repository has no blob of this digest.")
    return int(row[0])


def has_content(connection: Connection, bucket: int, digest: str) -> bool:
    """Return whether any repository of the registry has a blob."""
    row = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM repository_blob WHERE bucket = ? AND digest = ?)", (bucket, digest)
    ).fetchone()
    return bool(row[0])


def link(tx: Transaction, bucket: int, repository: int, digest: str) -> None:
    """Let a repository have a blob whose content is there, from now on or still. Manifests may have named it
    before."""
    tx.connection.execute(
        "INSERT INTO repository_blob VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (bucket, digest, repository) DO UPDATE SET used_ms = excluded.used_ms"
        " WHERE repository_blob.used_ms < excluded.used_ms",
        (bucket, digest, repository, named_by(tx.connection, repository, digest, 0), tx.now_ms),
    )


def named_by(connection: Connection, repository: int, digest: str, is_manifest: int) -> int:
    """Return how many manifests of a repository name a blob (0) or a manifest (1)."""
    found = connection.execute(
        "SELECT count(*) FROM manifest_reference AS named JOIN manifest ON manifest.number = named.manifest"
        " WHERE named.digest = ? AND named.is_manifest = ? AND manifest.repository = ?",
        (digest, is_manifest, repository),
    )
    return int(found.fetchone()[0])


def refer(tx: Transaction, bucket: int, repository: int, digests: Iterable[str], step: int) -> None:
    """Count one manifest more or less that names these blobs."""
    tx.connection.executemany(
        "UPDATE repository_blob SET refs = refs + ?,"
        " used_ms = CASE WHEN used_ms > ? THEN used_ms ELSE ? END"
        " WHERE bucket = ? AND digest = ? AND repository = ?",
        [(step, tx.now_ms, tx.now_ms, bucket, digest, repository) for digest in digests],
    )


def remove_blob(tx: Transaction, bucket: int, repository: int | None, digest: str) -> None:
    """Raises BlobUnknown, ContentInUse."""
    blob_used_ms(tx.connection, bucket, repository, digest)
    gone = tx.connection.execute(
        "DELETE FROM repository_blob WHERE bucket = ? AND digest = ? AND repository = ? AND refs = 0",
        (bucket, digest, repository),
    ).rowcount
    if not gone:
        raise ContentInUse("A manifest of the repository names this blob. Delete the manifest first.")
    drop_unused(tx, bucket, digest)


def drop_unused(tx: Transaction, bucket: int, digest: str) -> None:
    """Remove a content that is neither a blob nor a manifest of any repository."""
    is_used = tx.connection.execute(
        "SELECT EXISTS (SELECT 1 FROM repository_blob WHERE bucket = ? AND digest = ?)"
        " OR EXISTS (SELECT 1 FROM manifest WHERE bucket = ? AND digest = ?)",
        (bucket, digest) * 2,
    ).fetchone()[0]
    if is_used:
        return
    tx.connection.execute("DELETE FROM image_packages WHERE bucket = ? AND digest = ?", (bucket, digest))
    row = versions.latest(tx.connection, bucket, digest.encode())
    if row is not None:
        versions.remove(tx, row)


def collect(tx: Transaction, before_ms: int, limit: int) -> int:
    """Remove blobs that no manifest names and nobody used since; return how many."""
    rows = tx.connection.execute(
        "SELECT bucket, digest, repository FROM repository_blob WHERE refs = 0 AND used_ms < ? LIMIT ?",
        (before_ms, limit),
    ).fetchall()
    for row in rows:
        tx.connection.execute(
            "DELETE FROM repository_blob WHERE bucket = ? AND digest = ? AND repository = ?", row
        )
        drop_unused(tx, row[0], row[1])
    return len(rows)


def put_content(tx: Transaction, bucket: BucketRow, digest: str, content: NewContent) -> None:
    """Store a content under its digest; where it is there already, the new one goes."""
    number, key = contents.add(tx, content), digest.encode()
    if versions.latest(tx.connection, bucket.number, key) is not None:
        contents.release(tx, number)
        return
    versions.put(tx, bucket, NewVersion(key, content.size, "", number, Attributes(), None), ALWAYS)


def finish_upload(tx: Transaction, bucket: BucketRow, upload: UploadRow, digest: str) -> None:
    """Make what was received an object under its digest, or drop it where that is there already."""
    key = digest.encode()
    if versions.latest(tx.connection, bucket.number, key) is not None:
        uploads.abort(tx, upload)
        return
    content, size, parts = uploads.take_content(tx, upload)
    versions.put(tx, bucket, NewVersion(key, size, "", content, Attributes(), None, parts), ALWAYS)


def purge(tx: Transaction, bucket: int, limit: int) -> bool:
    """Remove rows of a registry whose content is removed as well; return whether any are left."""
    for table, where in _PURGED:
        gone = tx.connection.execute(f"DELETE FROM {table} WHERE {where}", (bucket, limit)).rowcount  # nosec B608
        if gone >= limit:
            return True
    return False


_OF_MANIFESTS = "manifest IN (SELECT number FROM manifest WHERE bucket = ?)"
_PURGED = (
    (
        "manifest_reference",
        "(manifest, digest, is_manifest) IN"
        f" (SELECT manifest, digest, is_manifest FROM manifest_reference WHERE {_OF_MANIFESTS} LIMIT ?)",  # nosec B608
    ),
    ("tag", f"(repository, name) IN (SELECT repository, name FROM tag WHERE {_OF_MANIFESTS} LIMIT ?)"),  # nosec B608
    ("manifest", "number IN (SELECT number FROM manifest WHERE bucket = ? LIMIT ?)"),
    (
        "repository_blob",
        "(bucket, digest, repository) IN"
        " (SELECT bucket, digest, repository FROM repository_blob WHERE bucket = ? LIMIT ?)",
    ),
    (
        "image_packages",
        "(bucket, digest) IN (SELECT bucket, digest FROM image_packages WHERE bucket = ? LIMIT ?)",
    ),
    ("removed_images", "bucket IN (SELECT bucket FROM removed_images WHERE bucket = ? LIMIT ?)"),
    ("repository", "number IN (SELECT number FROM repository WHERE bucket = ? LIMIT ?)"),
)
"""The order of deletion: what names others goes before them."""
