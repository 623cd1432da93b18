"""The index process: `python -m neocloud.model_gateway.retrieval.index_process HOME`, started by the gateway.

It owns `<home>/gateway/vector_stores`, answers calls from standard input on standard output, and ends when
standard input does.
"""

import logging
import os
import re
import sqlite3
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from neocloud.core.logs import set_up_logging
from neocloud.core.sqlite_file import SqliteFileError, lock_file
from neocloud.core.untrusted.files import remove_tree
from neocloud.model_gateway.retrieval.catalogue import RETRIEVAL_DB, attributes_of_files
from neocloud.model_gateway.retrieval.documents import UnreadableDocument
from neocloud.model_gateway.retrieval.filters import matches
from neocloud.model_gateway.retrieval.index_calls import (
    HEAD_BYTES,
    Call,
    FileTexts,
    FinishFile,
    Hit,
    IndexAnswer,
    IndexRefusal,
    KeepStores,
    PendingChunks,
    PutVectors,
    ReadFile,
    RemoveFile,
    RemoveStore,
    Request,
    Search,
    frame,
)
from neocloud.model_gateway.retrieval.reading import ReadingFailed, read_document
from neocloud.model_gateway.retrieval.store_index import EXACT_CHUNKS, StoreIndex

logger = logging.getLogger(__name__)
STORE_ID = re.compile(r"vs_[0-9a-f]{24}")
MOST_OPEN = 64
"""Stores that are kept open."""
MOST_CACHED_BYTES = 256 << 20
"""Bytes of vectors that are kept in memory, of all stores."""
SEARCHES, WRITES = 4, 2
"""Threads: searches never wait for files to be read."""
LOCK_SECONDS = 20.0


class Indexes:
    """The stores of one folder, opened when they are used. Calls may come from several threads."""

    def __init__(self, home: Path, *, exact_chunks: int = EXACT_CHUNKS) -> None:
        self._folder = home / "gateway" / "vector_stores"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._catalogue = home / "gateway" / RETRIEVAL_DB
        self._exact_chunks = exact_chunks
        self._open: OrderedDict[str, StoreIndex] = OrderedDict()
        self._turn = threading.Lock()

    def answer(self, call: Call) -> object:
        """Raises IndexRefusal, sqlite3.Error, OSError."""
        match call:
            case Search():
                return self._search(call)
            case ReadFile():
                return self._read(call)
            case PendingChunks():
                return self._store(call.store_id).pending(call.file_id, call.most)
            case PutVectors():
                return self._store(call.store_id).put_vectors(call.file_id, call.vectors)
            case FinishFile():
                return self._store(call.store_id).finish_file(call.file_id)
            case RemoveFile():
                return self._store(call.store_id).remove_file(call.file_id)
            case RemoveStore():
                return self._remove(call.store_id)
            case KeepStores():
                return self._keep(call)
            case FileTexts():
                return self._store(call.store_id).texts(call.file_id)

    def _path(self, store_id: str) -> Path:
        if not STORE_ID.fullmatch(store_id):
            raise IndexRefusal("server_error", f"{store_id[:80]!r} is not the id of a vector store.")
        return self._folder / store_id

    def _store(self, store_id: str, *, is_new: bool = False) -> StoreIndex:
        with self._turn:
            store = self._open.pop(store_id, None)
            if store is None:
                path = self._path(store_id)
                if not is_new and not path.exists():
                    raise IndexRefusal("removed", "The vector store has no files.")
                store = StoreIndex(path, exact_chunks=self._exact_chunks)
            self._open[store_id] = store
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)  # closed when no thread uses it any more
            cached = sum(each.cached_bytes for each in self._open.values())
            for each in list(self._open.values())[:-1]:
                if cached <= MOST_CACHED_BYTES:
                    break
                cached -= each.cached_bytes
                each.forget_cache()
        return store

    def _read(self, call: ReadFile) -> int:
        path = Path(call.path)
        chunks = partial(read_document, path, call.name, call.max_tokens, call.overlap_tokens)
        try:
            return self._store(call.store_id, is_new=True).read_file(call.file_id, chunks)
        except UnreadableDocument as error:
            raise IndexRefusal(error.code, error.message) from None
        except ReadingFailed:
            message = "The file could not be read within the memory and time that a file may take. Split it."
            raise IndexRefusal("invalid_file", message) from None
        except FileNotFoundError:
            raise IndexRefusal("server_error", "The file was deleted meanwhile.") from None

    def _search(self, call: Search) -> list[Hit]:
        if not self._path(call.store_id).exists():
            return []
        return self._store(call.store_id).search(call, self._allowed(call))

    def _allowed(self, call: Search) -> Collection[str] | None:
        if call.filters is None:
            return None
        known = attributes_of_files(self._catalogue, call.store_id)
        return {file_id for file_id, attributes in known.items() if matches(call.filters, attributes)}

    def _remove(self, store_id: str) -> None:
        path = self._path(store_id)
        with self._turn:
            store = self._open.pop(store_id, None)
        if store is not None:
            store.close()
        if path.exists():
            remove_tree(path)

    def _keep(self, call: KeepStores) -> None:
        for path in sorted(self._folder.iterdir()):
            if path.name in call.files:
                self._store(path.name).keep_files(call.files[path.name])
                self._store(path.name).index()
            elif STORE_ID.fullmatch(path.name):
                self._remove(path.name)


def answered(indexes: Indexes, request: Request) -> IndexAnswer:
    """Return the answer to a request, whatever happens."""
    try:
        return IndexAnswer(request.number, indexes.answer(request.call))
    except IndexRefusal as error:
        return IndexAnswer(request.number, code=error.code, message=error.message)
    except Exception as error:  # the border of the process: one call must not end the others
        logger.warning(
            "%s failed: %s",
            type(request.call).__name__,
            error,
            exc_info=not isinstance(error, OSError | sqlite3.Error),
        )
        return IndexAnswer(request.number, code="crashed", message=str(error)[:500])


def serve(indexes: Indexes, calls: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until the calls end."""
    writing = threading.Lock()
    decoder = msgspec.msgpack.Decoder(Request)
    searches = ThreadPoolExecutor(SEARCHES, thread_name_prefix="search")
    writes = ThreadPoolExecutor(WRITES, thread_name_prefix="write")
    reads = ThreadPoolExecutor(WRITES, thread_name_prefix="read")

    def work(request: Request) -> None:
        data = frame(answered(indexes, request))
        with writing:
            answers.write(data)
            answers.flush()

    while len(head := calls.read(HEAD_BYTES)) == HEAD_BYTES:
        request = decoder.decode(calls.read(int.from_bytes(head, "big")))
        is_search = isinstance(request.call, Search | FileTexts)
        pool = searches if is_search else reads if isinstance(request.call, ReadFile) else writes
        pool.submit(work, request)
    os._exit(0)  # the gateway has gone: threads must end, too


def take_folder(home: Path) -> Any:
    """Return the lock of the folder, once an earlier process has ended. Raises SqliteFileError."""
    folder = home / "gateway" / "vector_stores"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return lock_file(folder / "index")
        except SqliteFileError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def main(home: str) -> None:
    os.umask(0o077)
    os.nice(5)  # streams go first
    set_up_logging("info", "text")
    lock = take_folder(Path(home))
    serve(Indexes(Path(home)), sys.stdin.buffer, sys.stdout.buffer)
    del lock


if __name__ == "__main__":
    main(sys.argv[1])
