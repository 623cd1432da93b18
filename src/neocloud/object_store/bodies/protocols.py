"""A body on its way in or out, wherever it is kept."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from neocloud.object_store.types import (
    ALWAYS,
    UNCHECKED,
    Attributes,
    Expected,
    ObjectVersion,
    Part,
    RequestClass,
    WriteConditions,
)


class BodyReader(Protocol):
    """A context manager that yields the bytes of an object, or of a range of it."""

    version: ObjectVersion
    first: int
    length: int

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


class BodyWriter(Protocol):
    """A context manager that takes the bytes of an object or a part; without a commit it leaves nothing."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def write(self, chunk: bytes) -> None:
        """Raises IncompleteBody, TooLarge, QuotaExceeded."""
        ...

    async def commit(
        self,
        key: str,
        attributes: Attributes,
        *,
        expected: Expected = UNCHECKED,
        conditions: WriteConditions = ALWAYS,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion: ...

    async def commit_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        *,
        expected: Expected = UNCHECKED,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> Part: ...


async def pass_on(reader: BodyReader, writer: BodyWriter) -> None:
    """Write all that a reader yields."""
    async for chunk in reader:
        await writer.write(chunk)
