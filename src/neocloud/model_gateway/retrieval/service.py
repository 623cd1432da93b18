"""Vector stores of a gateway, put together."""

import asyncio
from pathlib import Path

from starlette.routing import Route

from neocloud.core.clock import Clock
from neocloud.core.loops import every
from neocloud.model_gateway.openai_files.bucket_files import BucketFiles
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.model_gateway.openai_files.handlers import CallerAuthenticator
from neocloud.model_gateway.retrieval.catalogue import Catalogue
from neocloud.model_gateway.retrieval.embedder import Embedder
from neocloud.model_gateway.retrieval.index_calls import (
    Index,
    IndexRefusal,
    IndexUnavailable,
    KeepStores,
    RemoveStore,
)
from neocloud.model_gateway.retrieval.index_client import IndexProcess
from neocloud.model_gateway.retrieval.ingestion import Ingestion
from neocloud.model_gateway.retrieval.responses import Responses
from neocloud.model_gateway.retrieval.search import Searcher
from neocloud.model_gateway.retrieval.store_files import StoreFiles
from neocloud.model_gateway.retrieval.stored_responses import ResponseRows, ResponsesApi
from neocloud.model_gateway.retrieval.stores_api import StoresApi
from neocloud.model_gateway.routing.routes import RouteTable
from neocloud.model_gateway.settings import FileSettings, RetrievalSettings

EXPIRY_SECONDS = 60.0


class Retrieval:
    def __init__(
        self,
        home: Path,
        callers: CallerAuthenticator,
        files: FileStore,
        buckets: BucketFiles,
        embedder: Embedder,
        clock: Clock,
        table: RouteTable,
        *,
        settings: RetrievalSettings | None = None,
        index: Index | None = None,
    ) -> None:
        settings = settings or RetrievalSettings()
        self._callers = callers
        self._clock = clock
        self._process = IndexProcess(home) if index is None else None
        self._index = index or self._process or IndexProcess(home)
        self.catalogue = Catalogue(home)
        self._ingestion = Ingestion(
            *(home, self.catalogue, files, buckets, callers, self._index, embedder),
            FileSettings.min_free_bytes,
            clock,
        )
        self.searcher = Searcher(self.catalogue, self._index, embedder, clock)
        self.files = StoreFiles(
            self.catalogue, self._index, files, self._ingestion, embedder, settings, clock
        )
        self._stores = StoresApi(
            self.catalogue, self._index, embedder, self.files, self.searcher, settings, clock
        )
        self._rows = ResponseRows(self.catalogue.database, settings)
        self._responses_api = ResponsesApi(self._rows)
        self.responses = Responses(self.catalogue, self.searcher, self._rows, table, clock)
        self._tasks: list[asyncio.Task[None]] = []

    def routes(self) -> list[Route]:
        apis = (self._stores, self.files, self._responses_api)
        return [route for api in apis for route in api.routes(self._callers)]

    async def start(self) -> None:
        """Continue with files that are not indexed, and remove what a crash left behind."""
        await self._ingestion.start()
        known = (IndexRefusal, IndexUnavailable)
        self._tasks = [
            asyncio.create_task(self._settle()),
            asyncio.create_task(
                every(
                    EXPIRY_SECONDS, self.expire, "Vector stores could not expire", self._clock, expected=known
                )
            ),
        ]

    async def stop(self) -> None:
        await self._ingestion.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None:
            await self._process.stop()

    async def expire(self) -> None:
        """Remove old responses, and the content of stores that were not used for as long as they say."""
        now = int(self._clock.now().timestamp())
        await asyncio.to_thread(self._rows.expire, now)
        for store_id in await asyncio.to_thread(self.catalogue.expire, now):
            await self._index.ask(RemoveStore(store_id), type(None))

    async def _settle(self) -> None:
        """Remove chunks of stores and files without a row."""
        files = await asyncio.to_thread(self.catalogue.indexed_files)
        if files:
            await self._index.ask(KeepStores(files), type(None))
