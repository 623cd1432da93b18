"""Blobs on their way in: in one request, in chunks, or from another repository."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from neocloud.core import digests
from neocloud.object_gateway.oci import paths
from neocloud.object_gateway.oci.authorizer import RegistryAuthorizer
from neocloud.object_gateway.oci.context import RegistryContext
from neocloud.object_gateway.oci.errors import RegistryError
from neocloud.object_gateway.s3.context import Response
from neocloud.object_store.errors import ContentHashMismatch
from neocloud.object_store.image_types import BlobUpload
from neocloud.object_store.types import MAX_PART_NUMBER

CHUNK_BYTES = 1024**3
"""A longer request body is stored in chunks of this size, each as soon as it is complete."""
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


async def begin(context: RegistryContext) -> Response:
    """POST: begin an upload, upload a whole blob (`digest`), or take one that is there (`mount`)."""
    mounted = context.request.get("mount")
    if mounted is not None and await _mount(context, paths.checked_digest(mounted)):
        return _created(context, mounted)
    digest = context.request.get("digest")
    if digest is not None:
        paths.checked_digest(digest)
    algorithm = context.request.get("digest-algorithm") or digests.DEFAULT
    if algorithm not in digests.ALGORITHMS:
        taken = ", ".join(digests.ALGORITHMS)
        raise RegistryError(400, "DIGEST_INVALID", f"digest-algorithm is one of {taken}.")
    upload_id = await context.store.begin_blob(context.registry.id, context.repository)
    context.store.received.begin(upload_id, algorithm)
    if digest is None:
        return _accepted(context, BlobUpload(upload_id, 0, 0))
    return await _finish(context, upload_id, digest, is_only=True)


async def status(context: RegistryContext) -> Response:
    found = _upload(context)
    return Response(204, _state(context, found))


async def append(context: RegistryContext) -> Response:
    """PATCH: add a chunk, of any size."""
    async with _alone(context):
        return _accepted(context, await _receive(context, context.path.reference))


async def finish(context: RegistryContext) -> Response:
    """PUT: add the last chunk, if there is one, and make the whole a blob."""
    digest = context.request.get("digest")
    if digest is None:
        raise RegistryError(400, "DIGEST_INVALID", "The query needs the digest of the blob.")
    async with _alone(context):
        return await _finish(context, context.path.reference, paths.checked_digest(digest), is_only=False)


async def cancel(context: RegistryContext) -> Response:
    await context.store.abort_blob(context.registry.id, context.repository, context.path.reference)
    return Response(204, is_counted=True)


async def _mount(context: RegistryContext, digest: str) -> bool:
    """Return whether the blob is there now. One that the caller may not pull is as if it did not exist."""
    given, source = context.request.get("from"), None
    if given:
        try:
            name = paths.Path(paths.Endpoint.BASE, paths.checked_name(given))
        except RegistryError:
            return False
        authorizer = RegistryAuthorizer(context.dependencies)
        registry = await authorizer.find(context.caller, name.registry, name.repository, "pull")
        if registry is None or not context.token.allows(name.name, "pull"):
            return False
        if registry.project_id != context.registry.project_id:
            return False  # the payer stores it
        source = (registry.id, name.repository)
    return await context.store.mount_blob(context.registry.id, context.repository, digest, source)


async def _finish(context: RegistryContext, upload_id: str, digest: str, *, is_only: bool) -> Response:
    """Finish an upload. `is_only`: nobody else knows its id."""
    store, registry_id, repository = context.store, context.registry.id, context.repository
    try:
        if not context.body.is_read:
            await _receive(context, upload_id, digests.algorithm_of(digest))
        await store.finish_blob(registry_id, repository, upload_id, digest)
    except BaseException as error:
        if is_only or isinstance(error, ContentHashMismatch):
            await store.abort_blob(registry_id, repository, upload_id)
        raise
    return _created(context, digest)


@asynccontextmanager
async def _alone(context: RegistryContext) -> AsyncGenerator[None]:
    """Chunks come one after the other."""
    found, underway = _upload(context), context.store.received.underway
    if found.id in underway:
        raise _out_of_order(context, found, "Another request is adding to this upload.")
    underway.add(found.id)
    try:
        yield
    finally:
        underway.discard(found.id)


async def _receive(context: RegistryContext, upload_id: str, algorithm: str = "") -> BlobUpload:
    """Add the body to an upload, and return its new state. `algorithm` is that of the digest, where it is
    known; what was received before is hashed again at the end where it was hashed by another."""
    found = context.store.blob_upload(context.registry.id, context.repository, upload_id)
    left = _declared(context, found)
    pieces = _Pieces(context.body.raw())
    while left != 0 and not await pieces.is_over():
        if found.chunks >= MAX_PART_NUMBER:
            raise RegistryError(400, "BLOB_UPLOAD_INVALID", _TOO_MANY)
        size = await _receive_chunk(context, found, pieces, left, algorithm)
        left = None if left is None else left - size
        found = BlobUpload(found.id, found.size + size, found.chunks + 1)
    return found


async def _receive_chunk(
    context: RegistryContext, found: BlobUpload, pieces: "_Pieces", left: int | None, algorithm: str
) -> int:
    store = context.store
    length = None if left is None else min(left, CHUNK_BYTES)
    running: Any = store.received.get(found.id, found.size, algorithm)
    size = 0
    async with await store.open_chunk(context.registry.id, length) as writer:
        while size < CHUNK_BYTES and (piece := await pieces.take(CHUNK_BYTES - size)):
            await writer.write(piece)
            if running is not None:
                running.update(piece)
            size += len(piece)
        await writer.commit_part(context.repository, found.id, found.chunks + 1)
    if running is not None:
        store.received.set(found.id, found.size + size, running)
    return size


def _declared(context: RegistryContext, found: BlobUpload) -> int | None:
    """Return the length of the body, None where it is not known. Raises RegistryError where it does not
    continue the received bytes."""
    given, length = context.request.headers.get("content-range"), context.body.length
    if given is None:
        return length
    parts = _RANGE.fullmatch(given.removeprefix("bytes ").partition("/")[0])
    if parts is None:
        raise RegistryError(400, "BLOB_UPLOAD_INVALID", "Content-Range is written as first-last.")
    first, last = int(parts[1]), int(parts[2])
    if first != found.size:
        raise _out_of_order(context, found, "The chunk does not begin where the last one ended.")
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


def _upload(context: RegistryContext) -> BlobUpload:
    return context.store.blob_upload(context.registry.id, context.repository, context.path.reference)


def _out_of_order(context: RegistryContext, found: BlobUpload, message: str) -> RegistryError:
    return RegistryError(416, "RANGE_INVALID", message, headers=_state(context, found))


def _state(context: RegistryContext, found: BlobUpload) -> dict[str, str]:
    return {
        "Location": context.location(f"blobs/uploads/{found.id}"),
        "Range": f"0-{max(found.size - 1, 0)}",
        "Docker-Upload-UUID": found.id,
    }


def _accepted(context: RegistryContext, found: BlobUpload) -> Response:
    return Response(202, _state(context, found), is_counted=True)


def _created(context: RegistryContext, digest: str) -> Response:
    headers = {"Location": context.location(f"blobs/{digest}"), "Docker-Content-Digest": digest}
    return Response(201, headers, is_counted=True)
