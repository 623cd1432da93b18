"""A body that becomes a file: hashed and written as it comes, to a file without a name. It gets its name once
it is whole, verified and on the disk."""

import asyncio
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, Self

from neocloud.core.untrusted.writes import write_all
from neocloud.object_store.backends.files.files import BucketFiles, raise_explained
from neocloud.object_store.backends.files.records import FileRecord, check_attributes
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.writer import verify
from neocloud.object_store.checksums import DEFAULT, Digests
from neocloud.object_store.errors import IncompleteBody, TooLarge
from neocloud.object_store.types import (
    ALWAYS,
    UNCHECKED,
    Attributes,
    ChecksumAlgorithm,
    Expected,
    ObjectVersion,
    Part,
    RequestClass,
    WriteConditions,
)

_BATCH_BYTES = 1024**2


class FileWriter:
    """A BodyWriter."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        files: BucketFiles,
        bucket_id: str,
        count: Callable[[RequestClass | None], None],
        length: int | None,
        algorithms: Collection[ChecksumAlgorithm],
        most_bytes: int,
    ) -> None:
        """`count` counts the request once it has succeeded."""
        self._engine = engine
        self._executor = executor
        self._files = files
        self._bucket_id = bucket_id
        self._count = count
        self._length = length
        self._most_bytes = most_bytes
        self._digests = Digests(algorithms)
        self._received = 0
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        self._batch: asyncio.Future[None] | None = None
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_over:
            self._is_over = True
            await self._engine.finish(asyncio.ensure_future(self._clean_up()))

    async def write(self, chunk: bytes) -> None:
        assert not self._is_over, "the body was committed or aborted"
        self._received += len(chunk)
        if self._length is not None and self._received > self._length:
            raise IncompleteBody(f"The body has more than the {self._length:,} bytes that were declared.")
        if self._received > self._most_bytes:
            raise TooLarge(f"The body has more than {self._most_bytes:,} bytes.")
        self._buffer += chunk
        if len(self._buffer) >= _BATCH_BYTES:
            await self._start_batch()

    async def commit(
        self,
        key: str,
        attributes: Attributes,
        *,
        expected: Expected = UNCHECKED,
        conditions: WriteConditions = ALWAYS,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        check_attributes(attributes)

        def record() -> FileRecord:
            algorithm = expected.checksum.algorithm if expected.checksum else expected.stored or DEFAULT
            checksum = self._digests.checksum(algorithm)
            return FileRecord(
                self._digests.md5.hex(),
                headers=attributes.headers,
                metadata=attributes.metadata,
                checksum=checksum,
            )

        return await self.commit_as(key, record, expected, conditions, request)

    async def commit_as(
        self,
        key: str,
        record: Callable[[], FileRecord],
        expected: Expected,
        conditions: WriteConditions,
        request: RequestClass | None,
    ) -> ObjectVersion:
        """Make the body the object of the key, with what `record` says of it. It continues if the caller is
        cancelled."""
        assert not self._is_over, "the body was committed or aborted"
        self._is_over = True
        work = self._commit(key, record, expected, conditions, request)
        return await self._engine.finish(asyncio.ensure_future(work))

    async def commit_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        *,
        expected: Expected = UNCHECKED,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> Part:
        raise AssertionError("Parts are kept in the object store until their upload is completed.")

    async def _commit(
        self,
        key: str,
        record: Callable[[], FileRecord],
        expected: Expected,
        conditions: WriteConditions,
        request: RequestClass | None,
    ) -> ObjectVersion:
        try:
            if self._length is not None and self._received != self._length:
                raise IncompleteBody(
                    f"The body has {self._received:,} of the {self._length:,} bytes that were declared."
                )
            await self._start_batch()
            await self._end_batch()
            verify(expected, self._digests, self._received)
            file, mtime_ns = self._file, self._engine.database.now_ms() * 1_000_000
            assert file is not None
            self._engine.bucket(self._bucket_id)  # it may have been deleted meanwhile
            loop = asyncio.get_running_loop()
            version = await loop.run_in_executor(
                self._executor, lambda: self._files.put(key, file, record(), conditions, mtime_ns)
            )
            self._count(request)
            return version
        finally:
            await self._clean_up()

    async def _start_batch(self) -> None:
        await self._end_batch()
        batch = bytes(self._buffer)
        self._buffer.clear()
        loop = asyncio.get_running_loop()
        self._batch = loop.run_in_executor(self._executor, lambda: self._write(batch))

    async def _end_batch(self) -> None:
        if self._batch is not None:
            await asyncio.shield(self._batch)

    def _write(self, batch: bytes) -> None:
        """In a thread, one batch after the other."""
        if self._file is None:
            self._file = self._files.new_file()
        self._digests.update(batch)
        with _explaining():
            write_all(self._file, batch)

    async def _clean_up(self) -> None:
        if self._batch is not None:
            await asyncio.wait([self._batch])
            if not self._batch.cancelled():
                self._batch.exception()
        if self._file is not None:
            self._file.close()


@contextmanager
def _explaining() -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise_explained(error)
