# pyright: strict
"""Lists of objects, versions, uploads and parts, by pages."""

from neocloud.object_store import conditions as rules
from neocloud.object_store.metadata import lists, rows, uploads
from neocloud.object_store.metadata.lists import Selection
from neocloud.object_store.operations.base import Operations
from neocloud.object_store.types import MAX_PAGE, ListPage, Part, PartPage, UploadPage, VersionPage


class ListOperations(Operations):
    async def list_objects(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        start_after: str = "",
        limit: int = MAX_PAGE,
    ) -> ListPage:
        """Return the latest versions that are no delete markers, after a key or common prefix (exclusive)."""
        selection = _selection(prefix, delimiter, limit)
        bucket = self._engine.bucket(bucket_id)
        return lists.objects(self._engine.database.reading, bucket, selection, rules.encode(start_after))

    async def list_versions(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        key_marker: str = "",
        version_marker: str = "",
        limit: int = MAX_PAGE,
    ) -> VersionPage:
        """Return versions after a version of a key; without `version_marker`, after all versions of it.
        Raises NoSuchVersion for a marker that cannot be the id of a version."""
        selection = _selection(prefix, delimiter, limit)
        bucket = self._engine.bucket(bucket_id)
        return lists.all_versions(
            self._engine.database.reading, bucket, selection, rules.encode(key_marker), version_marker
        )

    async def list_uploads(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        key_marker: str = "",
        upload_marker: str = "",
        limit: int = MAX_PAGE,
    ) -> UploadPage:
        """Return uploads after an upload of a key; without `upload_marker`, after all uploads of it."""
        selection = _selection(prefix, delimiter, limit)
        bucket = self._engine.bucket(bucket_id)
        return lists.all_uploads(
            self._engine.database.reading, bucket, selection, rules.encode(key_marker), upload_marker
        )

    async def list_parts(
        self, bucket_id: str, key: str, upload_id: str, *, after: int = 0, limit: int = MAX_PAGE
    ) -> PartPage:
        """Return the parts of an unfinished upload. Raises NoSuchUpload."""
        reading = self._engine.database.reading
        upload = uploads.find(reading, self._engine.bucket(bucket_id), rules.key_bytes(key), upload_id)
        limit = rules.check_limit(limit)
        return _part_page([row.part() for row in uploads.parts(reading, upload, after, limit + 1)], limit)

    async def parts_of(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None = None,
        *,
        after: int = 0,
        limit: int = MAX_PAGE,
        customer_key: bytes | None = None,
    ) -> PartPage:
        """Return the parts of a multipart object; none of a simple one. Raises as head."""
        _, row = self._find(bucket_id, key, version_id, customer_key)
        limit = rules.check_limit(limit)
        found = self._engine.database.reading.execute(
            "SELECT number, size, etag, modified_ms, checksum FROM object_part"
            " WHERE content = ? AND number > ? ORDER BY number LIMIT ?",
            (row.content, after, limit + 1),
        )
        parts = [
            Part(number, size, etag, rows.to_time(modified_ms), rows.load_checksum(checksum))
            for number, size, etag, modified_ms, checksum in found
        ]
        return _part_page(parts, limit)


def _selection(prefix: str, delimiter: str, limit: int) -> Selection:
    return Selection(rules.encode(prefix), rules.encode(delimiter), rules.check_limit(limit))


def _part_page(found: list[Part], limit: int) -> PartPage:
    """Make a page of one part more than it may have, if there is one."""
    parts = tuple(found[:limit])
    is_truncated = len(found) > limit > 0
    return PartPage(parts, is_truncated, parts[-1].number if is_truncated else 0)
