"""Images of a registry that its rules remove: which are due, and their removal with what belongs to them.

In use is what has a tag, what an index names, and what a manifest with a tag of its own is about. A manifest
about another one (a signature, a list of packages) belongs to it: it is not counted, stays as long as that
one, and goes with it. So do the manifests that clients tag "sha256-<digest>" because they know no referrers;
of a digest of SHA-512 such a tag has the first 64 digits.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import orjson

from neocloud.object_store.image_types import RemovedImage, RemovedImages
from neocloud.object_store.lifecycle_rules import ImageRules
from neocloud.object_store.metadata import manifests
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.manifests import ManifestRow
from neocloud.object_store.metadata.transaction import Transaction, to_time

MAX_REMOVED_AT_ONCE = 5000
"""Manifests that go in one transaction. Further parts of an image stay, and are untagged."""
_MAX_SHOWN = 20
_MAX_SHOWN_TAGS = 3
_FALLBACK = len("sha256-") + 64
"""Length of such a tag's part that names a digest."""
_OWN_TAG = (
    "NOT (substr(tag.name, 1, 7) IN ('sha256-', 'sha512-') AND length(tag.name) >= 71"
    " AND ltrim(substr(tag.name, 8, 64), '0123456789abcdef') = '')"
)
_HAS_TAG = f"EXISTS (SELECT 1 FROM tag WHERE tag.manifest = m.number AND {_OWN_TAG})"  # nosec B608
_IS_ABOUT_TAGGED = (
    "EXISTS (SELECT 1 FROM manifest AS r JOIN tag ON tag.manifest = r.number"  # nosec B608
    f" WHERE r.repository = m.repository AND r.subject = m.digest AND {_OWN_TAG})"
)
_IS_NAMED = (
    "s.digest >= substr(tag.name, 1, 6) || ':' || substr(tag.name, 8, 64)"
    " AND s.digest <= substr(tag.name, 1, 6) || ':' || substr(tag.name, 8, 64) || 'g'"
)
"""The digest of `s` is the one that a fallback tag stands for. No hexadecimal digit is as large as "g"."""
_BELONGS = (
    "(EXISTS (SELECT 1 FROM manifest AS s"  # nosec B608
    " WHERE s.bucket = m.bucket AND s.digest = m.subject AND s.repository = m.repository)"
    " OR EXISTS (SELECT 1 FROM tag JOIN manifest AS s ON s.bucket = m.bucket"
    f" AND s.repository = m.repository AND {_IS_NAMED}"
    " WHERE tag.manifest = m.number AND s.number <> m.number))"
)
_IS_UNTAGGED = (
    f"m.parents = 0 AND NOT {_HAS_TAG} AND NOT {_IS_ABOUT_TAGGED} AND NOT {_BELONGS}"
    " AND CASE WHEN m.updated_ms > m.released_ms THEN m.updated_ms ELSE m.released_ms END <= ?"
)
_IS_TAGGED = f"m.parents = 0 AND m.subject IS NULL AND {_HAS_TAG}"


def due(connection: Connection, bucket: int, rules: ImageRules, now_ms: int) -> Sequence[tuple[int, int]]:
    """Return the manifests that the rules remove, each with the time of its last push. It takes a while."""
    found: set[tuple[int, int]] = set()
    if rules.untagged_days:
        query = f"SELECT m.number, m.updated_ms FROM manifest AS m WHERE m.bucket = ? AND {_IS_UNTAGGED}"  # nosec B608
        found |= set(connection.execute(query, (bucket, _before_ms(rules, now_ms))))
    if rules.keep_last:
        query = (
            "SELECT number, updated_ms FROM (SELECT m.number, m.updated_ms, m.repository, m.digest,"  # nosec B608
            " row_number() OVER (PARTITION BY m.repository ORDER BY m.updated_ms DESC, m.number DESC)"
            " AS place"
            f" FROM manifest AS m WHERE m.bucket = ? AND {_IS_TAGGED}) AS m"
            f" WHERE m.place > ? AND NOT {_IS_ABOUT_TAGGED}"
        )
        found |= set(connection.execute(query, (bucket, rules.keep_last)))
    return sorted(found)


def _before_ms(rules: ImageRules, now_ms: int) -> int:
    return now_ms - int(timedelta(days=rules.untagged_days).total_seconds() * 1000)


def remove_due(tx: Transaction, bucket: int, rules: ImageRules, candidates: Sequence[tuple[int, int]]) -> int:
    """Remove those of these manifests that nobody pushed or used since; return how many went in all."""
    gone: list[RemovedImage] = []
    total = 0
    for number, updated_ms in candidates:
        row = _row(tx.connection, number)
        if row is None or row.updated_ms != updated_ms or total >= MAX_REMOVED_AT_ONCE:
            continue
        if not _is_still_due(tx, rules, number):
            continue
        gone.append(_shown(tx, row))
        total += _remove_whole(tx, row)
    if gone:
        _note(tx, bucket, gone)
    return total


def _is_still_due(tx: Transaction, rules: ImageRules, number: int) -> bool:
    """Return whether a manifest is used as little as when it was found. Others may have gone since, so that
    it would be among the last: then it goes as if it had been removed before them."""
    query = (
        f"SELECT (? > 0 AND {_IS_UNTAGGED}) OR (? > 0 AND {_IS_TAGGED} AND NOT {_IS_ABOUT_TAGGED})"  # nosec B608
        " FROM manifest AS m WHERE m.number = ?"
    )
    values = (rules.untagged_days, _before_ms(rules, tx.now_ms), rules.keep_last, number)
    found = tx.connection.execute(query, values).fetchone()
    return bool(found and found[0])


def _remove_whole(tx: Transaction, row: ManifestRow) -> int:
    """Remove a manifest, and what only it uses: what it names and what is about it."""
    waiting, removed = [row.number], 0
    while waiting and removed < MAX_REMOVED_AT_ONCE:
        found = _row(tx.connection, waiting.pop())
        if found is None or found.parents:
            continue
        named = list(_parts(tx.connection, found))
        manifests.remove(tx, found)
        removed += 1
        waiting += [number for number in named if not _is_in_use(tx.connection, number)]
    return removed


def _parts(connection: Connection, row: ManifestRow) -> Iterator[int]:
    """Yield the manifests that a manifest names, and those that are about it."""
    for (number,) in connection.execute(
        "SELECT m.number FROM manifest_reference AS named JOIN manifest AS m ON m.bucket = ?"
        " AND m.digest = named.digest AND m.repository = ? WHERE named.manifest = ? AND named.is_manifest = 1"
        " UNION SELECT number FROM manifest WHERE repository = ? AND subject = ?"
        " UNION SELECT manifest FROM tag WHERE repository = ? AND name >= ? AND name < ?",
        (
            *(row.bucket, row.repository, row.number, row.repository, row.digest, row.repository),
            *_fallback_tags(row.digest),
        ),
    ):
        if number != row.number:
            yield number


def _fallback_tags(digest: str) -> tuple[str, str]:
    """Return where the tags begin that mean "about this digest", and where they end."""
    first = digest.replace(":", "-")[:_FALLBACK]
    return first, f"{first}/"  # in no tag, and after "." and "-"


def _is_in_use(connection: Connection, number: int) -> bool:
    """Return whether a manifest is used by anything but what was removed just now."""
    found = connection.execute(
        f"SELECT m.parents > 0 OR {_HAS_TAG} OR {_IS_ABOUT_TAGGED} OR {_BELONGS}"  # nosec B608
        " FROM manifest AS m WHERE m.number = ?",
        (number,),
    ).fetchone()
    return bool(found and found[0])


def _row(connection: Connection, number: int) -> ManifestRow | None:
    return next(iter(manifests.select(connection, "number = ?", number)), None)


def _shown(tx: Transaction, row: ManifestRow) -> RemovedImage:
    (name,) = tx.connection.execute(
        "SELECT name FROM repository WHERE number = ?", (row.repository,)
    ).fetchone()
    tags = tx.connection.execute(
        "SELECT name FROM tag WHERE manifest = ? ORDER BY name LIMIT ?", (row.number, _MAX_SHOWN_TAGS)
    )
    return RemovedImage(name, row.digest, tuple(tag for (tag,) in tags))


def _note(tx: Transaction, bucket: int, gone: Sequence[RemovedImage]) -> None:
    """Count what was removed, and remember the last ones."""
    tx.connection.execute(
        "INSERT INTO removed_images VALUES (?, ?, ?, ?) ON CONFLICT (bucket) DO UPDATE SET"
        " total = removed_images.total + excluded.total, last_ms = excluded.last_ms, shown = excluded.shown",
        (bucket, len(gone), tx.now_ms, orjson.dumps(gone[:_MAX_SHOWN])),
    )


def removed(connection: Connection, bucket_id: str) -> RemovedImages | None:
    """Return what the rules of a registry have removed so far; None: nothing."""
    found = connection.execute(
        "SELECT total, last_ms, shown FROM removed_images JOIN bucket ON bucket = bucket.number WHERE id = ?",
        (bucket_id,),
    ).fetchone()
    if found is None:
        return None
    total, last_ms, shown = found
    images = orjson.loads(shown)
    last = (RemovedImage(each["repository"], each["digest"], tuple(each["tags"])) for each in images)
    return RemovedImages(total, to_time(last_ms), tuple(last))
