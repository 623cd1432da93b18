"""Shared parts of all operations on filesystem buckets: their files, threads, and writers of files."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from neocloud.object_store.backends.files.files import BucketFiles
from neocloud.object_store.backends.files.writer import FileWriter
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.types import ChecksumAlgorithm, RequestClass

_Result = TypeVar("_Result")
_THREADS = 8
"""Threads that wait for filesystems. They are not those of the object store: a slow filesystem delays only
itself."""


class FileAccess:
    def __init__(self, engine: Engine, count: Callable[[str, RequestClass | None], None]) -> None:
        """`count` counts a request for a bucket that changed no metadata."""
        self._engine = engine
        self.count = count
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="filesystems")

    def files(self, bucket_id: str) -> BucketFiles:
        """Return the files of a filesystem bucket. Raises NoSuchBucket."""
        view = self._engine.bucket(bucket_id).bucket.filesystem
        assert view is not None, "the objects of the bucket are blobs"
        return BucketFiles(view)

    async def in_thread(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    def writer(
        self,
        bucket_id: str,
        length: int | None,
        algorithms: Collection[ChecksumAlgorithm],
        most_bytes: int,
    ) -> FileWriter:
        return FileWriter(
            self._engine,
            self.threads,
            self.files(bucket_id),
            bucket_id,
            lambda request: self.count(bucket_id, request),
            length,
            algorithms,
            most_bytes,
        )

    async def close(self) -> None:
        await asyncio.to_thread(self.threads.shutdown)
