# pyright: strict
"""Run commands in containers, and decode the stream format of exec and logs.

Podman switches the HTTP connection to a raw one for this, which httpx does not support, so the few lines of
HTTP are written here. A command that takes too long or prints too much is killed with all its children. The
stream has 8-byte headers (1 is stdout, 2 is stderr) before each frame. Output of tenants' programs passes
through the decoder, so its time is linear in the length of the output and its memory is bounded.
"""

import asyncio
import contextlib
import json
import struct
from collections.abc import Iterator, Sequence

import psutil

from neocloud.engines.base import MAX_LINE_BYTES, EngineError, EngineUnavailable, ExecResult, OutputTooLarge
from neocloud.engines.podman.libpod import API, Libpod, NotFound

_CHUNK = 256 * 1024
STDOUT = 1
STDERR = 2
_HEADER = struct.Struct(">BxxxI")


class _TooMuch(Exception):
    """The command printed more than is accepted."""


async def execute(
    libpod: Libpod,
    container: str,
    command: Sequence[str],
    stdin: bytes,
    timeout_seconds: float,
    max_output_bytes: int,
) -> ExecResult:
    """Run a command in a container.

    Raises EngineError if the container does not run or the time is up, OutputTooLarge for too much output.
    """
    if not command:
        raise EngineError("There is no command to run.")
    body = {
        "Cmd": list(command),
        "AttachStdin": bool(stdin),
        "AttachStdout": True,
        "AttachStderr": True,
    }
    execution = (await libpod.post(f"/containers/{container}/exec", body))["Id"]
    try:
        async with asyncio.timeout(timeout_seconds):
            output = await _attached(libpod, execution, stdin, max_output_bytes)
    except TimeoutError as error:
        await _kill(libpod, execution)
        raise EngineError(
            f"{command[0]} did not finish within {timeout_seconds:g} s and was killed."
        ) from error
    except _TooMuch as error:
        await _kill(libpod, execution)
        raise OutputTooLarge(command[0], max_output_bytes) from error
    try:
        result = await libpod.get(f"/exec/{execution}/json")
    except NotFound as error:
        raise EngineError(f"The container ended while {command[0]} ran in it.") from error
    return ExecResult(result["ExitCode"], output[STDOUT], output[STDERR])


async def _attached(libpod: Libpod, execution: str, stdin: bytes, max_output_bytes: int) -> dict[int, bytes]:
    try:
        reader, writer = await asyncio.open_unix_connection(str(libpod.socket), limit=_CHUNK)
    except OSError as error:
        raise EngineUnavailable(f"Podman does not answer on {libpod.socket}.") from error
    try:
        writer.write(_start_request(execution))
        await _check_answer(reader)
        feeding = asyncio.create_task(_feed(writer, stdin))
        output = {STDOUT: bytearray(), STDERR: bytearray()}
        decoder, left = FrameDecoder(), max_output_bytes
        try:
            while data := await reader.read(_CHUNK):
                for stream, piece in decoder.feed(data):
                    left -= len(piece)
                    if left < 0:
                        raise _TooMuch
                    output[stream] += piece
        finally:
            feeding.cancel()
        return {stream: bytes(collected) for stream, collected in output.items()}
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise EngineUnavailable("Podman ended while a command ran; try again.") from error
    finally:
        writer.close()


def _start_request(execution: str) -> bytes:
    body = json.dumps({"Detach": False, "Tty": False})
    return (
        f"POST {API}/exec/{execution}/start HTTP/1.1\r\nHost: podman\r\n"
        "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def _check_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status = int(head.split(" ", 2)[1])
    if status not in (101, 200):
        text = (await reader.read(_CHUNK)).decode(errors="replace")
        raise EngineError(f"The command could not be started: {text.strip()}")


async def _feed(writer: asyncio.StreamWriter, stdin: bytes) -> None:
    """Send stdin and close it; a command need not read it all."""
    if stdin:
        with contextlib.suppress(ConnectionError):
            writer.write(stdin)
            await writer.drain()
            writer.write_eof()


async def _kill(libpod: Libpod, execution: str) -> None:
    """Kill the process, whose id on this machine Podman knows, and its children."""
    process_id = (await libpod.get(f"/exec/{execution}/json")).get("Pid")
    if not process_id:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process_id)
        for child in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


class FrameDecoder:
    """Decodes frames from bytes as they arrive; a long frame is yielded in several pieces."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                yield self._stream, piece
                continue
            head = data[at : at + _HEADER.size - len(self._header)]
            at += len(head)
            self._header += head
            if len(self._header) == _HEADER.size:
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header.clear()


class LineJoiner:
    """Joins pieces of text to complete lines, for each stream; splits lines over MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._open: dict[int, bytearray] = {}

    def feed(self, stream: int, piece: bytes) -> Iterator[str]:
        line = self._open.setdefault(stream, bytearray())
        at = 0
        while at < len(piece):
            limit = at + MAX_LINE_BYTES - len(line)
            end = piece.find(b"\n", at, limit + 1)
            if end >= 0:
                line += piece[at:end]
                at = end + 1
            else:
                line += piece[at:limit]
                at = min(limit, len(piece))
                if len(line) < MAX_LINE_BYTES or at == len(piece):
                    continue
            yield line.decode(errors="replace")
            line.clear()

    def rest(self) -> Iterator[str]:
        for line in self._open.values():
            if line:
                yield line.decode(errors="replace")
