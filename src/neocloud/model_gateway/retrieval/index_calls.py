"""The calls of the index process, as messages: what the gateway asks, and what it gets back."""

from typing import Any, Protocol, TypeVar

import msgspec


class ReadFile(msgspec.Struct, frozen=True, tag=True):
    """Read a file, split it into chunks and store them without vectors. Returns the number of chunks."""

    store_id: str
    file_id: str
    path: str
    """The gateway's own copy of its bytes."""
    name: str
    max_tokens: int
    overlap_tokens: int


class PendingChunks(msgspec.Struct, frozen=True, tag=True):
    """Return some chunks of a file without vectors, as (number, text)."""

    store_id: str
    file_id: str
    most: int


class PutVectors(msgspec.Struct, frozen=True, tag=True):
    """Store vectors of chunks: little-endian 32-bit numbers."""

    store_id: str
    file_id: str
    vectors: list[tuple[int, bytes]]


class FinishFile(msgspec.Struct, frozen=True, tag=True):
    """Make a file visible to searches. Returns the bytes that it takes."""

    store_id: str
    file_id: str


class RemoveFile(msgspec.Struct, frozen=True, tag=True):
    store_id: str
    file_id: str


class RemoveStore(msgspec.Struct, frozen=True, tag=True):
    store_id: str


class KeepStores(msgspec.Struct, frozen=True, tag=True):
    """Remove all stores but these, and of these all files but those listed."""

    files: dict[str, list[str]]
    """Ids of files, by id of their store."""


class FileTexts(msgspec.Struct, frozen=True, tag=True):
    """Return the texts of the chunks of a file, in order."""

    store_id: str
    file_id: str


class Search(msgspec.Struct, frozen=True, tag=True):
    """Search one store. Returns a list of Hit, the best first."""

    store_id: str
    texts: list[str]
    vectors: list[bytes]
    """The vector of each text."""
    most: int
    filters: dict[str, Any] | None = None
    """A filter that `filters.check_filter` accepted."""
    least_score: float = 0.0
    vector_weight: float = 1.0
    word_weight: float = 1.0


Call = (
    ReadFile
    | PendingChunks
    | PutVectors
    | FinishFile
    | RemoveFile
    | RemoveStore
    | KeepStores
    | FileTexts
    | Search
)


class Hit(msgspec.Struct, frozen=True):
    file_id: str
    text: str
    score: float
    """Cosine similarity to the query; 0 for a negative one."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    number: int
    call: Call


class IndexAnswer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    value: Any = None
    code: str = ""
    """"": it was done; else the code of an IndexRefusal, or "crashed"."""
    message: str = ""


class IndexRefusal(Exception):
    """The index cannot do this, whatever the state of its process. `code` is one of OpenAI's for files."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class IndexUnavailable(Exception):
    """The index process does not answer; another try may succeed."""


T = TypeVar("T")


class Index(Protocol):
    async def ask(self, call: Call, kind: type[T]) -> T:
        """Return the answer, converted to `kind`. Raises IndexRefusal, IndexUnavailable."""
        ...


MAX_FRAME_BYTES = 64 << 20
HEAD_BYTES = 4


def frame(message: Request | IndexAnswer) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(HEAD_BYTES, "big") + data
