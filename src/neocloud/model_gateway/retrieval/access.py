"""Access to vector stores, and the errors of those who have none."""

import asyncio
from collections.abc import Mapping

from neocloud.core.contract.json_codec import JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.openai_files.handlers import ApiRequest, Page, read_page
from neocloud.model_gateway.retrieval.catalogue import Catalogue, Usage, VectorStore

PERMISSION = "inference.vectorStores"


def listed_page(query: Mapping[str, str]) -> Page:
    """Read paging parameters. `before` is refused: pages go one way, from `after`."""
    if query.get("before"):
        raise bad_request("before is not supported. Use after, with order.", param="before")
    return read_page(query, limit=20, most=100)


async def find_store(catalogue: Catalogue, request: ApiRequest, verb: str) -> VectorStore:
    """Return the store of the path, if the caller may use it; to others it does not exist."""
    return await store_for(catalogue, request, request.http.path_params["store_id"], verb)


async def store_for(catalogue: Catalogue, request: ApiRequest, store_id: str, verb: str) -> VectorStore:
    store = await asyncio.to_thread(catalogue.store, store_id)
    if store is None or not request.sees(f"{PERMISSION}.{verb}", store.project_id):
        raise store_not_found(store_id)
    return store


def store_not_found(store_id: str, param: str = "vector_store_id") -> OpenAiError:
    return OpenAiError(
        404,
        f"The vector store {store_id[:80]!r} does not exist or you do not have access to it.",
        code="vector_store_not_found",
        param=param,
    )


def limit_reached(message: str) -> OpenAiError:
    headers = {"x-should-retry": "false"}
    return OpenAiError(429, message, type="insufficient_quota", code="insufficient_quota", headers=headers)


def counts_as_openai(usage: Usage) -> JsonObject:
    return {**usage.counts, "total": usage.total}
