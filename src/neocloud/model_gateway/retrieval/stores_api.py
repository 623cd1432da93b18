"""/v1/vector_stores: create, list, get, modify, delete, search."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace

from starlette.routing import Route

from neocloud.core.clock import Clock
from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import bad_request, forbidden
from neocloud.model_gateway.authentication import INVOKE
from neocloud.model_gateway.openai_files.handlers import (
    ApiRequest,
    CallerAuthenticator,
    list_response,
    metadata,
    reject_unknown,
    route,
    text,
)
from neocloud.model_gateway.retrieval.access import (
    PERMISSION,
    counts_as_openai,
    find_store,
    limit_reached,
    listed_page,
)
from neocloud.model_gateway.retrieval.catalogue import Catalogue, Usage, VectorStore
from neocloud.model_gateway.retrieval.embedder import Embedder
from neocloud.model_gateway.retrieval.filters import check_filter
from neocloud.model_gateway.retrieval.index_calls import Index, RemoveStore
from neocloud.model_gateway.retrieval.inputs import invalid, read_expiry_days, read_ranking
from neocloud.model_gateway.retrieval.search import FoundChunk, Searcher, ask_index, read_query
from neocloud.model_gateway.retrieval.store_files import StoreFiles
from neocloud.model_gateway.settings import RetrievalSettings

CREATED = {"name", "description", "file_ids", "expires_after", "chunking_strategy", "metadata", "neocloud"}
MAX_NAME = 256


class StoresApi:
    def __init__(
        self,
        catalogue: Catalogue,
        index: Index,
        embedder: Embedder,
        files: StoreFiles,
        searcher: Searcher,
        settings: RetrievalSettings,
        clock: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._index = index
        self._embedder = embedder
        self._files = files
        self._searcher = searcher
        self._settings = settings
        self._clock = clock

    def routes(self, callers: CallerAuthenticator) -> list[Route]:
        store = "/v1/vector_stores/{store_id}"
        return [
            route("POST", "/v1/vector_stores", self.create, callers),
            route("GET", "/v1/vector_stores", self.list, callers),
            route("GET", store, self.get, callers),
            route("POST", store, self.modify, callers),
            route("DELETE", store, self.delete, callers),
            route("POST", f"{store}/search", self.search, callers),
        ]

    async def create(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        project_id = request.project(f"{PERMISSION}.create")
        if not request.caller.may(INVOKE, project_id):
            raise forbidden(f"You do not have the permission {INVOKE} in the project {project_id}.")
        reject_unknown(body, CREATED)
        count = await asyncio.to_thread(self._catalogue.count_stores, project_id)
        if count >= self._settings.max_project_stores:
            raise limit_reached(f"The project has {count} vector stores, which is the limit. Delete some.")
        now = int(self._clock.now().timestamp())
        store = VectorStore(
            id=f"vs_{secrets.token_hex(12)}",
            project_id=project_id,
            name=_name(body, "name"),
            description=_name(body, "description"),
            metadata=metadata(body),
            embedding_model=self._embedder.model_of(request.caller, _embedding_model(body.get("neocloud"))),
            created_at=now,
            last_active_at=now,
            expires_days=read_expiry_days(body.get("expires_after")),
        )
        given = body.get("file_ids") or []
        entries: Json = [{"file_id": each} for each in given] if isinstance(given, list) else given
        files = await self._files.prepared(request.caller, store, entries, body.get("chunking_strategy"))
        await asyncio.to_thread(self._catalogue.add_store, store)
        await self._files.attach(store, files)
        return await self._shown(store)

    async def list(self, request: ApiRequest) -> dict[str, object]:
        project_id = request.project(f"{PERMISSION}.list")
        page = listed_page(request.http.query_params)
        stores, has_more = await asyncio.to_thread(self._catalogue.stores, project_id, page)
        return list_response([await self._shown(store) for store in stores], has_more=has_more)

    async def get(self, request: ApiRequest) -> dict[str, object]:
        return await self._shown(await find_store(self._catalogue, request, "get"))

    async def modify(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        store = await find_store(self._catalogue, request, "update")
        reject_unknown(body, {"name", "description", "expires_after", "metadata"})
        changes: dict[str, object] = {}
        for name in ("name", "description"):
            if name in body:
                changes[name] = _name(body, name)
        if "metadata" in body:
            changes["metadata"] = metadata(body)
        if "expires_after" in body:
            changes["expires_days"] = read_expiry_days(body["expires_after"])
        store = replace(store, **changes)
        await asyncio.to_thread(self._catalogue.change_store, store)
        return await self._shown(store)

    async def delete(self, request: ApiRequest) -> dict[str, object]:
        store = await find_store(self._catalogue, request, "delete")
        await asyncio.to_thread(self._catalogue.delete_store, store.id)
        await ask_index(self._index.ask(RemoveStore(store.id), type(None)))
        return {"id": store.id, "object": "vector_store.deleted", "deleted": True}

    async def search(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        store = await find_store(self._catalogue, request, "get")
        reject_unknown(body, {"query", "filters", "max_num_results", "ranking_options", "rewrite_query"})
        if body.get("rewrite_query") not in (None, False):
            raise bad_request(
                "rewrite_query is not supported: the query is searched as it is. Remove it.",
                param="rewrite_query",
                code="parameter_not_allowed",
            )
        queries = read_query(body.get("query"))
        ranking, filters = read_ranking(body), check_filter(body.get("filters"))
        found = await self._searcher.search(request.caller, [store], queries, filters, ranking)
        return {
            "object": "vector_store.search_results.page",
            "search_query": queries,
            "data": [result_as_openai(each) for each in found],
            "has_more": False,
            "next_page": None,
        }

    async def _shown(self, store: VectorStore) -> dict[str, object]:
        return store_as_openai(store, await asyncio.to_thread(self._catalogue.usage, store.id))


def _name(body: Mapping[str, Json], name: str) -> str:
    value = text(body, name)
    if len(value) > MAX_NAME:
        raise invalid(name, f"is longer than {MAX_NAME} characters")
    return value


def _embedding_model(given: Json) -> str:
    """Return the model that the object `neocloud` of the body names; "" for none."""
    if given is None:
        return ""
    if not isinstance(given, dict):
        raise invalid("neocloud", 'must be an object: {"embedding_model": "..."}')
    reject_unknown(given, {"embedding_model"})
    return text(given, "embedding_model")


def store_as_openai(store: VectorStore, usage: Usage) -> dict[str, object]:
    """`neocloud` is ours: the model that makes the vectors."""
    days = store.expires_days
    busy = "in_progress" if usage.counts["in_progress"] else "completed"
    return {
        "id": store.id,
        "object": "vector_store",
        "created_at": store.created_at,
        "name": store.name,
        "description": store.description or None,
        "usage_bytes": usage.bytes,
        "file_counts": counts_as_openai(usage),
        "status": "expired" if store.is_expired else busy,
        "expires_after": {"anchor": "last_active_at", "days": days} if days else None,
        "expires_at": store.expires_at or None,
        "last_active_at": store.last_active_at,
        "metadata": dict(store.metadata),
        "neocloud": {"embedding_model": store.embedding_model},
    }


def result_as_openai(found: FoundChunk) -> JsonObject:
    return {
        "file_id": found.file.file_id,
        "filename": found.file.name,
        "score": round(found.score, 4),
        "attributes": dict(found.file.attributes),
        "content": [{"type": "text", "text": found.text}],
    }
