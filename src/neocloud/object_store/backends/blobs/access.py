"""Shared parts of operations on blobs: finding versions and reading them."""

from neocloud.object_store import conditions as rules
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.reader import Reader, damaged
from neocloud.object_store.bodies.writer import key_md5
from neocloud.object_store.errors import InvalidPartNumber, WrongCustomerKey
from neocloud.object_store.metadata import contents, versions
from neocloud.object_store.metadata.transaction import BucketRow
from neocloud.object_store.metadata.versions import VersionRow
from neocloud.object_store.types import ByteRange, ObjectVersion


class BlobAccess:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(
        self, bucket_id: str, key: str, version_id: str | None, customer_key: bytes | None
    ) -> tuple[BucketRow, VersionRow]:
        """Raises as head."""
        bucket = self._engine.bucket(bucket_id)
        row = versions.find(self._engine.database.reading, bucket, rules.key_bytes(key), version_id)
        if row.customer_key_md5 != key_md5(customer_key):
            raise WrongCustomerKey(
                "The object is encrypted by a key of the client, which has to come with the request."
                if row.customer_key_md5
                else "The object is not encrypted by a key of the client."
            )
        return bucket, row

    def reader(
        self,
        bucket: BucketRow,
        row: VersionRow,
        first: int,
        length: int,
        customer_key: bytes | None,
        version: ObjectVersion | None = None,
    ) -> Reader:
        """Raises Damaged where the bytes are gone: a commit may have removed them since `row` was read."""
        assert row.content is not None
        spans = contents.spans(self._engine.database.reading, row.content, first, length)
        if sum([span.length for span in spans]) != length:
            raise damaged()
        sealer = self._engine.key_sealer(customer_key)
        return Reader(self._engine, version or versions.show(row, bucket), first, length, spans, sealer)

    def part_range(self, row: VersionRow, number: int) -> ByteRange | None:
        """Return where a part lies; None: the only part of a simple object. Raises InvalidPartNumber."""
        if row.part_count == 0:
            if number != 1:
                raise InvalidPartNumber("The object has one part.")
            return None
        found = self._engine.database.reading.execute(
            "SELECT start, size FROM object_part WHERE content = ? AND number = ?", (row.content, number)
        ).fetchone()
        if found is None:
            raise InvalidPartNumber(f"The object has no part {number}.")
        start, size = found
        return ByteRange(start, start + size - 1)
