"""/v1/vector_stores/{id}/files and /file_batches: attach, list, get, change, read, detach, cancel."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace

from starlette.routing import Route

from neocloud.core.clock import Clock
from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request, forbidden
from neocloud.model_gateway.authentication import INVOKE, Caller
from neocloud.model_gateway.openai_files.batches import stored_caller
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.model_gateway.openai_files.handlers import (
    ApiRequest,
    CallerAuthenticator,
    list_response,
    reject_unknown,
    route,
)
from neocloud.model_gateway.retrieval.access import counts_as_openai, find_store, limit_reached, listed_page
from neocloud.model_gateway.retrieval.catalogue import (
    STATUSES,
    Catalogue,
    FileBatch,
    StoreFile,
    VectorStore,
)
from neocloud.model_gateway.retrieval.embedder import Embedder
from neocloud.model_gateway.retrieval.index_calls import FileTexts, Index, RemoveFile
from neocloud.model_gateway.retrieval.ingestion import Ingestion
from neocloud.model_gateway.retrieval.inputs import invalid, read_attributes, read_chunking
from neocloud.model_gateway.retrieval.search import ask_index
from neocloud.model_gateway.settings import RetrievalSettings

ENTRY = {"file_id", "attributes", "chunking_strategy"}
MAX_BATCH_FILES = 2000


class StoreFiles:
    def __init__(
        self,
        catalogue: Catalogue,
        index: Index,
        files: FileStore,
        ingestion: Ingestion,
        embedder: Embedder,
        settings: RetrievalSettings,
        clock: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._index = index
        self._files = files
        self._ingestion = ingestion
        self._embedder = embedder
        self._settings = settings
        self._clock = clock

    def routes(self, callers: CallerAuthenticator) -> list[Route]:
        files = "/v1/vector_stores/{store_id}/files"
        batches = "/v1/vector_stores/{store_id}/file_batches"
        return [
            route("POST", files, self.create, callers),
            route("GET", files, self.list, callers),
            route("GET", f"{files}/{{file_id}}", self.get, callers),
            route("POST", f"{files}/{{file_id}}", self.modify, callers),
            route("DELETE", f"{files}/{{file_id}}", self.delete, callers),
            route("GET", f"{files}/{{file_id}}/content", self.content, callers),
            route("POST", batches, self.create_batch, callers),
            route("GET", f"{batches}/{{batch_id}}", self.get_batch, callers),
            route("POST", f"{batches}/{{batch_id}}/cancel", self.cancel_batch, callers),
            route("GET", f"{batches}/{{batch_id}}/files", self.list_batch, callers),
        ]

    async def prepared(
        self, caller: Caller, store: VectorStore, entries: Json, chunking: Json, attributes: Json = None
    ) -> list[StoreFile]:
        """Return rows for files that are to be attached. Raises OpenAiError."""
        if not isinstance(entries, list) or len(entries) > MAX_BATCH_FILES:
            raise invalid("file_ids", f"must be a list of at most {MAX_BATCH_FILES} files")
        if not caller.may(INVOKE, store.project_id):
            raise forbidden(f"You do not have the permission {INVOKE} in the project {store.project_id}.")
        if store.is_expired:
            raise bad_request(f"The vector store {store.id} has expired. Create a new one.")
        context_length = self._embedder.context_length(caller, store.embedding_model)
        given = [{"chunking_strategy": chunking, "attributes": attributes} | _entry(each) for each in entries]
        if len({str(each["file_id"]) for each in given}) < len(given):
            raise invalid("file_ids", "names a file twice")
        await asyncio.to_thread(self._require_room, store, len(given))
        now, kept = int(self._clock.now().timestamp()), stored_caller(caller)
        found: list[StoreFile] = []
        for each in given:
            file_id = str(each["file_id"])
            sizes = read_chunking(each["chunking_strategy"], context_length)
            stored = await asyncio.to_thread(self._files.find, file_id)
            if stored is None or stored.project_id != store.project_id:
                message = f"There is no file {file_id[:80]!r} in the project {store.project_id}."
                raise bad_request(message, param="file_id", code="file_not_found")
            if stored.bytes > self._settings.max_file_bytes:
                message = f"is larger than the {self._settings.max_file_bytes} bytes that are read. Split it"
                raise invalid("file_id", message)
            found.append(
                StoreFile(
                    *(store.id, file_id, stored.name, now, sizes.max_tokens, sizes.overlap_tokens, kept),
                    attributes=read_attributes(each["attributes"]),
                )
            )
        return found

    def _require_room(self, store: VectorStore, more: int) -> None:
        """Raise OpenAiError 429 at a limit of the project or store."""
        settings = self._settings
        if self._catalogue.usage(store.id).total + more > settings.max_store_files:
            raise limit_reached(f"A vector store has at most {settings.max_store_files} files.")
        if self._catalogue.project_bytes(store.project_id) >= settings.max_project_bytes:
            raise limit_reached(
                f"The vector stores of the project {store.project_id} take their limit of"
                f" {settings.max_project_bytes} bytes. Delete some, or ask your administrator to raise it."
            )
        if self._catalogue.count_unfinished(store.project_id) + more > settings.max_unfinished_files:
            message = f"The project has {settings.max_unfinished_files} files that are not indexed yet. Wait."
            raise OpenAiError(
                429, message, type="requests", code="too_many_files", headers={"Retry-After": "30"}
            )

    async def attach(
        self, store: VectorStore, files: Sequence[StoreFile], batch: FileBatch | None = None
    ) -> None:
        for file in files:  # one that is there already is indexed again
            if await asyncio.to_thread(self._catalogue.remove_file, store.id, file.file_id):
                await ask_index(self._index.ask(RemoveFile(store.id, file.file_id), type(None)))
        await asyncio.to_thread(self._catalogue.add_files, files, batch)
        for file in files:
            self._ingestion.add(store, file.file_id)

    async def create(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        store = await find_store(self._catalogue, request, "update")
        reject_unknown(body, ENTRY)
        [file] = await self.prepared(request.caller, store, [body], None)
        await self.attach(store, [file])
        return file_as_openai(file)

    async def list(self, request: ApiRequest) -> dict[str, object]:
        store = await find_store(self._catalogue, request, "get")
        return await self._listed(request, store)

    async def _listed(self, request: ApiRequest, store: VectorStore, batch_id: str = "") -> dict[str, object]:
        query = request.http.query_params
        status = query.get("filter", "")
        if status and status not in STATUSES:
            raise invalid("filter", f"must be one of {', '.join(STATUSES)}")
        page = listed_page(query)
        files, has_more = await asyncio.to_thread(
            self._catalogue.files, store.id, page, status=status, batch_id=batch_id
        )
        return list_response([file_as_openai(file) for file in files], has_more=has_more)

    async def get(self, request: ApiRequest) -> dict[str, object]:
        _, file = await self._file(request, "get")
        return file_as_openai(file)

    async def modify(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        _, file = await self._file(request, "update")
        reject_unknown(body, {"attributes"})
        attributes = read_attributes(body.get("attributes"))
        return file_as_openai(await asyncio.to_thread(self._catalogue.set_attributes, file, attributes))

    async def delete(self, request: ApiRequest) -> dict[str, object]:
        store, file = await self._file(request, "update")
        await asyncio.to_thread(self._catalogue.remove_file, store.id, file.file_id)
        await ask_index(self._index.ask(RemoveFile(store.id, file.file_id), type(None)))
        return {"id": file.file_id, "object": "vector_store.file.deleted", "deleted": True}

    async def file_deleted(self, file_id: str) -> None:
        """Detach a file that does not exist any more from all stores."""
        for store_id in await asyncio.to_thread(self._catalogue.stores_with, file_id):
            await asyncio.to_thread(self._catalogue.remove_file, store_id, file_id)
            await ask_index(self._index.ask(RemoveFile(store_id, file_id), type(None)))

    async def content(self, request: ApiRequest) -> dict[str, object]:
        store, file = await self._file(request, "get")
        if file.status != "completed":
            raise OpenAiError(409, f"The file is {file.status}; only completed files have content.")
        texts = await ask_index(self._index.ask(FileTexts(store.id, file.file_id), list[str]))
        return {
            "object": "vector_store.file_content.page",
            "data": [{"type": "text", "text": text} for text in texts],
            "has_more": False,
            "next_page": None,
        }

    async def create_batch(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        store = await find_store(self._catalogue, request, "update")
        reject_unknown(body, {"file_ids", "files", "attributes", "chunking_strategy"})
        if (body.get("file_ids") is None) == (body.get("files") is None):
            raise invalid("file_ids", "or files must be given, and not both")
        ids: Json = body.get("file_ids")
        entries: Json = body.get("files")
        if isinstance(ids, list):
            entries = [{"file_id": each} for each in ids]
        elif entries is not None and not (body.get("attributes") is body.get("chunking_strategy") is None):
            raise invalid("attributes", "and chunking_strategy belong to each of files")
        files = await self.prepared(
            request.caller, store, entries, body.get("chunking_strategy"), body.get("attributes")
        )
        if not files:
            raise invalid("file_ids", "is empty")
        batch = FileBatch(f"vsfb_{secrets.token_hex(12)}", store.id, files[0].created_at)
        await self.attach(store, [replace(file, batch_id=batch.id) for file in files], batch)
        return await self._batch_shown(batch)

    async def get_batch(self, request: ApiRequest) -> dict[str, object]:
        _, batch = await self._batch(request, "get")
        return await self._batch_shown(batch)

    async def cancel_batch(self, request: ApiRequest) -> dict[str, object]:
        _, batch = await self._batch(request, "update")
        return await self._batch_shown(await asyncio.to_thread(self._catalogue.cancel_batch, batch))

    async def list_batch(self, request: ApiRequest) -> dict[str, object]:
        store, batch = await self._batch(request, "get")
        return await self._listed(request, store, batch.id)

    async def _file(self, request: ApiRequest, verb: str) -> tuple[VectorStore, StoreFile]:
        store = await find_store(self._catalogue, request, verb)
        file_id = request.http.path_params["file_id"]
        file = await asyncio.to_thread(self._catalogue.file, store.id, file_id)
        if file is None:
            message = f"The vector store {store.id} has no file {file_id[:80]!r}."
            raise OpenAiError(404, message, code="file_not_found", param="file_id")
        return store, file

    async def _batch(self, request: ApiRequest, verb: str) -> tuple[VectorStore, FileBatch]:
        store = await find_store(self._catalogue, request, verb)
        batch_id = request.http.path_params["batch_id"]
        batch = await asyncio.to_thread(self._catalogue.batch, batch_id)
        if batch is None or batch.store_id != store.id:
            message = f"The vector store {store.id} has no batch {batch_id[:80]!r}."
            raise OpenAiError(404, message, code="batch_not_found", param="batch_id")
        return store, batch

    async def _batch_shown(self, batch: FileBatch) -> dict[str, object]:
        usage = await asyncio.to_thread(self._catalogue.usage, batch.store_id, batch.id)
        done = "cancelled" if batch.is_cancelled else "completed"
        return {
            "id": batch.id,
            "object": "vector_store.files_batch",
            "created_at": batch.created_at,
            "vector_store_id": batch.store_id,
            "status": "in_progress" if usage.counts["in_progress"] else done,
            "file_counts": counts_as_openai(usage),
        }


def _entry(given: Json) -> JsonObject:
    """Return the file of a list; raises OpenAiError where it names none."""
    if not isinstance(given, dict):
        raise invalid("files", 'must have objects: {"file_id": "..."}')
    reject_unknown(given, ENTRY)
    file_id = given.get("file_id")
    if not isinstance(file_id, str) or not file_id:
        raise invalid("file_id", "must be the id of a file")
    return {name: value for name, value in given.items() if value is not None}


def file_as_openai(file: StoreFile) -> dict[str, object]:
    static = {"max_chunk_size_tokens": file.max_tokens, "chunk_overlap_tokens": file.overlap_tokens}
    return {
        "id": file.file_id,
        "object": "vector_store.file",
        "usage_bytes": file.bytes,
        "created_at": file.created_at,
        "vector_store_id": file.store_id,
        "status": file.status,
        "last_error": dict(file.error) or None,
        "chunking_strategy": {"type": "static", "static": static},
        "attributes": dict(file.attributes),
    }
