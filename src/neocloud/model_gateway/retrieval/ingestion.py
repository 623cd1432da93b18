"""Index the files of vector stores beside live traffic. State is in rows, so a restart continues.

A file is read into chunks, its chunks become vectors by the embedding model of the store, as the account that
attached it, and then it is visible to searches. Projects take turns.
"""

import asyncio
import logging
import shutil
import sqlite3
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.authentication import INVOKE, Caller
from neocloud.model_gateway.openai_files.batches import caller_of
from neocloud.model_gateway.openai_files.bucket_files import BucketError, BucketFiles
from neocloud.model_gateway.openai_files.files import FileStore, StoredFile
from neocloud.model_gateway.openai_files.handlers import CallerAuthenticator
from neocloud.model_gateway.retrieval.catalogue import Catalogue, StoreFile, VectorStore
from neocloud.model_gateway.retrieval.embedder import Embedder
from neocloud.model_gateway.retrieval.index_calls import (
    FinishFile,
    Index,
    IndexRefusal,
    IndexUnavailable,
    PendingChunks,
    PutVectors,
    ReadFile,
    RemoveFile,
)

logger = logging.getLogger(__name__)
WORKERS = 2
TEXTS_AT_ONCE = 32
PAUSE_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
PATIENCE_SECONDS = 1800.0
"""For so long a file waits for a model or bucket that does not answer."""
START_WAIT_SECONDS = 60.0
PASSING = (408, 409, 425, 429, 500, 502, 503, 504, 507)
"""Status codes after which another try may succeed."""


class AccessEnded(Exception):
    """The account that attached the file may not call the model any more."""


@dataclass
class _Queues:
    """Files by project; the project whose turn it is comes first."""

    waiting: OrderedDict[str, deque[tuple[str, str]]] = field(
        default_factory=OrderedDict[str, deque[tuple[str, str]]]
    )

    def add(self, project_id: str, key: tuple[str, str]) -> None:
        self.waiting.setdefault(project_id, deque()).append(key)

    def take(self) -> tuple[str, str] | None:
        if not self.waiting:
            return None
        project_id, keys = self.waiting.popitem(last=False)
        key = keys.popleft()
        if keys:
            self.waiting[project_id] = keys  # to the end
        return key


class Ingestion:
    def __init__(
        self,
        home: Path,
        catalogue: Catalogue,
        files: FileStore,
        buckets: BucketFiles,
        callers: CallerAuthenticator,
        index: Index,
        embedder: Embedder,
        min_free_bytes: int,
        clock: Clock,
    ) -> None:
        self._copies = home / "gateway" / "retrieval-copies"
        self._catalogue = catalogue
        self._files = files
        self._buckets = buckets
        self._callers = callers
        self._index = index
        self._embedder = embedder
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._queues = _Queues()
        self._has_work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Continue what was not finished."""
        await asyncio.to_thread(shutil.rmtree, self._copies, ignore_errors=True)
        for store_id, file_id in await asyncio.to_thread(self._catalogue.unfinished):
            store = await asyncio.to_thread(self._catalogue.store, store_id)
            if store is not None:
                self.add(store, file_id)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(WORKERS)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def add(self, store: VectorStore, file_id: str) -> None:
        """Index a file whose row says that it is in progress."""
        self._queues.add(store.project_id, (store.id, file_id))
        self._has_work.set()

    async def _work(self) -> None:
        while True:
            key = self._queues.take()
            if key is None:
                self._has_work.clear()
                await self._has_work.wait()
                continue
            try:
                await self._index_file(*key)
            except (sqlite3.Error, OSError) as error:
                logger.warning("The file %s of %s could not be indexed: %s", key[1], key[0], error)
            except Exception:
                logger.exception("the file %s of %s could not be indexed", key[1], key[0])

    async def _row(self, store_id: str, file_id: str) -> tuple[VectorStore, StoreFile] | None:
        """Return the rows while the file is to be indexed."""
        store = await asyncio.to_thread(self._catalogue.store, store_id)
        file = await asyncio.to_thread(self._catalogue.file, store_id, file_id)
        is_wanted = store is not None and file is not None and file.status == "in_progress"
        return (store, file) if is_wanted and store and file else None

    async def _index_file(self, store_id: str, file_id: str) -> None:
        begun, tries = self._clock.monotonic(), 0
        while found := await self._row(store_id, file_id):
            store, file = found
            try:
                size = await self._index_once(store, file)
            except (OpenAiError, IndexUnavailable) as error:
                is_passing = isinstance(error, IndexUnavailable) or error.status in PASSING
                if is_passing and self._clock.monotonic() - begun < PATIENCE_SECONDS:
                    tries += 1
                    await self._clock.sleep(PAUSE_SECONDS[min(tries, len(PAUSE_SECONDS)) - 1])
                    continue
                await self._fail(file, "server_error", _message(error))
            except IndexRefusal as error:
                if error.code != "removed":
                    await self._fail(file, error.code, error.message)
            except AccessEnded:
                message = "The account that attached the file may not call the embedding model any more."
                await self._fail(file, "server_error", message)
            else:
                done = await asyncio.to_thread(self._catalogue.finish_file, file, "completed", size=size)
                if not done:
                    await self._forget(store_id, file_id)
            return
        await self._forget(store_id, file_id)

    async def _forget(self, store_id: str, file_id: str) -> None:
        """Remove what was indexed of a file that was removed or cancelled meanwhile."""
        row = await asyncio.to_thread(self._catalogue.file, store_id, file_id)
        if row is None or row.status == "cancelled":
            await self._remove(store_id, file_id)

    async def _remove(self, store_id: str, file_id: str) -> None:
        try:
            await self._index.ask(RemoveFile(store_id, file_id), type(None))
        except (IndexRefusal, IndexUnavailable) as error:
            logger.info("Chunks of %s stay until the next start: %s", file_id, error)

    async def _fail(self, file: StoreFile, code: str, message: str) -> None:
        error = {"code": code, "message": message}
        await asyncio.to_thread(self._catalogue.finish_file, file, "failed", error=error)
        await self._remove(file.store_id, file.file_id)

    async def _index_once(self, store: VectorStore, file: StoreFile) -> int:
        """Return the bytes that the file takes in the store. Steps that were done are not done again."""
        caller = await self._caller(store, file)
        stored = await asyncio.to_thread(self._files.find, file.file_id)
        if stored is None:
            raise IndexRefusal("server_error", "The file was deleted before it was indexed.")
        path = await self._path(store, stored)
        try:
            call = ReadFile(
                *(store.id, file.file_id, str(path), file.name),
                *(file.max_tokens, file.overlap_tokens),
            )
            await self._index.ask(call, int)
        finally:
            if stored.bucket_id:
                await asyncio.to_thread(path.unlink, missing_ok=True)
        await self._embed(store, file, caller)
        return await self._index.ask(FinishFile(store.id, file.file_id), int)

    async def _caller(self, store: VectorStore, file: StoreFile) -> Caller:
        try:
            caller = await self._callers.refresh(caller_of(file.caller))
        except OpenAiError as error:
            if error.status == 401:
                raise AccessEnded from error
            raise
        if not caller.may(INVOKE, store.project_id):
            raise AccessEnded
        return caller

    async def _path(self, store: VectorStore, stored: StoredFile) -> Path:
        if not stored.bucket_id:
            return self._files.location(stored)
        await asyncio.to_thread(self._copies.mkdir, mode=0o700, parents=True, exist_ok=True)
        path = self._copies / f"{store.id}-{stored.id}"
        try:
            await self._buckets.fetch(stored, path, self._min_free_bytes)
        except BucketError as error:
            if error.is_passing:
                raise
            raise IndexRefusal("server_error", error.message) from error
        return path

    async def _embed(self, store: VectorStore, file: StoreFile, caller: Caller) -> None:
        call = PendingChunks(store.id, file.file_id, TEXTS_AT_ONCE)
        while chunks := await self._index.ask(call, list[tuple[int, str]]):
            vectors = await self._embedder.embed(
                *(caller, store.project_id, store.embedding_model, [text for _, text in chunks]),
                wait_seconds=START_WAIT_SECONDS,
                is_batch=True,
            )
            pairs = [(number, vector) for (number, _), vector in zip(chunks, vectors, strict=True)]
            await self._index.ask(PutVectors(store.id, file.file_id, pairs), type(None))
            if await self._row(store.id, file.file_id) is None:
                raise IndexRefusal("removed", "The file was removed meanwhile.")


def _message(error: OpenAiError | IndexUnavailable) -> str:
    return error.message if isinstance(error, OpenAiError) else f"The index does not answer: {error}."
