"""Objects that the control plane writes into buckets for resources of other services."""

import asyncio
import hashlib
import threading
from datetime import timedelta
from typing import IO

from neocloud.core.byte_streams import Readable
from neocloud.core.readers import Subject
from neocloud.core.s3_calls import S3
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.services.storage.object_clients import ObjectClients, Use
from neocloud.services.storage.public import AccessProblem, ObjectLocation, Unwritable

CREATE = "storage.objects.create"
KEY_LIFETIME = timedelta(hours=1)
BLOCK_BYTES = 1024**2
_USE = Use(
    "object-writer", writes=True, key_lifetime=KEY_LIFETIME, is_renewed=True, attempts=3, error=Unwritable
)


class StoreObjectWrites:
    """The ObjectWrites of public.py."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._clients = ObjectClients(dependencies, _USE)

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, folder: ObjectLocation
    ) -> None:
        self._clients.allow(tx, subject, resource, folder, (CREATE,))

    async def put(
        self, resource_id: str, folder: ObjectLocation, name: str, file: IO[bytes], size: int
    ) -> None:
        s3 = await self._clients.client(resource_id, folder)
        place = ObjectLocation(folder.bucket, folder.key + name)
        bounded = _Bounded(file, size)

        def write() -> None:
            from neocloud.client.s3_uploads import upload  # noqa: PLC0415  it takes a while to load

            upload(s3, bounded, place.bucket, place.key, {})

        try:
            await self._clients.answered(place, CREATE, "written", write)
        except asyncio.CancelledError:
            bounded.stop()
            raise

    async def put_once(self, resource_id: str, folder: ObjectLocation, name: str, file: IO[bytes]) -> None:
        s3 = await self._clients.client(resource_id, folder)
        place = ObjectLocation(folder.bucket, folder.key + name)
        await self._clients.answered(place, CREATE, "written", lambda: _put_once(s3, place, file))

    async def put_new(self, resource_id: str, place: ObjectLocation, stream: Readable) -> None:
        s3 = await self._clients.client(resource_id, place)
        await self._clients.answered(place, CREATE, "written", lambda: _put_new(s3, place, stream))


def _put_new(s3: S3, place: ObjectLocation, stream: Readable) -> None:
    """Raises Unwritable where there is another object."""
    from botocore.exceptions import ClientError  # noqa: PLC0415  it takes a while to load

    from neocloud.client.s3_uploads import upload  # noqa: PLC0415

    try:
        upload(s3, stream, place.bucket, place.key, {}, replaces=False)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "PreconditionFailed":
            raise
        raise Unwritable(
            AccessProblem.OCCUPIED,
            f"There is an object {place} already, and nothing is replaced. Name another key, or delete it.",
        ) from error


def _put_once(s3: S3, place: ObjectLocation, file: IO[bytes]) -> None:
    """Put an object where there is none, or one of the same bytes. Raises Unwritable for another one.

    A writing key may not look at what is there, but it may replace what has a certain ETag, which is the MD5
    of what was put in one request.
    """
    file.seek(0)
    digest = hashlib.md5(usedforsecurity=False)
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    etag = f'"{digest.hexdigest()}"'
    if _put_if(s3, place, file, IfNoneMatch="*") or _put_if(s3, place, file, IfMatch=etag):
        return
    raise Unwritable(
        AccessProblem.OCCUPIED,
        f"{place} is another object, and nothing is replaced. Move it away, and this is written.",
    )


def _put_if(s3: S3, place: ObjectLocation, file: IO[bytes], **condition: str) -> bool:
    """Return whether the condition holds, and the object was put."""
    from botocore.exceptions import ClientError  # noqa: PLC0415  it takes a while to load

    file.seek(0)
    try:
        s3.put_object(Bucket=place.bucket, Key=place.key, Body=file, **condition)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "PreconditionFailed":
            return False
        raise
    return True


class _Bounded:
    """The first bytes of a file. It can be stopped, so that a thread that uploads it ends, and aborts."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._rest = size
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        self._is_stopped.set()

    def read(self, size: int) -> bytes:
        if self._is_stopped.is_set():
            raise InterruptedError("the control plane stops")
        found = self._file.read(min(size, self._rest))
        self._rest -= len(found)
        return found
