"""The gateway's side of the index process: start it, send calls, take answers in any order."""

import asyncio
import itertools
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from neocloud.model_gateway.retrieval.index_calls import (
    HEAD_BYTES,
    Call,
    IndexAnswer,
    IndexRefusal,
    IndexUnavailable,
    Request,
    frame,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
MOST_WAITING = 256
"""Calls that are in progress; more are refused."""
STOP_SECONDS = 5.0


class IndexProcess:
    """Starts the process with the first call, and again after it died. Belongs to one event loop."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[IndexAnswer]] = {}
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()

    async def ask(self, call: Call, kind: type[T]) -> T:
        """See `Index`."""
        if len(self._waiting) >= MOST_WAITING:
            raise IndexUnavailable("too many calls are in progress")
        process = await self._running()
        number = next(self._numbers)
        future: asyncio.Future[IndexAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            assert process.stdin is not None
            process.stdin.write(frame(Request(number, call)))
            await process.stdin.drain()
            answer = await future
        except (ConnectionError, RuntimeError) as error:
            raise IndexUnavailable("the index process has ended") from error
        finally:
            self._waiting.pop(number, None)
        if answer.code == "crashed":
            raise IndexUnavailable(answer.message)
        if answer.code:
            raise IndexRefusal(answer.code, answer.message)
        return msgspec.convert(answer.value, kind)

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if (
                self._process is None
                or self._process.returncode is not None
                or self._reading is None
                or self._reading.done()
            ):
                await self._end()
                pipe = asyncio.subprocess.PIPE
                command = (
                    sys.executable,
                    "-m",
                    "neocloud.model_gateway.retrieval.index_process",
                    str(self._home),
                )
                try:
                    self._process = await asyncio.create_subprocess_exec(
                        *command,
                        stdin=pipe,
                        stdout=pipe,
                        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                    )
                except OSError as error:
                    raise IndexUnavailable(f"the index process cannot be started: {error}") from error
                self._reading = asyncio.create_task(self._read(self._process))
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        decoder = msgspec.msgpack.Decoder(IndexAnswer)
        try:
            while True:
                head = await process.stdout.readexactly(HEAD_BYTES)
                answer = decoder.decode(await process.stdout.readexactly(int.from_bytes(head, "big")))
                future = self._waiting.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer)
        except asyncio.IncompleteReadError:
            code = await process.wait()
            logger.warning("The index process ended with %d; it is started again with the next call", code)
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the index process has ended"))

    async def stop(self) -> None:
        async with self._starting:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()  # it ends when this does
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
            return
        process.kill()
        await process.wait()
