"""The answer of a model server to /v1/responses on its way to the client: with the search that came before
it, citations, and an id under which it can be stored."""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.retrieval.search import FoundChunk
from neocloud.model_gateway.retrieval.stored_responses import ResponseRows, StoredResponse
from neocloud.model_gateway.routing.relay import Headers, ResponseWriter

logger = logging.getLogger(__name__)
_MARK = re.compile(r"\[(\d{1,2})\]")
FINAL = ("response.completed", "response.incomplete", "response.failed")


@dataclass(frozen=True)
class SearchCall:
    """A search that the gateway made for a request."""

    id: str
    queries: Sequence[str]
    found: Sequence[FoundChunk]
    """The excerpts that the model was given."""
    text: str
    """The text that the model got before the question; "" for none."""

    def as_openai(self, *, with_results: bool, status: str = "completed") -> JsonObject:
        item: JsonObject = {
            "id": self.id,
            "type": "file_search_call",
            "status": status,
            "queries": list(self.queries),
            "results": None,
        }
        if with_results and status == "completed":
            item["results"] = [
                {
                    "file_id": each.file.file_id,
                    "filename": each.file.name,
                    "score": round(each.score, 4),
                    "text": each.text,
                    "attributes": dict(each.file.attributes),
                }
                for each in self.found
            ]
        return item

    def citations(self, text: str) -> list[Json]:
        """Return annotations of an answer: of the excerpts that it marks with [1], else of all files."""
        marked = {int(match[1]) for match in _MARK.finditer(text)}
        numbers = [number for number in range(1, len(self.found) + 1) if number in marked]
        chosen = [self.found[number - 1] for number in numbers] or self.found
        files = {each.file.file_id: each.file.name for each in chosen}
        return [
            {"type": "file_citation", "index": len(text), "file_id": file_id, "filename": name}
            for file_id, name in files.items()
        ]


class Enriched:
    """A `ResponseWriter` that changes what passes to another one."""

    def __init__(
        self,
        client: ResponseWriter,
        *,
        id: str,
        project_id: str,
        created_at: int,
        shown: Mapping[str, Json],
        call: SearchCall | None,
        with_results: bool,
        conversation: Sequence[Json],
        rows: ResponseRows | None,
    ) -> None:
        """`rows`: where it is stored; None: it is not."""
        self._client = client
        self._id = id
        self._project_id = project_id
        self._created_at = created_at
        self._shown = shown
        self._call = call
        self._with_results = with_results
        self._conversation = conversation
        self._rows = rows
        self._rest = b""
        self._number = 0
        """The number of the next event."""
        self._has_told_search = call is None

    async def whole(self, status: int, headers: Headers, data: bytes) -> None:
        document: Json = orjson.loads(data)
        if status == 200 and isinstance(document, dict):
            data = orjson.dumps(await self._final(document))
        await self._client.whole(status, headers, data)

    async def start(self, status: int, headers: Headers) -> None:
        await self._client.start(status, headers)

    async def write(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        sent = b"".join([await self._changed(event) for event in events if event.strip()])
        if sent:
            await self._client.write(sent)

    async def end(self) -> None:
        if self._rest:
            await self._client.write(self._rest)
        await self._client.end()

    async def _changed(self, raw: bytes) -> bytes:
        """Return an event as the client gets it, with those that come before or after it."""
        event = _parsed(raw)
        kind = event.get("type") if event is not None else None
        if event is None or not isinstance(kind, str) or not kind.startswith("response."):
            return raw + b"\n\n"
        before = b""
        if not self._has_told_search and kind not in ("response.created", "response.in_progress"):
            self._has_told_search = True
            before = self._search_events()
        place = event.get("output_index")
        if self._call is not None and isinstance(place, int):
            event["output_index"] = place + 1
        response = event.get("response")
        if isinstance(response, dict):
            is_final = kind in FINAL
            event["response"] = await self._final(response) if is_final else self._named(response)
        if kind in ("response.output_item.done", "response.content_part.done"):
            before += self._annotate(event)
        return before + self._event(event)

    def _event(self, event: JsonObject) -> bytes:
        event["sequence_number"] = self._number
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))

    def _search_events(self) -> bytes:
        call = self._call
        assert call is not None, "is sent once"
        begun = call.as_openai(with_results=False, status="in_progress")
        done = call.as_openai(with_results=self._with_results)
        place: JsonObject = {"output_index": 0, "item_id": call.id}
        steps = ("in_progress", "searching", "completed")
        return b"".join(
            [
                self._event({"type": "response.output_item.added", "output_index": 0, "item": begun}),
                *(self._event({"type": f"response.file_search_call.{step}", **place}) for step in steps),
                self._event({"type": "response.output_item.done", "output_index": 0, "item": done}),
            ]
        )

    def _annotate(self, event: JsonObject) -> bytes:
        """Add citations to the text that an event ends, and return the events that show them."""
        item, part = event.get("item"), event.get("part")
        if isinstance(item, dict):
            self._cite(item)
            return b""
        if self._call is None or not isinstance(part, dict) or part.get("type") != "output_text":
            return b""
        found = self._call.citations(str(part.get("text")))
        part["annotations"] = found
        place = {name: event.get(name) for name in ("item_id", "output_index", "content_index")}
        return b"".join(
            self._event(
                {
                    "type": "response.output_text.annotation.added",
                    **place,
                    "annotation_index": number,
                    "annotation": each,
                }
            )
            for number, each in enumerate(found)
        )

    def _cite(self, item: JsonObject) -> None:
        parts = item.get("content")
        if self._call is None or item.get("type") != "message" or not isinstance(parts, list):
            return
        for part in parts:
            if isinstance(part, dict) and part.get("type") == "output_text":
                part["annotations"] = self._call.citations(str(part.get("text")))

    def _named(self, response: JsonObject) -> JsonObject:
        is_stored = self._rows is not None
        return {**response, "id": self._id, "store": is_stored, **self._shown}

    async def _final(self, response: JsonObject) -> JsonObject:
        """Return the whole response, after it is stored."""
        response = self._named(response)
        output = response.get("output")
        items: list[Json] = output if isinstance(output, list) else []
        for item in items:
            if isinstance(item, dict):
                self._cite(item)
        said = [turn for item in items if (turn := _turn(item)) is not None]
        if self._call is not None:
            items = [self._call.as_openai(with_results=self._with_results), *items]
        response["output"] = items
        if self._rows is not None:
            await self._keep(self._rows, response, [*self._conversation, *said])
        return response

    async def _keep(self, rows: ResponseRows, response: JsonObject, conversation: list[Json]) -> None:
        stored = StoredResponse(
            self._id, self._project_id, self._created_at, response, conversation, len(self._conversation)
        )
        if not await asyncio.to_thread(rows.add, stored):
            response["store"] = False  # it is too large, or the disk is full; the answer counts more


def _parsed(raw: bytes) -> JsonObject | None:
    lines = [line[5:] for line in raw.split(b"\n") if line.startswith(b"data:")]
    try:
        found: Json = orjson.loads(b"".join(lines))
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _turn(item: Json) -> Json:
    """Return an item of output as one of input for the next response; None for what is not sent again."""
    if not isinstance(item, dict):
        return None
    if item.get("type") == "function_call":
        return {name: item.get(name) for name in ("type", "call_id", "name", "arguments")}
    parts = item.get("content")
    if item.get("type") != "message" or not isinstance(parts, list):
        return None
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return {"role": "assistant", "content": "".join(text for text in texts if isinstance(text, str))}
