"""Reads a form with one file as it comes in and writes the file to disk; never the whole in memory.

It stops at the limit, and leaves nothing behind when the upload breaks off.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from neocloud.gateway.errors import OpenAiError, bad_request
from neocloud.gateway.objects.file_store import Draft
from neocloud.gateway.objects.room import disk_full

WRITTEN_BYTES = 1 << 20
FIELD_BYTES = 64 << 10
MAX_FIELDS = 8
"""Form fields beside the file; OpenAI's clients send one or two."""
MAX_OVERHEAD_BYTES = 128 << 10
"""Bytes of an upload beside its file: fields, part headers, boundaries, preamble and epilogue."""


@dataclass
class Form:
    """What came: the name of the file, and the fields beside it."""

    file_name: str | None = None
    fields: dict[str, str] = field(default_factory=dict)


def boundary_of(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise bad_request(
            "Upload the file as multipart/form-data with the fields `file` and `purpose`, for example with"
            " `curl -F purpose=batch -F file=@requests.jsonl`."
        )
    return boundary


class _Parts:
    """What the parser calls; gathers the file's bytes until they are taken away."""

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


async def receive(chunks: AsyncIterator[bytes], boundary: bytes, draft: Draft, max_bytes: int) -> Form:
    """Writes the file into the draft. Raises OpenAiError, also when the disk is full."""
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
            await _write(draft, parts)
    if not parts.is_complete:
        raise bad_request("The upload was interrupted; nothing was stored. Send it again.")
    await _write(draft, parts)
    if parts.form.file_name is None:
        raise bad_request("The upload has no field `file`.", param="file")
    return parts.form


async def _write(draft: Draft, parts: _Parts) -> None:
    taken, parts.file_bytes = bytes(parts.file_bytes), bytearray()
    try:
        await asyncio.to_thread(draft.write, taken)
    except OSError as error:
        raise disk_trouble(error) from error


def too_large(max_bytes: int) -> OpenAiError:
    return OpenAiError(
        413,
        f"The file is larger than the limit of {max_bytes} bytes. Split it, or ask your administrator to"
        " raise the limit.",
        code="file_too_large",
        param="file",
    )


def disk_trouble(error: OSError) -> OpenAiError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    return disk_full()
