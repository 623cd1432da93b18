"""/v1/files: upload, list, look at, read, delete."""

import asyncio
from contextlib import ExitStack
from typing import Any

from starlette.responses import FileResponse, Response
from starlette.routing import Route

from neocloud.gateway.errors import OpenAiError, bad_request
from neocloud.gateway.objects.answering import Asked, route
from neocloud.gateway.objects.borders import Callers
from neocloud.gateway.objects.file_store import PURPOSES, UPLOADED, FileStore, StoredFile
from neocloud.gateway.objects.pages import listed, page
from neocloud.gateway.objects.room import Room
from neocloud.gateway.objects.settings import ObjectSettings
from neocloud.gateway.objects.uploads import (
    MAX_OVERHEAD_BYTES,
    boundary_of,
    disk_trouble,
    receive,
    too_large,
)

PERMISSION = "inference.files"


class FilesApi:
    def __init__(self, store: FileStore, room: Room, settings: ObjectSettings) -> None:
        self._store = store
        self._room = room
        self._settings = settings

    def routes(self, callers: Callers) -> list[Route]:
        return [
            route("POST", "/v1/files", self.upload, callers),
            route("GET", "/v1/files", self.list, callers),
            route("GET", "/v1/files/{file_id}", self.get, callers),
            route("GET", "/v1/files/{file_id}/content", self.content, callers),
            route("DELETE", "/v1/files/{file_id}", self.delete, callers),
        ]

    async def upload(self, asked: Asked) -> dict[str, Any]:
        project_id = asked.project(f"{PERMISSION}.create")
        headers = asked.request.headers
        boundary = boundary_of(headers.get("content-type", ""))
        most = self._settings.max_file_bytes
        if (
            headers.get("content-length", "").isdecimal()
            and int(headers["content-length"]) > most + MAX_OVERHEAD_BYTES
        ):
            raise too_large(most)
        with ExitStack() as stack:
            try:
                draft = self._store.draft(project_id, room=self._room)
                await asyncio.to_thread(stack.enter_context, draft)
                form = await receive(asked.request.stream(), boundary, draft, most)
                purpose = _purpose(form.fields)
                kept = await asyncio.to_thread(draft.keep, form.file_name or "file", purpose)
            except OSError as error:
                raise disk_trouble(error) from error
        return as_openai(kept)

    async def list(self, asked: Asked) -> dict[str, Any]:
        project_id = asked.project(f"{PERMISSION}.list")
        query = asked.request.query_params
        purpose = query.get("purpose", "")
        if purpose and purpose not in PURPOSES:
            raise bad_request(
                f"Unknown purpose {purpose!r}. Purposes are {', '.join(PURPOSES)}.", param="purpose"
            )
        wanted = page(query, limit=10_000, most=10_000)
        files, has_more = await asyncio.to_thread(self._store.page, project_id, wanted, purpose)
        return listed([as_openai(file) for file in files], has_more=has_more)

    async def get(self, asked: Asked) -> dict[str, Any]:
        return as_openai(await self._file(asked, "get"))

    async def content(self, asked: Asked) -> Response:
        file = await self._file(asked, "get")
        path = self._store.location(file)
        if not await asyncio.to_thread(path.exists):
            raise _missing(file.id)
        return FileResponse(path, media_type="application/octet-stream", filename=file.name)

    async def delete(self, asked: Asked) -> dict[str, Any]:
        file = await self._file(asked, "delete")
        if not await asyncio.to_thread(self._store.delete, file):
            raise _missing(file.id)
        return {"id": file.id, "object": "file", "deleted": True}

    async def _file(self, asked: Asked, verb: str) -> StoredFile:
        file_id = asked.request.path_params["file_id"]
        file = await asyncio.to_thread(self._store.find, file_id)
        if file is None or not asked.sees(f"{PERMISSION}.{verb}", file.project_id):
            raise _missing(file_id)
        return file


def _purpose(fields: dict[str, str]) -> str:
    purpose = fields.get("purpose", "")
    if purpose not in UPLOADED:
        raise bad_request(f"Invalid purpose {purpose!r}. Use one of {', '.join(UPLOADED)}.", param="purpose")
    unknown = next((name for name in fields if name != "purpose"), None)
    if unknown is not None:
        raise bad_request(f"Unknown field {unknown!r}. Remove it.", param=unknown, code="unknown_parameter")
    return purpose


def _missing(file_id: str) -> OpenAiError:
    return OpenAiError(
        404,
        f"The file {file_id!r} does not exist or you do not have access to it.",
        code="file_not_found",
        param="id",
    )


def as_openai(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": None,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
        "sha256": file.sha256,
    }
