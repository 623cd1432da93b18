"""Manifests and tags of a repository, within a transaction."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from neocloud.object_store.errors import ContentInUse, ManifestUnknown, ReferenceDiffers, ReferenceMissing
from neocloud.object_store.image_types import Manifest, ManifestPage, NewManifest, TagPage
from neocloud.object_store.metadata import repositories, versions
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.contents import NewContent
from neocloud.object_store.metadata.transaction import BucketRow, Transaction, to_time

_ID_DIGITS = 24
_SHOWN_MISSING = 10
_MAX_ANNOTATIONS_BYTES = 1024**2
"""After so many, the rest is on the next page."""


class ManifestRow(NamedTuple):
    number: int
    id: str
    bucket: int
    repository: int
    digest: str
    media_type: str
    artifact_type: str
    subject: str | None
    size: int
    image_bytes: int
    annotations: bytes
    parents: int
    created_ms: int
    updated_ms: int
    released_ms: int

    def manifest(self, repository: str) -> Manifest:
        return Manifest(
            id=self.id,
            repository=repository,
            digest=self.digest,
            media_type=self.media_type,
            artifact_type=self.artifact_type,
            size=self.size,
            subject=self.subject,
            annotations=orjson.loads(self.annotations),
            created_at=to_time(self.created_ms),
            updated_at=to_time(self.updated_ms),
        )


COLUMNS = ", ".join(ManifestRow._fields)
_NEW_COLUMNS = ", ".join(ManifestRow._fields[1:])
"""All but the number, which the database gives."""


def select(connection: Connection, where: str, *values: object) -> list[ManifestRow]:
    """Return the manifests that `where`, a constant of this program, is true of."""
    found = connection.execute(f"SELECT {COLUMNS} FROM manifest WHERE {where}", values)  # nosec B608
    return [ManifestRow._make(row) for row in found]


def artifact_id(registry_id: str, repository: str, digest: str) -> str:
    """Return the id of a manifest in the API: the same for the same content in the same place."""
    place = registry_id.partition("-")[2][:3]
    text = "\n".join((registry_id, repository, digest))
    return f"artifact-{place}{hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]}"


def find(connection: Connection, bucket: int, repository: int | None, reference: str) -> ManifestRow:
    """Return a manifest by its digest or a tag. Raises ManifestUnknown."""
    if ":" in reference:
        where = "bucket = ? AND digest = ? AND repository = ?"
        found = select(connection, where, bucket, reference, repository)
    else:
        where = "number = (SELECT manifest FROM tag WHERE repository = ? AND name = ?)"
        found = select(connection, where, repository, reference)
    if not found:
        kind = "digest" if ":" in reference else "tag"
        raise ManifestUnknown(f"The repository has no manifest of this {kind}.")
    return found[0]


def put(
    tx: Transaction,
    bucket: BucketRow,
    repository: str,
    new: NewManifest,
    content: NewContent,
    tags: Sequence[str],
) -> ManifestRow:
    """Store a manifest, and let tags name it. Raises ReferenceMissing, ReferenceDiffers."""
    number = repositories.ensure(tx, bucket.number, repository)
    known = select(
        tx.connection, "bucket = ? AND digest = ? AND repository = ?", bucket.number, new.digest, number
    )
    if not bucket.bucket.image_rules.allows_sparse:
        _check_references(tx, bucket.number, number, new)
    _check_sizes(tx, bucket.number, new)
    repositories.put_content(tx, bucket, new.digest, content)
    if known:
        row = known[0]
        tx.connection.execute("UPDATE manifest SET updated_ms = ? WHERE number = ?", (tx.now_ms, row.number))
    else:
        row = _insert(tx, bucket, number, repository, new)
    for tag in tags:
        _release_tagged(tx, number, tag)
        tx.connection.execute(
            "INSERT INTO tag VALUES (?, ?, ?)"
            " ON CONFLICT (repository, name) DO UPDATE SET manifest = excluded.manifest",
            (number, tag, row.number),
        )
    return row


def _release_tagged(tx: Transaction, repository: int | None, tag: str) -> None:
    """Note that a manifest loses a tag."""
    tx.connection.execute(
        "UPDATE manifest SET released_ms = ?"
        " WHERE number = (SELECT manifest FROM tag WHERE repository = ? AND name = ?)",
        (tx.now_ms, repository, tag),
    )


def _insert(tx: Transaction, bucket: BucketRow, repository: int, name: str, new: NewManifest) -> ManifestRow:
    parents = repositories.named_by(tx.connection, repository, new.digest, 1)
    values = (
        *(artifact_id(bucket.bucket.id, name, new.digest), bucket.number, repository, new.digest),
        *(new.media_type, new.artifact_type, new.subject, new.size, new.image_bytes),
        *(orjson.dumps(new.annotations), parents, tx.now_ms, tx.now_ms, 0),
    )
    marks = ", ".join("?" * len(values))
    tx.connection.execute(f"INSERT INTO manifest ({_NEW_COLUMNS}) VALUES ({marks})", values)  # nosec B608
    row = find(tx.connection, bucket.number, repository, new.digest)
    named = [(row.number, digest, 0) for digest in set(new.blobs)]
    named += [(row.number, digest, 1) for digest in set(new.manifests)]
    tx.connection.executemany("INSERT INTO manifest_reference VALUES (?, ?, ?)", named)
    repositories.refer(tx, bucket.number, repository, set(new.blobs), 1)
    _count_parents(tx, row, set(new.manifests), 1)
    return row


def _count_parents(tx: Transaction, row: ManifestRow, children: set[str], step: int) -> None:
    tx.connection.executemany(
        "UPDATE manifest SET parents = parents + ?,"
        " released_ms = CASE WHEN ? < 0 THEN ? ELSE released_ms END"
        " WHERE bucket = ? AND digest = ? AND repository = ?",
        [(step, step, tx.now_ms, row.bucket, digest, row.repository) for digest in children],
    )


def _check_references(tx: Transaction, bucket: int, repository: int, new: NewManifest) -> None:
    missing: list[str] = []
    for table, digests in (("repository_blob", new.blobs), ("manifest", new.manifests)):
        query = f"SELECT 1 FROM {table} WHERE bucket = ? AND digest = ? AND repository = ?"  # nosec B608
        missing += [
            digest
            for digest in dict.fromkeys(digests)
            if tx.connection.execute(query, (bucket, digest, repository)).fetchone() is None
        ]
    if missing:
        raise ReferenceMissing(
            f"The repository lacks {len(missing)} of the blobs and manifests that the manifest names. Push"
            " them first.",
            missing[:_SHOWN_MISSING],
        )


def _check_sizes(tx: Transaction, bucket: int, new: NewManifest) -> None:
    """Blobs and manifests are objects whose keys are their digests."""
    for digest in (*new.blobs, *new.manifests):
        found, said = versions.latest(tx.connection, bucket, digest.encode()), new.sizes.get(digest)
        if found is not None and said is not None and found.size != said:
            raise ReferenceDiffers(
                f"The manifest says that {digest} has {said:,} bytes; the repository has {found.size:,}."
            )


def remove(tx: Transaction, row: ManifestRow) -> None:
    """Remove a manifest with its tags; what it names and what is about it stays. Raises ContentInUse."""
    if row.parents:
        raise ContentInUse("An index of the repository names this manifest. Delete the index first.")
    found = tx.connection.execute(
        "SELECT digest, is_manifest FROM manifest_reference WHERE manifest = ?", (row.number,)
    ).fetchall()
    repositories.refer(
        tx, row.bucket, row.repository, [each for each, is_manifest in found if not is_manifest], -1
    )
    _count_parents(tx, row, {each for each, is_manifest in found if is_manifest}, -1)
    tx.connection.execute(
        "UPDATE manifest SET released_ms = ? WHERE repository = ? AND subject = ?",
        (tx.now_ms, row.repository, row.digest),
    )
    for table in ("manifest_reference", "tag"):
        tx.connection.execute(f"DELETE FROM {table} WHERE manifest = ?", (row.number,))  # nosec B608
    tx.connection.execute("DELETE FROM manifest WHERE number = ?", (row.number,))
    repositories.drop_unused(tx, row.bucket, row.digest)


def remove_artifact(tx: Transaction, bucket: int, artifact: str, before_ms: int) -> None:
    """Remove a manifest by its id, with an index that names it... unless it was pushed again since."""
    for row in select(
        tx.connection, "id = ? AND bucket = ? AND created_ms <= ?", artifact, bucket, before_ms
    ):
        remove(tx, row)


def remove_tag(tx: Transaction, repository: int | None, name: str) -> None:
    """Raises ManifestUnknown."""
    _release_tagged(tx, repository, name)
    gone = tx.connection.execute(
        "DELETE FROM tag WHERE repository = ? AND name = ?", (repository, name)
    ).rowcount
    if not gone:
        raise ManifestUnknown("The repository has no such tag.")


def tags(connection: Connection, repository: int, after: str, limit: int) -> TagPage:
    found = connection.execute(
        "SELECT name FROM tag WHERE repository = ? AND name > ? ORDER BY name LIMIT ?",
        (repository, after, limit + 1),
    ).fetchall()
    return TagPage(tuple(name for (name,) in found[:limit]), len(found) > limit)


def referrers(
    connection: Connection,
    repository: int,
    name: str,
    subject: str,
    artifact_type: str,
    after: int,
    limit: int,
) -> ManifestPage:
    """Return the manifests about a subject, oldest first, as many as a page may have."""
    cursor = connection.execute(
        f"SELECT {COLUMNS} FROM manifest WHERE repository = ? AND subject = ? AND number > ?"  # nosec B608
        " AND (? = '' OR artifact_type = ?) ORDER BY number",
        (repository, subject, after, artifact_type, artifact_type),
    )
    shown: list[ManifestRow] = []
    length = 0
    for each in cursor:
        if len(shown) >= limit or length > _MAX_ANNOTATIONS_BYTES:
            return ManifestPage(tuple(row.manifest(name) for row in shown), shown[-1].number)
        row = ManifestRow._make(each)
        shown.append(row)
        length += len(row.annotations)
    return ManifestPage(tuple(row.manifest(name) for row in shown), 0)


def image_count(connection: Connection, bucket: int) -> int:
    """Return the number of manifests that no index names."""
    row = connection.execute(
        "SELECT count(*) FROM manifest WHERE bucket = ? AND parents = 0", (bucket,)
    ).fetchone()
    return row[0]
