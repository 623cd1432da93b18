"""Process the lines of one batch: send each until it is answered, and write its result.

While a model may have no replica, only one line is sent: the first one, and again after each 503. Results are
in `<home>/gateway/batches/<id>/results`, one record a line: after a crash, complete records count and an
incomplete one at the end is removed.
"""

import asyncio
import errno
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.core.clock import Clock
from neocloud.gateway.api import json_input
from neocloud.gateway.api.errors import OpenAiError
from neocloud.gateway.auth.caller import INVOKE
from neocloud.gateway.openai_files.batch_client import BatchClient, BatchResponse, CallerAuthenticator
from neocloud.gateway.openai_files.batches import Batch, batch_caller

LOOK_AGAIN_SECONDS = 0.1
"""Interval of checks whether live requests have become fewer."""


class BatchSlots:
    def __init__(self, most: int, live: Callable[[], int]) -> None:
        self._most = most
        self._live = live
        self._taken = 0
        self._turn = asyncio.Lock()
        """First come, first served."""
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self._turn:
            while self._taken >= max(1, self._most - self._live()):
                self._freed.clear()
                try:
                    await asyncio.wait_for(self._freed.wait(), LOOK_AGAIN_SECONDS)
                except TimeoutError:
                    continue
            self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._freed.set()


BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    """The result of a line. `number` is that of the line in the input; failed records go to the error
    file."""

    number: int
    is_ok: bool
    output: dict[str, Any]

    def to_bytes(self) -> bytes:
        mark = "+" if self.is_ok else "-"
        return f"{self.number}\t{mark}\t{json.dumps(self.output, ensure_ascii=False)}\n".encode(
            "utf-8", "surrogatepass"
        )


class ResultsFile:
    def __init__(self, folder: Path, min_free_bytes: int = 0) -> None:
        """`append` raises OSError (ENOSPC) before less than `min_free_bytes` of the disk are free."""
        self._path = folder / "results"
        self._min_free_bytes = min_free_bytes
        self._answered = bytearray()
        self.completed = self.failed = 0
        whole = 0
        if self._path.exists():
            with self._path.open("rb") as file:
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    whole += len(raw)
                    number, mark, _ = raw.split(b"\t", 2)
                    self._count(int(number), mark == b"+")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, whole)
        self._end = whole

    def append(self, records: Iterable[Record]) -> None:
        """Append all records, or none when the disk is full."""
        records = list(records)
        data = b"".join(record.to_bytes() for record in records)
        written = 0
        if data and shutil.disk_usage(self._path.parent).free - len(data) < self._min_free_bytes:
            raise OSError(errno.ENOSPC, "the disk has reached the space that is to stay free")
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._end + written)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += written
        for record in records:
            self._count(record.number, record.is_ok)

    def has(self, number: int) -> bool:
        """Return whether the line of this number has a result."""
        return number < len(self._answered) and self._answered[number] == 1

    @property
    def bytes(self) -> int:
        return self._end

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def _count(self, number: int, is_ok: bool) -> None:
        if number >= len(self._answered):
            self._answered.extend(bytes(number + 1024 - len(self._answered)))
        self._answered[number] = 1
        self.completed += is_ok
        self.failed += not is_ok


def split_results(folder: Path) -> tuple[Path, Path]:
    """Write the output and the error file from the results."""
    output, errors = folder / "output.jsonl", folder / "errors.jsonl"
    with (folder / "results").open("rb") as results, output.open("wb") as good, errors.open("wb") as bad:
        for raw in results:
            _, mark, line = raw.split(b"\t", 2)
            (good if mark == b"+" else bad).write(line)
    return output, errors


@dataclass(frozen=True)
class Line:
    number: int
    custom_id: str
    body: dict[str, Any]


class InputLines:
    """The lines of an input file without a result, read in blocks."""

    def __init__(self, path: Path, results: ResultsFile) -> None:
        self._path = path
        self._results = results
        self._offset = 0
        self._number = 0

    def read_block(self) -> list[Line]:
        """Return the next lines; empty at the end."""
        lines: list[Line] = []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while not lines:
                block = file.readlines(BLOCK_BYTES)
                if not block:
                    break
                lines = list(self._of(block))
            self._offset = file.tell()
        return lines

    def _of(self, block: list[bytes]) -> Iterator[Line]:
        for raw in block:
            self._number += 1
            if raw.strip() and not self._results.has(self._number):
                value = json_input.loads(raw.removeprefix(BOM) if self._number == 1 else raw)
                yield Line(self._number, value["custom_id"], value["body"])


START_WAIT_SECONDS = 60.0
PAUSE_SECONDS = (1.0, 2.0, 5.0, 10.0)
LONGEST_PAUSE_SECONDS = 60.0
ATTEMPTS = 3
"""Attempts for responses that may mean that the line itself crashes the model server."""
SAVE_SECONDS = 1.0


class AccessEnded(Exception):
    """The caller that created the batch has lost access."""


Save = Callable[[ResultsFile], Awaitable[None]]
"""Saves the progress in the row of the batch."""


class BatchRun:
    def __init__(
        self,
        batch: Batch,
        folder: Path,
        callers: CallerAuthenticator,
        client: BatchClient,
        places: BatchSlots,
        clock: Clock,
        workers: int,
        save: Save,
        min_free_bytes: int,
    ) -> None:
        self._batch = batch
        self._callers = callers
        self._min_free_bytes = min_free_bytes
        self._caller = batch_caller(batch)
        self._folder = folder
        self._client = client
        self._slots = places
        self._clock = clock
        self._workers = workers
        self._save = save
        self._is_warm = False
        self._probe = asyncio.Lock()
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(maxsize=2 * workers)
        self._records: list[Record] = []
        self._has_records = asyncio.Event()

    async def run(self) -> None:
        """Process all lines. When cancelled, the results so far are kept. Raises OSError, AccessEnded."""
        results = await asyncio.to_thread(ResultsFile, self._folder, self._min_free_bytes)
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    writer = group.create_task(self._write(results))
                    async with asyncio.TaskGroup() as work:
                        work.create_task(self._read(InputLines(self._folder / "input.jsonl", results)))
                        for _ in range(self._workers):
                            work.create_task(self._work())
                    writer.cancel()
            finally:
                records, self._records = self._records, []
                results.append(records)  # also when cancelled, so this must not await
        except ExceptionGroup as group:
            raise _first(group) from group
        finally:
            results.close()
        await self._save(results)

    async def _read(self, lines: InputLines) -> None:
        while block := await asyncio.to_thread(lines.read_block):
            for line in block:
                await self._lines.put(line)
        for _ in range(self._workers):
            await self._lines.put(None)

    async def _work(self) -> None:
        while line := await self._lines.get():
            record = await self._process(line)
            self._records.append(record)  # two statements: the list may have been replaced while waiting
            self._has_records.set()

    async def _write(self, results: ResultsFile) -> None:
        saved = self._clock.monotonic()
        while True:
            await self._has_records.wait()
            self._has_records.clear()
            records, self._records = self._records, []
            writing = asyncio.ensure_future(asyncio.to_thread(results.append, records))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await writing
                raise
            if self._clock.monotonic() - saved >= SAVE_SECONDS:
                saved = self._clock.monotonic()
                await self._save(results)

    async def _process(self, line: Line) -> Record:
        tries = 0
        while True:
            request_id = f"batch_req_{secrets.token_hex(12)}"
            answer = await self._send_or_probe(line, request_id)
            tries += answer.status >= 500 and answer.status != 503
            if not _is_transient(answer) or tries >= ATTEMPTS:
                return _record(line, request_id, answer)
            if answer.status != 503:
                await self._pause(answer, tries)

    async def _send_or_probe(self, line: Line, request_id: str) -> BatchResponse:
        if not self._is_warm:
            async with self._probe:
                if not self._is_warm:
                    answer = await self._send(line, request_id, START_WAIT_SECONDS)
                    if not self._is_warm:
                        await self._pause(answer, 1)  # no other line of this batch is sent meanwhile
                    return answer
        async with self._slots.slot():
            return await self._send(line, request_id, 0.0)

    async def _send(self, line: Line, request_id: str, wait_seconds: float) -> BatchResponse:
        try:
            caller = await self._callers.refresh(self._caller)
        except OpenAiError as error:
            if error.status == 401:
                raise AccessEnded from error
            answer = BatchResponse(503, error.body())  # access cannot be checked now
        else:
            if not caller.may(INVOKE, self._batch.project_id):
                raise AccessEnded
            answer = await self._client.send(
                *(caller, self._batch.project_id, self._batch.endpoint, line.body),
                request_id=request_id,
                wait_seconds=wait_seconds,
            )
        self._is_warm = answer.status != 503
        return answer

    async def _pause(self, answer: BatchResponse, tries: int) -> None:
        usual = PAUSE_SECONDS[min(tries, len(PAUSE_SECONDS)) - 1]
        wait_seconds = usual if answer.retry_after is None else answer.retry_after
        await self._clock.sleep(min(max(wait_seconds, 0.1), LONGEST_PAUSE_SECONDS))


def _is_transient(answer: BatchResponse) -> bool:
    """Return whether the line may get another response later."""
    if answer.status == 429:
        error = answer.body.get("error")
        return not isinstance(error, dict) or error.get("code") != "insufficient_quota"
    return answer.status in (500, 502, 503, 504)


def _record(line: Line, request_id: str, answer: BatchResponse) -> Record:
    response = {"status_code": answer.status, "request_id": request_id, "body": answer.body}
    output = {"id": request_id, "custom_id": line.custom_id, "response": response, "error": None}
    return Record(line.number, answer.status == 200, output)


def unanswered(line: Line, code: str, message: str) -> Record:
    error = {"code": code, "message": message}
    request_id = f"batch_req_{secrets.token_hex(12)}"
    output = {"id": request_id, "custom_id": line.custom_id, "response": None, "error": error}
    return Record(line.number, False, output)


def _first(group: BaseExceptionGroup) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
