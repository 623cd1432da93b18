"""Search vector stores: the query becomes a vector, the index process ranks, and the rows say what exists."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from neocloud.core.clock import Clock
from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request, forbidden, unavailable
from neocloud.model_gateway.authentication import INVOKE, Caller
from neocloud.model_gateway.retrieval.catalogue import Catalogue, StoreFile, VectorStore
from neocloud.model_gateway.retrieval.embedder import Embedder
from neocloud.model_gateway.retrieval.index_calls import Hit, Index, IndexRefusal, IndexUnavailable, Search
from neocloud.model_gateway.retrieval.inputs import Ranking, invalid

MAX_QUERY = 8192
"""Characters of a query."""
MAX_QUERIES = 8
USE_SECONDS = 60
"""The time of the last use of a store is written no more often."""
MAX_SEARCHES = 32
"""Searches of one project at a time: no project fills the queue of the index for all others."""
T = TypeVar("T")


@dataclass(frozen=True)
class FoundChunk:
    """A chunk that a search found."""

    file: StoreFile
    text: str
    score: float


def read_query(given: Json, param: str = "query") -> list[str]:
    """Return the queries: a string, or a list of strings that are searched together."""
    queries = given if isinstance(given, list) else [given]
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise invalid(param, f"must be a string, or a list of at most {MAX_QUERIES} strings")
    found: list[str] = []
    for each in queries:
        if not isinstance(each, str) or not each.strip():
            raise invalid(param, "must be a string that is not empty")
        if len(each) > MAX_QUERY:
            raise invalid(param, f"is longer than {MAX_QUERY} characters")
        found.append(each)
    return found


async def ask_index(call: Awaitable[T]) -> T:
    """Return the answer of the index. Raises OpenAiError."""
    try:
        return await call
    except IndexRefusal as error:
        raise OpenAiError(409, error.message, code=error.code) from error
    except IndexUnavailable as error:
        message = "Vector stores cannot be read at the moment. Try again."
        raise unavailable(message, retry_after=2, code="index_unavailable") from error


class Searcher:
    def __init__(self, catalogue: Catalogue, index: Index, embedder: Embedder, clock: Clock) -> None:
        self._catalogue = catalogue
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._running = Counter[str]()
        """Searches in progress, by project."""

    async def search(
        self,
        caller: Caller,
        stores: Sequence[VectorStore],
        queries: Sequence[str],
        filters: JsonObject | None,
        ranking: Ranking,
        *,
        wait_seconds: float = 0.0,
    ) -> list[FoundChunk]:
        """Return the best chunks of all stores, the best first. The caller may read the stores. Raises
        OpenAiError."""
        vectors: dict[str, list[bytes]] = {}
        found: list[FoundChunk] = []
        for store in stores:
            if store.is_expired:
                message = f"The vector store {store.id} has expired. Create a new one from the files."
                raise bad_request(message, param="vector_store_id", code="vector_store_expired")
            if not caller.may(INVOKE, store.project_id):
                raise forbidden(f"You do not have the permission {INVOKE} in the project {store.project_id}.")
            model = store.embedding_model
            if model not in vectors:
                vectors[model] = await self._embedder.embed(
                    caller, store.project_id, model, queries, wait_seconds=wait_seconds
                )
            found += await self._search(store, queries, vectors[model], filters, ranking)
            await self._note_use(store)
        if len(stores) > 1:
            found.sort(key=lambda each: -each.score)
        return found[: ranking.most]

    async def _search(
        self,
        store: VectorStore,
        queries: Sequence[str],
        vectors: Sequence[bytes],
        filters: JsonObject | None,
        ranking: Ranking,
    ) -> list[FoundChunk]:
        call = Search(
            store.id,
            list(queries),
            list(vectors),
            ranking.most,
            filters,
            ranking.least_score,
            ranking.vector_weight,
            ranking.word_weight,
        )
        with self._counted(store.project_id):
            hits = await ask_index(self._index.ask(call, list[Hit]))
        file_ids = list({hit.file_id for hit in hits})
        known = await asyncio.to_thread(self._catalogue.names, store.id, file_ids)
        return [FoundChunk(known[hit.file_id], hit.text, hit.score) for hit in hits if hit.file_id in known]

    @contextmanager
    def _counted(self, project_id: str) -> Generator[None]:
        if self._running[project_id] >= MAX_SEARCHES:
            message = f"The project has {MAX_SEARCHES} searches in progress, which is the limit. Try again."
            headers = {"Retry-After": "1"}
            raise OpenAiError(429, message, type="requests", code="rate_limit_exceeded", headers=headers)
        self._running[project_id] += 1
        try:
            yield
        finally:
            self._running[project_id] -= 1
            if not self._running[project_id]:
                del self._running[project_id]

    async def _note_use(self, store: VectorStore) -> None:
        now = int(self._clock.now().timestamp())
        if now - store.last_active_at >= USE_SECONDS:
            await asyncio.to_thread(self._catalogue.note_use, store.id, now)
