"""Responses that callers had stored: rows of retrieval.db, and GET and DELETE /v1/responses/{id}."""

import asyncio
import logging
import sqlite3
from dataclasses import dataclass

import orjson
from starlette.routing import Route

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.openai_files.database import Database
from neocloud.model_gateway.openai_files.handlers import ApiRequest, CallerAuthenticator, route
from neocloud.model_gateway.settings import RetrievalSettings

logger = logging.getLogger(__name__)
PERMISSION = "inference.responses"
DAY_SECONDS = 86400


@dataclass(frozen=True)
class StoredResponse:
    id: str
    project_id: str
    created_at: int
    document: JsonObject
    conversation: list[Json]
    """All items up to and with the answer."""
    input_items: int
    """How many of them were there before the answer."""


class ResponseRows:
    """Methods block; asyncio code calls them in threads."""

    def __init__(self, database: Database, settings: RetrievalSettings) -> None:
        self._database = database
        self._settings = settings

    def add(self, response: StoredResponse) -> bool:
        """Store a response; the oldest ones of the project give way. Returns False where that is not
        possible."""
        document = orjson.dumps(response.document).decode()
        kept = {"items": response.conversation, "input_items": response.input_items}
        conversation = orjson.dumps(kept).decode()
        size = len(document) + len(conversation)
        if size > self._settings.max_response_bytes:
            return False
        row = (response.id, response.project_id, response.created_at, size, document, conversation)
        try:
            with self._database.transaction() as rows:
                rows.execute(
                    "INSERT INTO responses (id, project_id, created_at, bytes, document, conversation)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    row,
                )
                rows.execute(_BEYOND, (response.project_id, self._settings.max_project_responses))
        except sqlite3.Error as error:
            logger.error("A response could not be stored: %s", error)
            return False
        return True

    def find(self, response_id: str) -> StoredResponse | None:
        with self._database.reading() as rows:
            row = rows.execute("SELECT * FROM responses WHERE id = ?", (response_id,)).fetchone()
        if row is None:
            return None
        kept = orjson.loads(row["conversation"])
        return StoredResponse(
            *(row["id"], row["project_id"], row["created_at"], orjson.loads(row["document"])),
            *(kept["items"], kept["input_items"]),
        )

    def delete(self, response_id: str) -> bool:
        with self._database.transaction() as rows:
            return rows.execute("DELETE FROM responses WHERE id = ?", (response_id,)).rowcount > 0

    def expire(self, now: int) -> None:
        oldest = now - self._settings.response_days * DAY_SECONDS
        with self._database.transaction() as rows:
            rows.execute("DELETE FROM responses WHERE created_at < ?", (oldest,))


_BEYOND = """
DELETE FROM responses WHERE number <= (
    SELECT number FROM responses WHERE project_id = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2
) AND project_id = ?1
"""


class ResponsesApi:
    def __init__(self, rows: ResponseRows) -> None:
        self._rows = rows

    def routes(self, callers: CallerAuthenticator) -> list[Route]:
        response = "/v1/responses/{response_id}"
        return [
            route("GET", response, self.get, callers),
            route("DELETE", response, self.delete, callers),
            route("GET", f"{response}/input_items", self.input_items, callers),
        ]

    async def get(self, request: ApiRequest) -> JsonObject:
        return (await self._response(request, "get")).document

    async def delete(self, request: ApiRequest) -> JsonObject:
        found = await self._response(request, "delete")
        await asyncio.to_thread(self._rows.delete, found.id)
        return {"id": found.id, "object": "response", "deleted": True}

    async def input_items(self, request: ApiRequest) -> JsonObject:
        """Return the input, the newest item first."""
        found = await self._response(request, "get")
        items: list[JsonObject] = [
            _shown(item, f"msg_{found.id[5:]}_{number}")
            for number, item in enumerate(found.conversation[: found.input_items])
            if isinstance(item, dict)
        ]
        items.reverse()
        first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return {"object": "list", "data": [*items], "first_id": first, "last_id": last, "has_more": False}

    async def _response(self, request: ApiRequest, verb: str) -> StoredResponse:
        response_id = request.http.path_params["response_id"]
        found = await asyncio.to_thread(self._rows.find, response_id)
        if found is None or not request.sees(f"{PERMISSION}.{verb}", found.project_id):
            raise response_not_found(response_id, "response_id")
        return found


def _shown(item: JsonObject, item_id: str) -> JsonObject:
    """Return an item of input in the long form, in which content is a list of parts."""
    content, is_answer = item.get("content"), item.get("role") == "assistant"
    shown: JsonObject = {"id": item_id, "type": "message", "status": "completed", **item}
    if isinstance(content, str) and is_answer:
        shown["content"] = [{"type": "output_text", "text": content, "annotations": []}]
    elif isinstance(content, str):
        shown["content"] = [{"type": "input_text", "text": content}]
    return shown


def response_not_found(response_id: str, param: str) -> OpenAiError:
    return OpenAiError(
        404,
        f"The response {response_id[:80]!r} does not exist or you do not have access to it. A response is"
        " stored where its request has `store: true`.",
        code="response_not_found",
        param=param,
    )
