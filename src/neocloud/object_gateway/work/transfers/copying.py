"""Copies one object: reads it while it has its ETag, verifies it, and writes it only if it is whole.

The last bytes of a body are sent when all that the source says of it is found true, so a cut or spoilt body
is never stored. Large objects go in parts; a killed process continues after the last part that was stored.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from neocloud.core.clock import Clock
from neocloud.object_gateway.work.transfers.records import Records
from neocloud.object_gateway.work.transfers.types import MARK, Origin, Upload
from neocloud.object_store.checksums import Running
from neocloud.s3_client import answers
from neocloud.s3_client.client import S3Bucket
from neocloud.s3_client.http import Answer
from neocloud.s3_client.types import EndpointError, Listed

PART_BYTES = 32 * 1024**2
"""Larger objects go in parts of this size, or of a ten thousandth of the object."""
MAX_PARTS = 10_000
MAX_KEY_BYTES = 1024
ATTEMPTS = 5
FIRST_WAIT_SECONDS = 0.5
_CHUNK_BYTES = 256 * 1024
_CREATION_SECONDS = 10.0
"""How long a stop waits for an upload that is being created."""


class ObjectGone(Exception):
    """The object is not in the source any more."""


@dataclass(frozen=True)
class Copy:
    """One object to copy, and its destination."""

    listed: Listed
    source_key: str
    key: str
    if_match: str
    """The ETag of the object that is replaced; "": there must be none."""

    @property
    def conditions(self) -> Mapping[str, str]:
        return {"If-Match": f'"{self.if_match}"'} if self.if_match else {"If-None-Match": "*"}


class Copier:
    """Copies the objects of one transfer."""

    def __init__(
        self, transfer_id: str, source: S3Bucket, destination: S3Bucket, records: Records, clock: Clock
    ) -> None:
        self._id, self._records, self._clock = transfer_id, records, clock
        self._source, self._destination = source, destination
        self._has_conditions = True
        """Until the destination says that it knows none."""

    async def copy(self, copy: Copy) -> bool:
        """Copy an object; return whether it was: not where the source or the destination was changed
        meanwhile. Raises EndpointError."""
        if not 1 <= len(copy.key.encode()) <= MAX_KEY_BYTES:
            raise EndpointError(
                Origin.DESTINATION,
                "KeyTooLongError" if copy.key else "InvalidKey",
                f"The object {copy.source_key!r} would have a key of {len(copy.key.encode())} bytes.",
            )
        wait = FIRST_WAIT_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._copy(copy)
            except ObjectGone:
                return False
            except EndpointError as error:
                if error.status == 412 and error.origin is Origin.DESTINATION:
                    return False
                if error.status == 501 and self._has_conditions and error.origin is Origin.DESTINATION:
                    self._has_conditions = False
                elif not error.is_transient or attempt == ATTEMPTS:
                    raise
                else:
                    await self._clock.sleep(wait)
                    wait *= 2
        return False

    async def _copy(self, copy: Copy) -> bool:
        conditions: Mapping[str, str] = copy.conditions if self._has_conditions else {}
        if copy.listed.size > PART_BYTES:
            await self._copy_in_parts(copy, conditions)
            return True
        async with self._source_of(copy, copy.listed.etag) as answer:
            length = _length(answer)
            kept = {**answers.kept_headers(answer.headers), MARK: self._id, **conditions}
            if (
                answer.headers.get("x-amz-tagging-count", "0") != "0"
            ):  # says nothing without the right to tags
                kept |= await self._tags(copy.source_key)
            if not length:
                await self._destination.put(copy.key, b"", 0, kept)
                return True
            body = verified(answer, length, answers.md5_of(answer.headers))
            await self._destination.put(copy.key, body, length, kept)
        return True

    def _source_of(
        self, copy: Copy, etag: str, first: int | None = None, last: int | None = None
    ) -> "_Reading":
        return _Reading(self._source, copy.source_key, etag, first, last)

    async def _copy_in_parts(self, copy: Copy, conditions: Mapping[str, str]) -> None:
        head = await self._source.head(copy.source_key)
        if head is None:
            raise ObjectGone
        etag, size = head.get("etag", "").strip('"'), int(head.get("content-length", "0"))
        upload, stored = await self._begin(copy, etag, size, head)
        etags, done = list(stored), len(stored) * upload.part_size
        digest: Running | None = None if stored else hashlib.md5(usedforsecurity=False)
        while done < size:
            last = min(done + upload.part_size, size) - 1
            async with self._source_of(copy, etag, done, last) as answer:
                body = verified(answer, last + 1 - done, "", digest)
                number = len(etags) + 1
                etags.append(
                    await self._destination.put_part(
                        copy.key, upload.upload_id, number, body, last + 1 - done
                    )
                )
            done = last + 1
        expected = answers.md5_of(head)
        if digest is not None and expected and digest.digest().hex() != expected:
            await self._abort(upload)
            raise _spoilt()
        try:
            await self._destination.complete_upload(copy.key, upload.upload_id, etags, conditions)
        except EndpointError as error:
            if error.status == 412:
                await self._abort(upload)
            raise
        await self._records.forget_upload(self._id, copy.key)

    async def _begin(
        self, copy: Copy, etag: str, size: int, head: Mapping[str, str]
    ) -> tuple[Upload, Sequence[str]]:
        """Return the upload to continue with, and the ETags of its parts; else a new one."""
        known = self._records.upload(self._id, copy.key)
        if known is not None and known.source_etag == etag:
            try:
                parts = await self._destination.list_parts(copy.key, known.upload_id)
            except EndpointError as error:
                if error.status != 404:
                    raise
            else:
                whole = size // known.part_size
                numbered = enumerate(parts, 1)
                stored = [
                    part.etag
                    for number, part in numbered
                    if part.number == number <= whole and part.size == known.part_size
                ]
                if len(stored) == min(len(parts), whole):
                    return known, stored
        if known is not None:
            await self._abort(known)
        creation = asyncio.create_task(self._create_upload(copy, etag, size, head))
        try:
            return await asyncio.shield(creation), []
        except asyncio.CancelledError:  # an upload that is not remembered would never be aborted
            await asyncio.wait([creation], timeout=_CREATION_SECONDS)
            creation.cancel()
            raise

    async def _create_upload(self, copy: Copy, etag: str, size: int, head: Mapping[str, str]) -> Upload:
        """Begin an upload, and remember it."""
        kept = {**answers.kept_headers(head), MARK: self._id, **await self._tags(copy.source_key)}
        upload_id = await self._destination.create_upload(copy.key, kept)
        upload = Upload(copy.key, etag, upload_id, max(PART_BYTES, -(-size // MAX_PARTS)))
        await self._records.put_upload(self._id, upload)
        return upload

    async def _tags(self, source_key: str) -> Mapping[str, str]:
        """Return the header that gives the copy the tags of the object. Raises EndpointError."""
        tags = await self._source.tags(source_key)
        return {"x-amz-tagging": tags} if tags else {}

    async def _abort(self, upload: Upload) -> None:
        await self._destination.abort_upload(upload.key, upload.upload_id)
        await self._records.forget_upload(self._id, upload.key)

    async def abort_uploads(self) -> None:
        """Abort what is unfinished in the destination. Raises EndpointError."""
        for upload in self._records.uploads(self._id):
            await self._abort(upload)


class _Reading:
    """An object of the source, opened: as it was listed, or else as it is now."""

    def __init__(self, source: S3Bucket, key: str, etag: str, first: int | None, last: int | None) -> None:
        self._source, self._key, self._etag, self._range = source, key, etag, (first, last)

    async def __aenter__(self) -> Answer:
        self._opened = self._source.get(self._key, self._etag, *self._range)
        try:
            answer = await self._opened.__aenter__()
        except EndpointError as error:
            if error.status == 404 and error.code != "NoSuchBucket":
                raise ObjectGone from error
            is_changed = error.status == 412 and self._range[0] is None
            if not is_changed:
                raise _retried(error) from error
            self._opened = self._source.get(self._key, "")
            answer = await self._opened.__aenter__()
        if self._range[0] is not None and answer.status != 206:
            error = answers.unreadable(Origin.SOURCE, "a whole object instead of a part")
            await self._opened.__aexit__(type(error), error, None)
            raise error
        return answer

    async def __aexit__(self, *details: object) -> None:
        await self._opened.__aexit__(*details)  # type: ignore[arg-type]


def _retried(error: EndpointError) -> EndpointError:
    """An object that was changed between its parts is tried again, from its start."""
    if error.status != 412:
        return error
    return EndpointError(error.origin, error.code, error.text, status=412, is_transient=True)


def _length(answer: Answer) -> int:
    if answer.length is None:
        raise answers.unreadable(Origin.SOURCE, "an object without its length")
    return answer.length


async def verified(
    answer: Answer, length: int, md5: str, running: Running | None = None
) -> AsyncIterator[bytes]:
    """Yield the body; the last bytes only if it has this length and, unless "", this MD5.

    `running` is a digest over several parts. Raises EndpointError."""
    if answer.length is not None and answer.length != length:
        raise answers.unreadable(Origin.SOURCE, "another number of bytes than asked for")
    digest: Running = running or hashlib.md5(usedforsecurity=False)
    held, received = bytearray(), 0
    async for chunk in answer.chunks():
        digest.update(chunk)
        received += len(chunk)
        held += chunk
        if received > length:
            raise answers.unreadable(Origin.SOURCE, "more bytes than asked for")
        if len(held) > _CHUNK_BYTES and received < length:
            yield bytes(held)
            held.clear()
    if received != length:
        raise EndpointError(
            Origin.SOURCE, "IncompleteBody", "The body of the object was cut off.", is_transient=True
        )
    if md5 and digest.digest().hex() != md5:
        raise _spoilt()
    yield bytes(held)


def _spoilt() -> EndpointError:
    message = "The body of the object has another MD5 than its ETag says."
    return EndpointError(Origin.SOURCE, "BadDigest", message, is_transient=True)
