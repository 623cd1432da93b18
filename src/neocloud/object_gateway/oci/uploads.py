# pyright: strict
"""Blobs on their way in: in one request, in chunks, or from another repository."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from neocloud.core import digests
from neocloud.object_gateway.oci import paths
from neocloud.object_gateway.oci.authorizer import RegistryAccess
from neocloud.object_gateway.oci.context import Exchange
from neocloud.object_gateway.oci.errors import RegistryError
from neocloud.object_gateway.s3.context import Response
from neocloud.object_store.errors import ContentHashMismatch
from neocloud.object_store.image_types import BlobUpload
from neocloud.object_store.types import MAX_PART_NUMBER

CHUNK_BYTES = 1024**3
"""A longer request body is stored in chunks of this size, each as soon as it is complete."""
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


async def begin(exchange: Exchange) -> Response:
    """POST: begin an upload, upload a whole blob (`digest`), or take one that is there (`mount`)."""
    mounted = exchange.request.get("mount")
    if mounted is not None and await _mount(exchange, paths.checked_digest(mounted)):
        return _created(exchange, mounted)
    digest = exchange.request.get("digest")
    if digest is not None:
        paths.checked_digest(digest)
    algorithm = exchange.request.get("digest-algorithm") or digests.DEFAULT
    if algorithm not in digests.ALGORITHMS:
        taken = ", ".join(digests.ALGORITHMS)
        raise RegistryError(400, "DIGEST_INVALID", f"digest-algorithm is one of {taken}.")
    upload_id = await exchange.store.begin_blob(exchange.registry.id, exchange.repository)
    exchange.store.received.begin(upload_id, algorithm)
    if digest is None:
        return _accepted(exchange, BlobUpload(upload_id, 0, 0))
    return await _finish(exchange, upload_id, digest, is_only=True)


async def status(exchange: Exchange) -> Response:
    found = _upload(exchange)
    return Response(204, _state(exchange, found))


async def append(exchange: Exchange) -> Response:
    """PATCH: add a chunk, of any size."""
    async with _alone(exchange):
        return _accepted(exchange, await _receive(exchange, exchange.path.reference))


async def finish(exchange: Exchange) -> Response:
    """PUT: add the last chunk, if there is one, and make the whole a blob."""
    digest = exchange.request.get("digest")
    if digest is None:
        raise RegistryError(400, "DIGEST_INVALID", "The query needs the digest of the blob.")
    async with _alone(exchange):
        return await _finish(exchange, exchange.path.reference, paths.checked_digest(digest), is_only=False)


async def cancel(exchange: Exchange) -> Response:
    await exchange.store.abort_blob(exchange.registry.id, exchange.repository, exchange.path.reference)
    return Response(204, is_counted=True)


async def _mount(exchange: Exchange, digest: str) -> bool:
    """Return whether the blob is there now. One that the caller may not pull is as if it did not exist."""
    given, source = exchange.request.get("from"), None
    if given:
        try:
            name = paths.Path(paths.Endpoint.BASE, paths.checked_name(given))
        except RegistryError:
            return False
        access = RegistryAccess(exchange.front)
        registry = await access.find(exchange.caller, name.registry, name.repository, "pull")
        if registry is None or not exchange.token.allows(name.name, "pull"):
            return False
        if registry.project_id != exchange.registry.project_id:
            return False  # whoever pays stores it
        source = (registry.id, name.repository)
    return await exchange.store.mount_blob(exchange.registry.id, exchange.repository, digest, source)


async def _finish(exchange: Exchange, upload_id: str, digest: str, *, is_only: bool) -> Response:
    """Finish an upload. `is_only`: nobody else knows its id."""
    store, registry_id, repository = exchange.store, exchange.registry.id, exchange.repository
    try:
        if not exchange.body.is_read:
            await _receive(exchange, upload_id, digests.algorithm_of(digest))
        await store.finish_blob(registry_id, repository, upload_id, digest)
    except BaseException as error:
        if is_only or isinstance(error, ContentHashMismatch):
            await store.abort_blob(registry_id, repository, upload_id)
        raise
    return _created(exchange, digest)


@asynccontextmanager
async def _alone(exchange: Exchange) -> AsyncGenerator[None]:
    """Chunks come one after the other."""
    found, underway = _upload(exchange), exchange.store.received.underway
    if found.id in underway:
        raise _out_of_order(exchange, found, "Another request is adding to this upload.")
    underway.add(found.id)
    try:
        yield
    finally:
        underway.discard(found.id)


async def _receive(exchange: Exchange, upload_id: str, algorithm: str = "") -> BlobUpload:
    """Add the body to an upload, and return its new state. `algorithm` is that of the digest, where it is
    known; what was received before is hashed again at the end where it was hashed by another."""
    found = exchange.store.blob_upload(exchange.registry.id, exchange.repository, upload_id)
    left = _declared(exchange, found)
    pieces = _Pieces(exchange.body.raw())
    while left != 0 and not await pieces.is_over():
        if found.chunks >= MAX_PART_NUMBER:
            raise RegistryError(400, "BLOB_UPLOAD_INVALID", _TOO_MANY)
        size = await _receive_chunk(exchange, found, pieces, left, algorithm)
        left = None if left is None else left - size
        found = BlobUpload(found.id, found.size + size, found.chunks + 1)
    return found


async def _receive_chunk(
    exchange: Exchange, found: BlobUpload, pieces: "_Pieces", left: int | None, algorithm: str
) -> int:
    store = exchange.store
    length = None if left is None else min(left, CHUNK_BYTES)
    running: Any = store.received.get(found.id, found.size, algorithm)
    size = 0
    async with await store.open_chunk(exchange.registry.id, length) as writer:
        while size < CHUNK_BYTES and (piece := await pieces.take(CHUNK_BYTES - size)):
            await writer.write(piece)
            if running is not None:
                running.update(piece)
            size += len(piece)
        await writer.commit_part(exchange.repository, found.id, found.chunks + 1)
    if running is not None:
        store.received.set(found.id, found.size + size, running)
    return size


def _declared(exchange: Exchange, found: BlobUpload) -> int | None:
    """Return the length of the body, None where it is not known. Raises RegistryError where it does not go
    on from what was received."""
    given, length = exchange.request.headers.get("content-range"), exchange.body.length
    if given is None:
        return length
    parts = _RANGE.fullmatch(given.removeprefix("bytes ").partition("/")[0])
    if parts is None:
        raise RegistryError(400, "BLOB_UPLOAD_INVALID", "Content-Range is written as first-last.")
    first, last = int(parts[1]), int(parts[2])
    if first != found.size:
        raise _out_of_order(exchange, found, "The chunk does not begin where the last one ended.")
    if last < first or length not in (None, last - first + 1):
        raise RegistryError(400, "SIZE_INVALID", "Content-Range and Content-Length do not agree.")
    return length


class _Pieces:
    """The body of a request, in pieces that do not go beyond a limit."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._next = b""

    async def is_over(self) -> bool:
        if not self._next:
            self._next = await anext(self._source, b"")
        return not self._next

    async def take(self, limit: int) -> bytes:
        """Return the next bytes, at least one; none at the end."""
        if await self.is_over():
            return b""
        taken, self._next = self._next[:limit], self._next[limit:]
        return taken


_TOO_MANY = f"An upload has {MAX_PART_NUMBER:,} chunks at most. Send larger ones."


def _upload(exchange: Exchange) -> BlobUpload:
    return exchange.store.blob_upload(exchange.registry.id, exchange.repository, exchange.path.reference)


def _out_of_order(exchange: Exchange, found: BlobUpload, message: str) -> RegistryError:
    return RegistryError(416, "RANGE_INVALID", message, headers=_state(exchange, found))


def _state(exchange: Exchange, found: BlobUpload) -> dict[str, str]:
    return {
        "Location": exchange.location(f"blobs/uploads/{found.id}"),
        "Range": f"0-{max(found.size - 1, 0)}",
        "Docker-Upload-UUID": found.id,
    }


def _accepted(exchange: Exchange, found: BlobUpload) -> Response:
    return Response(202, _state(exchange, found), is_counted=True)


def _created(exchange: Exchange, digest: str) -> Response:
    headers = {"Location": exchange.location(f"blobs/{digest}"), "Docker-Content-Digest": digest}
    return Response(201, headers, is_counted=True)
