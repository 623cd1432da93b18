"""Objects that the control plane writes into buckets for resources of other services."""

import asyncio
import threading
from datetime import timedelta
from typing import BinaryIO, cast

from neocloud.core.readers import Subject
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.services.storage.object_clients import ObjectClients, Use
from neocloud.services.storage.public import ObjectPlace, Unwritable

CREATE = "storage.objects.create"
KEY_LIFETIME = timedelta(hours=1)
_USE = Use(
    "object-writer", writes=True, key_lifetime=KEY_LIFETIME, is_renewed=True, attempts=3, error=Unwritable
)


class StoreObjectWrites:
    """The ObjectWrites of public.py."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._clients = ObjectClients(dependencies, _USE)

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, folder: ObjectPlace
    ) -> None:
        self._clients.allow(tx, subject, resource, folder, (CREATE,))

    async def put(self, resource_id: str, folder: ObjectPlace, name: str, file: BinaryIO, size: int) -> None:
        s3 = await self._clients.client(resource_id, folder)
        place = ObjectPlace(folder.bucket, folder.key + name)
        bounded = _Bounded(file, size)

        def write() -> None:
            from neocloud.client.s3_uploads import upload  # noqa: PLC0415  it takes a while to load

            upload(s3, cast(BinaryIO, bounded), place.bucket, place.key, {})

        try:
            await self._clients.answered(place, CREATE, "written", write)
        except asyncio.CancelledError:
            bounded.stop()
            raise


class _Bounded:
    """The first bytes of a file. It can be stopped, so that a thread that uploads it ends, and aborts."""

    def __init__(self, file: BinaryIO, size: int) -> None:
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
