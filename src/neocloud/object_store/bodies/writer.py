"""A body that is being received: hashed, encrypted and written as it comes, then made an object or a part.

Up to 16 KiB lie in the database. Other bodies become a blob, which is on the disk before the transaction
begins. A commit continues if its caller is cancelled; a body that is not committed leaves nothing.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from neocloud.object_store import conditions as rules
from neocloud.object_store.blobs.driver import BlobError, NewBlob
from neocloud.object_store.blobs.sealing import FRAME_BYTES, FrameCipher, new_data_key, sealed_size
from neocloud.object_store.bodies.engine import Engine, Reservation, explained
from neocloud.object_store.checksums import DEFAULT, Digests
from neocloud.object_store.errors import (
    ChecksumMismatch,
    ContentHashMismatch,
    DigestMismatch,
    IncompleteBody,
    InvalidRequest,
    TooLarge,
)
from neocloud.object_store.metadata import contents, uploads, versions
from neocloud.object_store.metadata.contents import NewContent
from neocloud.object_store.metadata.database import CommitUncertain
from neocloud.object_store.metadata.transaction import BucketRow, Transaction
from neocloud.object_store.metadata.uploads import PartRow
from neocloud.object_store.metadata.versions import NewVersion
from neocloud.object_store.types import (
    ALWAYS,
    UNCHECKED,
    Attributes,
    Checksum,
    ChecksumAlgorithm,
    Expected,
    ObjectVersion,
    Part,
    RequestClass,
    Versioning,
    WriteConditions,
)

_Result = TypeVar("_Result")
INLINE_BYTES = 16 * 1024
MAX_BODY_BYTES = 5 * 1024**3
BATCH_BYTES = 16 * FRAME_BYTES
_FIRST_BYTES = FRAME_BYTES


class Batches:
    """A body that comes in chunks of any size, cut into batches.

    There are two buffers, used in turn: one is filled while the batch in the other is hashed, encrypted and
    written. New memory for each batch would cost about as much processor time as the encryption. A batch is
    to be done before the next but one is complete.
    """

    def __init__(self, length: int | None) -> None:
        """`length` is that of the body; None: unknown."""
        self._size = BATCH_BYTES if length is None else max(1, min(length, BATCH_BYTES))
        self._filling = memoryview(bytearray(min(self._size, _FIRST_BYTES)))
        self._other: memoryview | None = None
        self._filled = 0

    def add(self, chunk: memoryview) -> int:
        """Take as much of the chunk as the batch has room for; return how many bytes."""
        taken = min(len(chunk), self._size - self._filled)
        end = self._filled + taken
        if end > len(self._filling):
            self._grow()
        self._filling[self._filled : end] = chunk[:taken]
        self._filled = end
        return taken

    @property
    def is_full(self) -> bool:
        return self._filled == BATCH_BYTES

    def take(self) -> memoryview:
        """Return what was added since the last call."""
        batch = self._filling[: self._filled]
        self._filling, self._other = self._other or memoryview(bytearray(self._size)), self._filling
        self._filled = 0
        return batch

    def _grow(self) -> None:
        """Most bodies are short: they take one buffer of the size of a frame."""
        whole = memoryview(bytearray(self._size))
        whole[: self._filled] = self._filling[: self._filled]
        self._filling = whole


class Writer:
    """A `BodyWriter`. Made by `ObjectStore.open_write`."""

    def __init__(
        self,
        engine: Engine,
        bucket: BucketRow,
        length: int | None,
        algorithms: Collection[ChecksumAlgorithm],
        customer_key: bytes | None,
        reservation: Reservation,
    ) -> None:
        self._engine = engine
        self._bucket = bucket
        self._length = length
        self._digests = Digests(algorithms)
        self._key_md5 = key_md5(customer_key)
        data_key = new_data_key()
        self._sealed_key = engine.key_sealer(customer_key).seal(data_key)
        self._cipher = FrameCipher(data_key)
        self._reservation = reservation
        self._received = 0
        self._batches = Batches(length)
        self._sealed = memoryview(b"")
        """Memory for the batch that is being written, encrypted."""
        self._frames = 0
        self._name: str | None = None
        self._blob: NewBlob | None = None
        self._batch: asyncio.Task[None] | None = None
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.abort()

    async def write(self, chunk: bytes) -> None:
        assert not self._is_over, "the body was committed or aborted"
        received = self._received + len(chunk)
        if self._length is not None and received > self._length:
            raise IncompleteBody(f"The body has more than the {self._length:,} bytes that were declared.")
        if received > MAX_BODY_BYTES:
            raise too_large()
        if self._length is None:
            self._reservation.cover(received)
        self._received = received
        view = memoryview(chunk)
        while view:
            view = view[self._batches.add(view) :]
            if self._batches.is_full:
                await self._end_batch()  # its buffer is the next to be filled
                self._batch = asyncio.ensure_future(self._write_batch(self._batches.take()))

    async def commit(
        self,
        key: str,
        attributes: Attributes,
        *,
        expected: Expected = UNCHECKED,
        conditions: WriteConditions = ALWAYS,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        encoded = rules.key_bytes(key)

        def work(tx: Transaction, content: NewContent) -> ObjectVersion:
            bucket = tx.bucket(self._bucket.bucket.id)
            assert bucket.bucket.filesystem is None, "objects of filesystem buckets are files"
            tx.count(bucket.number, request)
            algorithm = expected.checksum.algorithm if expected.checksum else expected.stored or DEFAULT
            new = NewVersion(
                encoded,
                content.size,
                self._digests.md5.hex(),
                contents.add(tx, content),
                attributes,
                self._digests.checksum(algorithm),
                customer_key_md5=self._key_md5,
            )
            return versions.put(tx, bucket, new, conditions)

        return await self._finish(expected, work)

    async def commit_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        *,
        expected: Expected = UNCHECKED,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> Part:
        encoded = rules.key_bytes(key)

        def work(tx: Transaction, content: NewContent) -> Part:
            bucket = tx.bucket(self._bucket.bucket.id)
            tx.count(bucket.number, request)
            upload = uploads.find(tx.connection, bucket, encoded, upload_id)
            if upload.customer_key_md5 != self._key_md5:
                raise InvalidRequest("The part has to be encrypted by the key that the upload began with.")
            checksum = self._part_checksum(upload.algorithm)
            etag = self._digests.md5.hex()
            part = PartRow(
                number,
                contents.add(tx, content),
                content.size,
                etag,
                tx.now_ms,
                versions.dump_checksum(checksum),
            )
            return uploads.put_part(tx, upload, part)

        return await self._finish(expected, work)

    async def commit_as(
        self, work: Callable[[Transaction, NewContent], _Result], *, expected: Expected = UNCHECKED
    ) -> _Result:
        """Store the body, and do this in the transaction that has to name it."""
        return await self._finish(expected, work)

    async def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            await self._engine.finish(asyncio.ensure_future(self._clean_up()))

    def _part_checksum(self, algorithm: str | None) -> Checksum:
        wanted = DEFAULT if algorithm is None else ChecksumAlgorithm(algorithm)
        checksum = self._digests.checksum(wanted)
        if checksum is None:
            raise InvalidRequest(f"Each part of this upload needs a checksum {wanted}.")
        return checksum

    async def _finish(self, expected: Expected, work: Callable[[Transaction, NewContent], Any]) -> Any:
        assert not self._is_over, "the body was committed or aborted"
        self._is_over = True
        return await self._engine.finish(asyncio.ensure_future(self._commit(expected, work)))

    async def _commit(self, expected: Expected, work: Callable[[Transaction, NewContent], Any]) -> Any:
        try:
            if self._length is not None and self._received != self._length:
                raise IncompleteBody(
                    f"The body has {self._received:,} of the {self._length:,} bytes that were declared."
                )
            content = await self._stored()
            verify(expected, self._digests, self._received)
            if self._blob is not None:
                await self._blob.finish()
            return await self._engine.database.write(lambda tx: work(tx, content), self._reservation.release)
        except CommitUncertain:
            self._reservation.release()  # the blob stays for the sweep, which knows whether it is used
            raise
        except BlobError as error:
            await self._clean_up()
            raise explained(error) from error
        except BaseException:
            await self._clean_up()
            raise

    async def _stored(self) -> NewContent:
        """Hash and write what is left."""
        rest = self._batches.take()
        if self._batch is None and len(rest) <= INLINE_BYTES:
            self._digests.update(rest)
            return NewContent(self._received, None, self._sealed_key, self._cipher.seal(0, bytes(rest)))
        await self._end_batch()
        if rest:
            await self._write_batch(rest)
        return NewContent(self._received, self._name, self._sealed_key, None)

    async def _end_batch(self) -> None:
        """Wait for the batch before. If the caller is cancelled, the batch continues, until `abort` waits."""
        if self._batch is not None:
            try:
                await asyncio.shield(self._batch)
            except BlobError as error:
                raise explained(error) from error

    async def _write_batch(self, batch: memoryview) -> None:
        if self._blob is None:
            self._name = new_blob_name()
            self._blob = await self._engine.blobs.create(self._name)
        first, self._frames = self._frames, self._frames + -(-len(batch) // FRAME_BYTES)
        hashing = [self._engine.start_thread(partial(each, batch)) for each in self._digests.slow()]
        # Some tenths of a millisecond; the cipher would keep other threads from running, too.
        self._digests.update_quick(batch)
        sealed = self._seal(first, batch)
        outcomes = await asyncio.gather(self._blob.write(sealed), *hashing, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _seal(self, first: int, batch: memoryview) -> memoryview:
        size = sealed_size(len(batch))
        if len(self._sealed) < size:
            self._sealed = memoryview(bytearray(size))
        self._cipher.seal_into(first, batch, self._sealed[:size])
        return self._sealed[:size]

    async def _clean_up(self) -> None:
        if self._batch is not None:
            await asyncio.wait([self._batch])
            if not self._batch.cancelled():
                self._batch.exception()
        if self._blob is not None and self._name is not None:
            with suppress(BlobError):  # the sweep of orphans will
                await self._blob.abort()
                await self._engine.blobs.delete(self._name)
        self._reservation.release()


def verify(expected: Expected, digests: Digests, received: int) -> None:
    """Raises DigestMismatch, ContentHashMismatch, ChecksumMismatch, IncompleteBody."""
    if expected.size not in (None, received):
        raise IncompleteBody(f"The body has {received:,} bytes, not {expected.size:,}.")
    if expected.md5 not in (None, digests.md5):
        raise DigestMismatch("The body has another MD5 than Content-MD5 says.")
    if expected.sha256 not in (None, digests.digest(ChecksumAlgorithm.SHA256)):
        raise ContentHashMismatch("The body has another SHA-256 than was signed.")
    if expected.checksum is not None:
        found = digests.checksum(expected.checksum.algorithm)
        if found is None:
            raise InvalidRequest("The checksum was not announced before the body.")
        if found.value != expected.checksum.value:
            raise ChecksumMismatch(f"The body has another checksum {found.algorithm} than was declared.")


async def open_body(engine: Engine, bucket_id: str, length: int | None) -> Writer:
    """Begin a body that replaces nothing. Raises QuotaExceeded, TooLarge."""
    check_length(length)
    bucket = engine.bucket(bucket_id)
    return Writer(engine, bucket, length, (), None, reserve(engine, bucket, None, length))


def reserve(engine: Engine, bucket: BucketRow, key: bytes | None, length: int | None) -> Reservation:
    """Reserve room for a body; where it replaces an object, this counts. Raises QuotaExceeded."""
    freed = 0
    if bucket.bucket.max_size_bytes and key and bucket.bucket.versioning is Versioning.DISABLED:
        replaced = versions.latest(engine.database.reading, bucket.number, key)
        freed = replaced.size if replaced else 0
    return engine.reservations.reserve(bucket.number, bucket.bucket.max_size_bytes, length, freed)


def new_blob_name() -> str:
    """Return a random name, as `BlobDriver` wants it."""
    return secrets.token_hex(16)


def key_md5(customer_key: bytes | None) -> str:
    """Return the name of a key of the client as S3 has it."""
    if customer_key is None:
        return ""
    return base64.b64encode(hashlib.md5(customer_key, usedforsecurity=False).digest()).decode()


def check_length(length: int | None) -> None:
    """Check the declared length of a body; None: unknown. Raises TooLarge."""
    if length is not None and length > MAX_BODY_BYTES:
        raise too_large()


def too_large() -> TooLarge:
    return TooLarge("A body has at most 5 GiB. Use a multipart upload.")
