"""One batch's lines, each sent until it is answered: asks, waits, asks again, writes down.

Nobody asks a model twice at a time that may be cold: the first line goes alone, and again after each 503.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.gateway.callers import INVOKE
from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.objects.batch_places import Places
from neocloud.gateway.objects.batch_results import Line, Lines, Record, Results
from neocloud.gateway.objects.batches import Batch, caller_of
from neocloud.gateway.objects.borders import Answer, Callers, Sender

COLD_WAIT_SECONDS = 60.0
PAUSE_SECONDS = (1.0, 2.0, 5.0, 10.0)
LONGEST_PAUSE_SECONDS = 60.0
ATTEMPTS = 3
"""For answers that may say that the line itself breaks the engine."""
SAVE_SECONDS = 1.0


class RightEnded(Exception):
    """The caller that made the batch has lost the right to send its lines."""


Save = Callable[[Results], Awaitable[None]]
"""Tells the row how far it is."""


class BatchRun:
    def __init__(
        self,
        batch: Batch,
        folder: Path,
        callers: Callers,
        sender: Sender,
        places: Places,
        clock: Clock,
        workers: int,
        save: Save,
        min_free_bytes: int,
    ) -> None:
        self._batch = batch
        self._callers = callers
        self._min_free_bytes = min_free_bytes
        self._caller = caller_of(batch)
        self._folder = folder
        self._sender = sender
        self._places = places
        self._clock = clock
        self._workers = workers
        self._save = save
        self._is_warm = False
        self._probe = asyncio.Lock()
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(maxsize=2 * workers)
        self._records: list[Record] = []
        self._has_records = asyncio.Event()

    async def run(self) -> None:
        """Until every line is answered. Cancelled, it keeps what was answered. Raises OSError, RightEnded."""
        results = await asyncio.to_thread(Results, self._folder, self._min_free_bytes)
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    writer = group.create_task(self._write(results))
                    async with asyncio.TaskGroup() as work:
                        work.create_task(self._read(Lines(self._folder / "input.jsonl", results)))
                        for _ in range(self._workers):
                            work.create_task(self._work())
                    writer.cancel()
            finally:
                records, self._records = self._records, []
                results.append(records)  # also when cancelled, so nothing may be awaited here
        except ExceptionGroup as group:
            raise _first(group) from group
        finally:
            results.close()
        await self._save(results)

    async def _read(self, lines: Lines) -> None:
        while block := await asyncio.to_thread(lines.read_block):
            for line in block:
                await self._lines.put(line)
        for _ in range(self._workers):
            await self._lines.put(None)

    async def _work(self) -> None:
        while line := await self._lines.get():
            record = await self._answered(line)
            self._records.append(record)  # not in one: the list may be another after waiting
            self._has_records.set()

    async def _write(self, results: Results) -> None:
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

    async def _answered(self, line: Line) -> Record:
        tries = 0
        while True:
            request_id = f"batch_req_{secrets.token_hex(12)}"
            answer = await self._ask(line, request_id)
            tries += answer.status >= 500 and answer.status != 503
            if not _is_passing(answer) or tries >= ATTEMPTS:
                return _record(line, request_id, answer)
            if answer.status != 503:
                await self._pause(answer, tries)

    async def _ask(self, line: Line, request_id: str) -> Answer:
        if not self._is_warm:
            async with self._probe:
                if not self._is_warm:
                    answer = await self._send(line, request_id, COLD_WAIT_SECONDS)
                    if not self._is_warm:
                        await self._pause(answer, 1)  # nobody else of this batch asks meanwhile
                    return answer
        async with self._places.place():
            return await self._send(line, request_id, 0.0)

    async def _send(self, line: Line, request_id: str, wait_seconds: float) -> Answer:
        try:
            caller = await self._callers.renewed(self._caller)
        except OpenAiError as error:
            if error.status == 401:
                raise RightEnded from error
            answer = Answer(503, error.body())  # nobody can tell now
        else:
            if not caller.may(INVOKE, self._batch.project_id):
                raise RightEnded
            answer = await self._sender.send(
                *(caller, self._batch.project_id, self._batch.endpoint, line.body),
                request_id=request_id,
                wait_seconds=wait_seconds,
            )
        self._is_warm = answer.status != 503
        return answer

    async def _pause(self, answer: Answer, tries: int) -> None:
        usual = PAUSE_SECONDS[min(tries, len(PAUSE_SECONDS)) - 1]
        asked = usual if answer.retry_after is None else answer.retry_after
        await self._clock.sleep(min(max(asked, 0.1), LONGEST_PAUSE_SECONDS))


def _is_passing(answer: Answer) -> bool:
    """Whether the same line may be answered otherwise later."""
    if answer.status == 429:
        error = answer.body.get("error")
        return not isinstance(error, dict) or error.get("code") != "insufficient_quota"
    return answer.status in (500, 502, 503, 504)


def _record(line: Line, request_id: str, answer: Answer) -> Record:
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
