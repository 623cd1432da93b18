"""Run commands in containers, and decode the stream format that their logs have too.

Podman switches the HTTP connection to a raw one for commands, which httpx does not support, so the few lines
of HTTP are written here. A command that takes too long or prints too much is killed with all its children.
The stream has 8-byte headers (1 is stdout, 2 is stderr) before each frame. Output of tenants' programs passes
through the decoder, so its time is linear in the length of the output and its memory is bounded.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Sequence

import psutil

from neocloud.engines.base import (
    MAX_LINE_BYTES,
    CommandInterrupted,
    EngineError,
    EngineUnavailable,
    ExecResult,
    OutputTooLarge,
)
from neocloud.engines.podman.libpod import API, Libpod, NotFound

_CHUNK = 256 * 1024
STDOUT = 1
STDERR = 2
_HEADER = struct.Struct(">BxxxI")
_EXIT_CHECKS = 80
"""Podman may be slow to record an exit code on a busy machine."""
_EXIT_PAUSE_SECONDS = 0.1
_PODMAN_ENDED = "Podman ended while a command ran; try again."
_NO_EXIT_CODE = "A command ended, but Podman did not record its exit code; try again."


class _TooMuch(Exception):
    """The command printed more than is accepted."""


class _NotStarted(EngineError):
    """Podman refused to start the command."""


async def execute(
    libpod: Libpod,
    container: str,
    command: Sequence[str],
    stdin: bytes,
    timeout_seconds: float,
    max_output_bytes: int,
) -> ExecResult:
    """Run a command in a container.

    Raises CommandInterrupted if the container ends or the time is up, OutputTooLarge for too much output, and
    other EngineErrors if the command was not started.
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
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, str(libpod.socket))
        except OSError as error:
            raise EngineUnavailable(f"Podman does not answer on {libpod.socket}.") from error
        try:
            return await _result(
                libpod, execution, command[0], connection, stdin, timeout_seconds, max_output_bytes
            )
        except (CommandInterrupted, _NotStarted):
            raise
        except EngineError as error:
            raise CommandInterrupted(str(error)) from error


async def _result(
    libpod: Libpod,
    execution: str,
    program: str,
    connection: socket.socket,
    stdin: bytes,
    timeout_seconds: float,
    max_output_bytes: int,
) -> ExecResult:
    try:
        async with asyncio.timeout(timeout_seconds):
            output = await _attached(connection, execution, stdin, max_output_bytes)
    except TimeoutError as error:
        await _kill(libpod, execution)
        raise CommandInterrupted(
            f"{program} did not finish within {timeout_seconds:g} s and was killed."
        ) from error
    except _TooMuch as error:
        await _kill(libpod, execution)
        raise OutputTooLarge(program, max_output_bytes) from error
    try:
        code = await _exit_code(libpod, execution)
    except NotFound as error:
        raise CommandInterrupted(f"The container ended while {program} ran in it.") from error
    return ExecResult(code, output[STDOUT], output[STDERR])


async def _exit_code(libpod: Libpod, execution: str) -> int:
    """Return the exit code of a command whose output has ended; Podman may record it a moment later."""
    for _ in range(_EXIT_CHECKS):
        result = await libpod.get(f"/exec/{execution}/json")
        if not result["Running"]:
            return result["ExitCode"]
        await asyncio.sleep(_EXIT_PAUSE_SECONDS)
    raise CommandInterrupted(_NO_EXIT_CODE)


async def _attached(
    connection: socket.socket, execution: str, stdin: bytes, max_output_bytes: int
) -> dict[int, bytes]:
    """Start the command and return its output.

    Podman closes the connection when the command ends, even if it has not read all of stdin. That is the end,
    and not a failure, so this uses the socket: asyncio's streams drop what they have received. Podman itself
    may lose output of such a command, and prints a line about its own sockets to stderr.
    """
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    decoder, left = FrameDecoder(), max_output_bytes
    try:
        await asyncio.get_running_loop().sock_sendall(connection, _start_request(execution))
        data = await _check_answer(connection)
        feeding = asyncio.create_task(_feed(connection, stdin))
        try:
            while data or (data := await _received(connection, may_be_reset=bool(stdin))):
                for stream, piece in decoder.feed(data):
                    left -= len(piece)
                    if left < 0:
                        raise _TooMuch
                    output[stream] += piece
                data = b""
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])  # it waits for the socket, which is closed next
    except ConnectionError as error:
        raise CommandInterrupted(_PODMAN_ENDED) from error
    return {stream: bytes(collected) for stream, collected in output.items()}


async def _received(connection: socket.socket, *, may_be_reset: bool) -> bytes:
    """Return what has arrived; nothing at the end."""
    try:
        return await asyncio.get_running_loop().sock_recv(connection, _CHUNK)
    except ConnectionResetError:
        if not may_be_reset:
            raise
        return b""


def _start_request(execution: str) -> bytes:
    body = json.dumps({"Detach": False, "Tty": False})
    return (
        f"POST {API}/exec/{execution}/start HTTP/1.1\r\nHost: podman\r\n"
        "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def _check_answer(connection: socket.socket) -> bytes:
    """Return what has arrived after the head of Podman's answer. Raises _NotStarted for a refusal."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = await _received(connection, may_be_reset=False)
        if not data:
            raise ConnectionResetError("the connection ended before an answer")
        answer += data
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status not in (101, 200):
        text = (rest or await _received(connection, may_be_reset=False)).decode(errors="replace")
        raise _NotStarted(f"The command could not be started: {text.strip()}")
    return rest


async def _feed(connection: socket.socket, stdin: bytes) -> None:
    """Send stdin and close it; a command need not read it all."""
    if stdin:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(connection, stdin)
            connection.shutdown(socket.SHUT_WR)


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
