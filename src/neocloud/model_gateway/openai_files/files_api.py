"""/v1/files: upload, list, get, read, delete. Uploads are written to disk as they arrive, never held in
memory; those of a project with a file bucket are forwarded to the bucket."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import quote

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.openai_files.bucket_files import BucketFiles, ignore_deletion
from neocloud.model_gateway.openai_files.files import PURPOSES, UPLOAD_PURPOSES, Draft, FileStore, StoredFile
from neocloud.model_gateway.openai_files.handlers import (
    ApiRequest,
    CallerAuthenticator,
    expiry,
    list_response,
    read_page,
    route,
)
from neocloud.model_gateway.openai_files.quota import StorageQuota, disk_full_error
from neocloud.model_gateway.settings import FileSettings

WRITTEN_BYTES = 1 << 20
FIELD_BYTES = 64 << 10
MAX_FIELDS = 8
"""Form fields besides the file; OpenAI's clients send one or two."""
MAX_OVERHEAD_BYTES = 128 << 10
"""Bytes of an upload besides its file: fields, part headers, boundaries, preamble and epilogue."""


@dataclass
class Form:
    """The name of the file, and the fields besides it."""

    file_name: str | None = None
    fields: dict[str, str] = field(default_factory=dict[str, str])


def multipart_boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise bad_request(
            "Upload the file as multipart/form-data with the fields `file` and `purpose`, for example with"
            " `curl -F purpose=batch -F file=@requests.jsonl`."
        )
    return boundary


class _Parts:
    """Callbacks of the parser. Collects the bytes of the file until they are written."""

    def __init__(self) -> None:
        self.form = Form()
        self.file_bytes = bytearray()
        self.is_complete = False
        self._header = [b"", b""]
        self._disposition: dict[bytes, bytes] = {}
        self._field = bytearray()
        self._field_room = FIELD_BYTES
        self._in_file = False
        self._count = 0

    def on_part_begin(self) -> None:
        self._count += 1
        if self._count > MAX_FIELDS + 1:
            raise bad_request(f"The upload has more than {MAX_FIELDS} fields besides the file.")
        self._disposition, self._field, self._in_file = {}, bytearray(), False

    def on_header_begin(self) -> None:
        self._header = [b"", b""]

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def on_header_end(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            _, self._disposition = parse_options_header(self._header[1])

    def on_headers_finished(self) -> None:
        name = self._disposition.get(b"name", b"")
        self._in_file = name == b"file"
        if not self._in_file:
            return
        if self.form.file_name is not None:
            raise bad_request("The upload has several files. Upload one file per request.", param="file")
        raw = self._disposition.get(b"filename", b"").decode("utf-8", "replace")
        self.form.file_name = raw.replace("\\", "/").rsplit("/", 1)[-1][:255] or "file"

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self.file_bytes += data[start:end]
            return
        self._field_room -= end - start
        if self._field_room < 0:
            raise bad_request(f"The fields besides the file exceed {FIELD_BYTES} bytes in total.")
        self._field += data[start:end]

    def on_part_end(self) -> None:
        if not self._in_file:
            name = self._disposition.get(b"name", b"").decode("utf-8", "replace")
            self.form.fields[name] = self._field.decode("utf-8", "replace")

    def on_end(self) -> None:
        self.is_complete = True


CALLBACKS = (
    *("on_part_begin", "on_part_data", "on_part_end", "on_header_begin", "on_header_field"),
    *("on_header_value", "on_header_end", "on_headers_finished", "on_end"),
)


async def receive_upload(chunks: AsyncIterator[bytes], boundary: bytes, draft: Draft, max_bytes: int) -> Form:
    """Write the file to the draft. Raises OpenAiError, also when the disk is full."""
    parts = _Parts()
    parser = MultipartParser(boundary, {name: getattr(parts, name) for name in CALLBACKS})  # type: ignore[arg-type]
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        try:
            parser.write(chunk)
        except MultipartParseError as error:
            raise bad_request(f"The upload is not valid multipart/form-data: {error}") from error
        if draft.bytes + len(parts.file_bytes) > max_bytes:
            raise too_large(max_bytes)
        if received - draft.bytes - len(parts.file_bytes) > MAX_OVERHEAD_BYTES:
            raise bad_request(
                f"The upload has more than {MAX_OVERHEAD_BYTES} bytes besides the file. Send only the fields"
                " `file` and `purpose`."
            )
        if len(parts.file_bytes) >= WRITTEN_BYTES:
            await _write_draft(draft, parts)
    if not parts.is_complete:
        raise bad_request("The upload was interrupted; nothing was stored. Send it again.")
    await _write_draft(draft, parts)
    if parts.form.file_name is None:
        raise bad_request("The upload has no field `file`.", param="file")
    return parts.form


async def _write_draft(draft: Draft, parts: _Parts) -> None:
    taken, parts.file_bytes = bytes(parts.file_bytes), bytearray()
    try:
        await asyncio.to_thread(draft.write, taken)
    except OSError as error:
        raise disk_error(error) from error


def too_large(max_bytes: int) -> OpenAiError:
    return OpenAiError(
        413,
        f"The file is larger than the limit of {max_bytes} bytes. Split it, or ask your administrator to"
        " raise the limit.",
        code="file_too_large",
        param="file",
    )


def disk_error(error: OSError) -> OpenAiError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    return disk_full_error()


PERMISSION = "inference.files"
_EXPIRY = ("anchor", "seconds")
"""The parts of `expires_after`, which OpenAI's clients send as fields of their own."""


class FilesApi:
    def __init__(
        self, store: FileStore, buckets: BucketFiles, quota: StorageQuota, settings: FileSettings
    ) -> None:
        self._store = store
        self._buckets = buckets
        self._quota = quota
        self._settings = settings
        self.deleted: Callable[[str], Awaitable[None]] = ignore_deletion
        """Called with the id of each file that a caller deletes."""

    def routes(self, callers: CallerAuthenticator) -> list[Route]:
        return [
            route("POST", "/v1/files", self.upload, callers),
            route("GET", "/v1/files", self.list, callers),
            route("GET", "/v1/files/{file_id}", self.get, callers),
            route("GET", "/v1/files/{file_id}/content", self.content, callers),
            route("DELETE", "/v1/files/{file_id}", self.delete, callers),
        ]

    async def upload(self, request: ApiRequest) -> dict[str, object]:
        project_id = request.project(f"{PERMISSION}.create")
        headers = request.http.headers
        boundary = multipart_boundary(headers.get("content-type", ""))
        most = self._settings.max_file_bytes
        if (
            headers.get("content-length", "").isdecimal()
            and int(headers["content-length"]) > most + MAX_OVERHEAD_BYTES
        ):
            raise too_large(most)
        with ExitStack() as stack:
            try:
                draft = self._store.draft(project_id, quota=self._quota)
                await asyncio.to_thread(stack.enter_context, draft)
                form = await receive_upload(request.http.stream(), boundary, draft, most)
                purpose, draft.expires_seconds = _fields(form.fields)
                kept = await self._keep(draft, form.file_name or "file", purpose, project_id)
            except OSError as error:
                raise disk_error(error) from error
        return file_as_openai(kept)

    async def _keep(self, draft: Draft, name: str, purpose: str, project_id: str) -> StoredFile:
        bucket = self._buckets.bucket_of(project_id, purpose)
        if bucket is None:
            return await asyncio.to_thread(draft.keep, name, purpose)
        return await self._buckets.keep(draft, name, purpose, bucket)

    async def list(self, request: ApiRequest) -> dict[str, object]:
        project_id = request.project(f"{PERMISSION}.list")
        query = request.http.query_params
        purpose = query.get("purpose", "")
        if purpose and purpose not in PURPOSES:
            raise bad_request(
                f"Unknown purpose {purpose!r}. Purposes are {', '.join(PURPOSES)}.", param="purpose"
            )
        page = read_page(query, limit=10_000, most=10_000)
        files, has_more = await asyncio.to_thread(self._store.page, project_id, page, purpose)
        return list_response([file_as_openai(file) for file in files], has_more=has_more)

    async def get(self, request: ApiRequest) -> dict[str, object]:
        return file_as_openai(await self._file(request, "get"))

    async def content(self, request: ApiRequest) -> Response:
        file = await self._file(request, "get")
        if file.bucket_id:
            return await self._object_content(file, request.http.headers.get("range", ""))
        path = self._store.location(file)
        if not await asyncio.to_thread(path.exists):
            raise _file_not_found(file.id)
        return FileResponse(path, media_type="application/octet-stream", filename=file.name)

    async def _object_content(self, file: StoredFile, byte_range: str) -> Response:
        found = await self._buckets.read(file, byte_range)
        headers = {
            "Content-Length": str(found.size),
            "Content-Disposition": f"attachment; filename*=utf-8''{quote(file.name, safe='')}",
            "Accept-Ranges": "bytes",
        }
        if found.content_range:
            headers["Content-Range"] = found.content_range
        status = 206 if found.content_range else 200
        return StreamingResponse(found.chunks, status, headers, "application/octet-stream")

    async def delete(self, request: ApiRequest) -> dict[str, object]:
        file = await self._file(request, "delete")
        if file.bucket_id:
            await self._buckets.delete(file)
        if not await asyncio.to_thread(self._store.delete, file):
            raise _file_not_found(file.id)
        await self.deleted(file.id)
        return {"id": file.id, "object": "file", "deleted": True}

    async def _file(self, request: ApiRequest, verb: str) -> StoredFile:
        file_id = request.http.path_params["file_id"]
        file = await asyncio.to_thread(self._store.find, file_id)
        if file is None or not request.sees(f"{PERMISSION}.{verb}", file.project_id):
            raise _file_not_found(file_id)
        return file


def _fields(fields: dict[str, str]) -> tuple[str, int]:
    """Return the purpose, and for how many seconds to keep the file (0: until it is deleted)."""
    purpose = fields.get("purpose", "")
    if purpose not in UPLOAD_PURPOSES:
        raise bad_request(
            f"Invalid purpose {purpose!r}. Use one of {', '.join(UPLOAD_PURPOSES)}.", param="purpose"
        )
    given = {name: fields[f"expires_after[{name}]"] for name in _EXPIRY if f"expires_after[{name}]" in fields}
    known = {"purpose", *(f"expires_after[{name}]" for name in _EXPIRY)}
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise bad_request(f"Unknown field {unknown!r}. Remove it.", param=unknown, code="unknown_parameter")
    seconds = given.get("seconds", "")
    number = int(seconds[:12]) if seconds.isascii() and seconds.isdigit() else None
    return purpose, expiry({**given, "seconds": number} if given else None, "expires_after")


def _file_not_found(file_id: str) -> OpenAiError:
    return OpenAiError(
        404,
        f"The file {file_id!r} does not exist or you do not have access to it.",
        code="file_not_found",
        param="id",
    )


def file_as_openai(file: StoredFile) -> dict[str, object]:
    """`location` is ours: where the bytes are, of a file in a bucket."""
    location = {"location": f"s3://{file.bucket}/{file.key}"} if file.bucket_id else {}
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at or None,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
        "sha256": file.sha256,
        **location,
    }
