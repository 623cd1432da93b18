"""Process the lines of one batch: send each until it is answered, and write its result.

While a model may have no replica, only one line is sent: the first one, and again after each 503. Results are
in `<home>/gateway/batches/<id>/results`, one record a line: after a crash, complete records count and an
incomplete one at the end is removed.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from neocloud.core.clock import Clock
from neocloud.core.contract.json_codec import Json
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.api.request import RequestContext, read_request
from neocloud.model_gateway.authentication import INVOKE, Authenticator, Caller
from neocloud.model_gateway.openai_files.batches import (
    Batch,
    InputLines,
    Line,
    Record,
    ResultsFile,
    batch_caller,
)
from neocloud.model_gateway.openai_files.handlers import CallerAuthenticator
from neocloud.model_gateway.routing.proxy import Proxy
from neocloud.model_gateway.routing.relay import BufferedResponse, RequestStopped
from neocloud.model_gateway.routing.traffic import Traffic


@dataclass(frozen=True)
class BatchResponse:
    """The response to one request: of a model server, or an error of the gateway in the same format."""

    status: int
    body: Mapping[str, Json]
    retry_after: float | None = None
    """Seconds; None where the response has no Retry-After."""


class BatchClient(Protocol):
    """Sends the requests of a batch."""

    async def send(
        self,
        caller: Caller,
        project_id: str,
        path: str,
        body: Mapping[str, Json],
        *,
        request_id: str,
        wait_seconds: float,
    ) -> BatchResponse:
        """Send a request like a live one: with checks, load balancing and retries, recorded as
        `is_batch`.

        Waits at most `wait_seconds` for a replica to start; the response is then the 503. Raises
        nothing but CancelledError; cancelling stops the model server.
        """
        ...

    def live_requests(self) -> int:
        """Return the number of requests in progress that are not of batches. Batches use what they
        leave free."""
        ...


class ProxyBatchClient:
    def __init__(
        self, proxy: Proxy, authenticator: Authenticator, traffic: Traffic, media_domains: Set[str]
    ) -> None:
        self._proxy = proxy
        self._authenticator = authenticator
        self._media_domains = media_domains
        self._traffic = traffic

    async def send(
        self,
        caller: Caller,
        project_id: str,
        path: str,
        body: Mapping[str, Json],
        *,
        request_id: str,
        wait_seconds: float,
    ) -> BatchResponse:
        """See `BatchClient`."""
        writer = BufferedResponse()
        try:
            context = RequestContext(
                request_id=request_id,
                caller=caller,
                project_id=project_id,
                request=read_request(path, dict(body), self._media_domains),
                wait_seconds=wait_seconds,
                is_batch=True,
                refresh_caller=lambda: self._authenticator.refresh(caller),
            )
            await self._proxy.answer(self._proxy.new_relay(context, writer))
        except OpenAiError as error:
            retry_after = error.headers.get("Retry-After")
            return BatchResponse(error.status, error.body(), float(retry_after) if retry_after else None)
        except RequestStopped as stopped:
            error = OpenAiError(502, f"The request was stopped: {stopped}.", type="server_error")
            return BatchResponse(error.status, error.body())
        return BatchResponse(writer.status, orjson.loads(writer.data))

    def live_requests(self) -> int:
        return self._traffic.live_requests()


CHECK_SECONDS = 0.1
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
    async def slot(self) -> AsyncGenerator[None]:
        async with self._turn:
            while self._taken >= max(1, self._most - self._live()):
                self._freed.clear()
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._freed.wait()
                except TimeoutError:
                    continue
            self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._freed.set()


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
        slots: BatchSlots,
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
        self._slots = slots
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


def _first(error: BaseException) -> BaseException:
    """Return the first error that is not a group, of a group of groups."""
    match error:
        case BaseExceptionGroup(exceptions=(BaseException() as first, *_)):
            return _first(first)
        case _:
            return error
