"""/v1/responses with file search, with the conversation of an earlier response, or to be stored.

All other requests to that path go to the model server as they are. The gateway searches for the last message
of the user by itself: small models cannot call tools, and a document never decides what is searched.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocloud.core.clock import Clock
from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import bad_request
from neocloud.model_gateway.authentication import Caller
from neocloud.model_gateway.openai_files.handlers import reject_unknown
from neocloud.model_gateway.retrieval.access import PERMISSION, store_not_found
from neocloud.model_gateway.retrieval.catalogue import Catalogue, VectorStore
from neocloud.model_gateway.retrieval.filters import check_filter
from neocloud.model_gateway.retrieval.inputs import Ranking, invalid, read_ranking
from neocloud.model_gateway.retrieval.quoting import quoted
from neocloud.model_gateway.retrieval.response_events import Enriched, SearchCall
from neocloud.model_gateway.retrieval.search import MAX_QUERY, Searcher
from neocloud.model_gateway.retrieval.stored_responses import ResponseRows, response_not_found
from neocloud.model_gateway.routing.relay import ResponseWriter
from neocloud.model_gateway.routing.routes import RouteTable

FILE_SEARCH = "file_search"
RESULTS = "file_search_call.results"
MAX_STORES = 10
"""Vector stores of one request."""
TOOL = {"type", "vector_store_ids", "max_num_results", "filters", "ranking_options"}
ONLY_FOR_TOOLS = ("tool_choice", "parallel_tool_calls", "max_tool_calls")
READ_RESPONSES = "inference.responses.get"


@dataclass(frozen=True)
class _Tool:
    store_ids: Sequence[str]
    filters: JsonObject | None
    ranking: Ranking


class Responses:
    def __init__(
        self, catalogue: Catalogue, searcher: Searcher, rows: ResponseRows, table: RouteTable, clock: Clock
    ) -> None:
        self._catalogue = catalogue
        self._searcher = searcher
        self._rows = rows
        self._table = table
        self._clock = clock

    @staticmethod
    def is_wanted(body: Mapping[str, Json]) -> bool:
        """Return whether the gateway has to do something for this request."""
        tools = body.get("tools")
        has_search = isinstance(tools, list) and any(_is_search(tool) for tool in tools)
        return has_search or body.get("previous_response_id") is not None or body.get("store") is True

    async def prepare(
        self,
        caller: Caller,
        project_id: str,
        body: JsonObject,
        wait_seconds: float,
        client: ResponseWriter,
    ) -> tuple[JsonObject, ResponseWriter]:
        """Search, and add excerpts and earlier turns to the input. See `ResponseSteps`."""
        shown = {name: body.get(name) for name in ("tools", "tool_choice", "previous_response_id")}
        new = _items(body.get("input"))
        earlier = await self._earlier(caller, project_id, body.get("previous_response_id"))
        model_body: JsonObject = {
            name: value for name, value in body.items() if name not in ("previous_response_id", "store")
        }
        tool = _take_tool(model_body)
        with_results = _take_include(model_body)
        call = None
        if tool is not None and body.get("tool_choice") != "none":
            stores = [await self._store(caller, project_id, store_id) for store_id in tool.store_ids]
            call = await self._search(caller, stores, tool, new, body.get("model"), wait_seconds)
        told = new if call is None or not call.text else _with_excerpts(new, call.text)
        model_body["input"] = [*earlier, *told]
        response = Enriched(
            client,
            id=f"resp_{secrets.token_hex(24)}",
            project_id=project_id,
            created_at=int(self._clock.now().timestamp()),
            shown={name: value for name, value in shown.items() if value is not None},
            call=call,
            with_results=with_results,
            conversation=[*earlier, *new],
            rows=self._rows if body.get("store") is True else None,
        )
        return model_body, response

    async def _earlier(self, caller: Caller, project_id: str, given: Json) -> list[Json]:
        """Return the conversation of an earlier response."""
        if given is None:
            return []
        if not isinstance(given, str):
            raise invalid("previous_response_id", "must be the id of a response")
        found = await asyncio.to_thread(self._rows.find, given)
        if found is None or found.project_id != project_id or not caller.may(READ_RESPONSES, project_id):
            raise response_not_found(given, "previous_response_id")
        return found.conversation

    async def _store(self, caller: Caller, project_id: str, store_id: str) -> VectorStore:
        store = await asyncio.to_thread(self._catalogue.store, store_id)
        may_read = caller.may(f"{PERMISSION}.get", project_id)
        if store is None or store.project_id != project_id or not may_read:
            raise store_not_found(store_id, "tools")
        return store

    async def _search(
        self,
        caller: Caller,
        stores: Sequence[VectorStore],
        tool: _Tool,
        items: Sequence[Json],
        model: Json,
        wait_seconds: float,
    ) -> SearchCall | None:
        """Search for the last message, if that is the user's."""
        question = _text_of(items[-1]) if items else ""
        if not question.strip():
            return None
        query = question[-MAX_QUERY:]
        found = await self._searcher.search(
            caller, stores, [query], tool.filters, tool.ranking, wait_seconds=wait_seconds
        )
        target = self._table.find(caller.tenant_id, model) if isinstance(model, str) else None
        text, used = quoted(found, target.deployment.context_length if target else 0) if found else ("", 0)
        return SearchCall(f"fs_{secrets.token_hex(24)}", [query], found[:used], text)


def _is_search(tool: Json) -> bool:
    return isinstance(tool, dict) and tool.get("type") == FILE_SEARCH


def _items(given: Json) -> list[Json]:
    """Return the input as items. What is wrong with them is said later, by the check of the whole body."""
    if isinstance(given, str) and given:
        return [{"type": "message", "role": "user", "content": given}]
    if isinstance(given, list) and given:
        return given
    raise bad_request("input is missing or empty.", param="input", code="missing_required_parameter")


def _take_tool(body: JsonObject) -> _Tool | None:
    """Remove file search from the tools of a body, and return it. Raises OpenAiError."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return None
    searches = [tool for tool in tools if _is_search(tool)]
    others = [tool for tool in tools if not _is_search(tool)]
    choice = body.get("tool_choice")
    is_satisfied = isinstance(choice, dict) and choice.get("type") == FILE_SEARCH
    body["tools"] = others
    if searches and is_satisfied:
        body["tool_choice"] = "auto"
    if searches and not others:
        for name in ("tools", *ONLY_FOR_TOOLS):
            body.pop(name, None)
    if len(searches) > 1:
        raise bad_request("Use one tool of type file_search, with several vector_store_ids.", param="tools")
    return _read_tool(searches[0]) if searches else None


def _read_tool(tool: Json) -> _Tool:
    assert isinstance(tool, dict), "is a search"
    reject_unknown(tool, TOOL)
    ids = tool.get("vector_store_ids")
    texts = [each for each in ids if isinstance(each, str)] if isinstance(ids, list) else []
    if not isinstance(ids, list) or len(texts) < len(ids) or not 1 <= len(texts) <= MAX_STORES:
        raise invalid("tools.vector_store_ids", f"must be a list of 1 to {MAX_STORES} ids of vector stores")
    filters = check_filter(tool.get("filters"), "tools.filters")
    return _Tool(list(dict.fromkeys(texts)), filters, read_ranking(tool, "tools."))


def _take_include(body: JsonObject) -> bool:
    """Remove the results of searches from `include`; return whether they were asked for."""
    include = body.get("include")
    if not isinstance(include, list) or RESULTS not in include:
        return False
    rest = [each for each in include if each != RESULTS]
    if rest:
        body["include"] = rest
    else:
        del body["include"]
    return True


def _text_of(item: Json) -> str:
    """Return the text of a message of the user; "" for anything else."""
    if not isinstance(item, dict) or item.get("role") != "user":
        return ""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _with_excerpts(items: Sequence[Json], excerpts: str) -> list[Json]:
    """Return the items with excerpts before the text of the last message."""
    last = items[-1]
    assert isinstance(last, dict), "is a message of the user"
    content = last.get("content")
    if isinstance(content, list):
        told: Json = [{"type": "input_text", "text": excerpts}, *content]
    else:
        told = f"{excerpts}\n\nQuestion: {content}"
    return [*items[:-1], {**last, "content": told}]
