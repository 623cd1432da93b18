"""Run unfinished batches beside live traffic. State is in rows and folders, so a restart resumes them.

The folder `<home>/gateway/batches/<id>/` of a batch holds its input, as it was uploaded, and the results. It
is removed at the end of the batch. For a project with a file bucket the results go to the bucket.
"""

import asyncio
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.openai_files.batch_run import (
    AccessEnded,
    BatchClient,
    BatchRun,
    BatchSlots,
    unanswered,
)
from neocloud.model_gateway.openai_files.batches import (
    Batch,
    BatchRows,
    InputLines,
    ResultsFile,
    split_results,
)
from neocloud.model_gateway.openai_files.bucket_files import BucketError, BucketFiles
from neocloud.model_gateway.openai_files.files import FileStore, StoredFile, new_file_id
from neocloud.model_gateway.openai_files.handlers import CallerAuthenticator
from neocloud.model_gateway.openai_files.validation import ValidationCrashed, validate_file
from neocloud.model_gateway.settings import FileSettings

logger = logging.getLogger(__name__)
RETRY_SECONDS = 30.0
BUCKET_SECONDS = 600
"""For so long a batch waits for a bucket that cannot be used at the moment."""
MAX_CHECKS = 3
"""A file that crashes its validation so often fails the batch."""


OUTPUT = "batch_output"
"""The purpose of files of results."""


@dataclass(frozen=True)
class _Split:
    """Results as files: path, id and name of each that is not empty."""

    files: Sequence[tuple[Path, str, str]]
    completed: int
    failed: int
    is_expired: bool


def _noting(error: BucketError, name: str) -> Callable[[Batch], None]:
    """Return a change that notes why a file of results is not in the bucket."""
    message = f"{name} is kept by the gateway and is not in the bucket. {error.message}"
    noted = {"line": None, "code": "output_not_in_bucket", "message": message, "param": None}

    def note(batch: Batch) -> None:
        if noted not in batch.errors:
            batch.errors = [*batch.errors, noted]

    return note


class BatchRunner:
    def __init__(
        self,
        home: Path,
        rows: BatchRows,
        files: FileStore,
        buckets: BucketFiles,
        callers: CallerAuthenticator,
        client: BatchClient,
        settings: FileSettings,
        clock: Clock,
    ) -> None:
        self._root = home / "gateway" / "batches"
        self._rows = rows
        self._files = files
        self._buckets = buckets
        self._callers = callers
        self._client = client
        self._settings = settings
        self._clock = clock
        self._slots = BatchSlots(settings.batch_concurrency, client.live_requests)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        batches = await asyncio.to_thread(self._rows.open)
        await asyncio.to_thread(self._sweep, {batch.id for batch in batches})
        for batch in batches:
            self.begin(batch.id)

    async def stop(self) -> None:
        """Stop running batches. Results are kept; lines in progress are sent again after the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def prepare_folder(self, batch_id: str, file: StoredFile) -> None:
        """Link the input, so that deleting the file later has no effect. An input in a bucket is copied
        once the batch runs. Blocks."""
        folder = self._root / batch_id
        folder.mkdir(mode=0o700, parents=True)
        if not file.bucket_id:
            os.link(self._files.location(file), folder / "input.jsonl")

    def remove_folder(self, batch_id: str) -> None:
        """Remove the folder of a batch. Blocks."""
        shutil.rmtree(self._root / batch_id, ignore_errors=True)

    def begin(self, batch_id: str) -> None:
        self._cancelled[batch_id] = asyncio.Event()
        task = self._tasks[batch_id] = asyncio.create_task(self._supervise(batch_id), name=batch_id)
        task.add_done_callback(
            lambda _: (self._tasks.pop(batch_id, None), self._cancelled.pop(batch_id, None))
        )

    def cancel(self, batch_id: str) -> None:
        """Cancel a batch soon; its row is "cancelling" already."""
        if event := self._cancelled.get(batch_id):
            event.set()

    async def _supervise(self, batch_id: str) -> None:
        """Run a batch to its end, with retries after errors of the disk."""
        checks = 0
        while True:
            try:
                await self._advance(batch_id)
                return
            except (OSError, sqlite3.Error, ValidationCrashed, BucketError) as error:
                checks += isinstance(error, ValidationCrashed)
                if checks == MAX_CHECKS:
                    logger.error("batch %s: %s", batch_id, error)
                    await asyncio.to_thread(self._fail, batch_id, "its input file could not be validated")
                    return
                logger.error("batch %s: %s; trying again in %.0f s", batch_id, error, RETRY_SECONDS)
            except Exception as error:
                logger.exception(
                    "batch %s", batch_id
                )  # a worker loop's border: one batch must not end silently
                await asyncio.to_thread(self._fail, batch_id, type(error).__name__)
                return
            await self._clock.sleep(RETRY_SECONDS)

    async def _advance(self, batch_id: str) -> None:
        batch = await asyncio.to_thread(self._rows.find, batch_id)
        if batch is None:
            return
        folder = self._root / batch_id
        if batch.state == "validating":
            batch = await self._fetch(batch, folder / "input.jsonl")
        if batch.state == "validating":
            batch = await self._validate(batch, folder / "input.jsonl")
        if batch.state == "in_progress":
            try:
                await self._run(batch, folder)
            except AccessEnded:
                await asyncio.to_thread(self._rows.change, batch_id, self._end_access)
        if batch.is_open or batch.state == "failed":
            await self._finish(batch_id, folder)

    async def _fetch(self, batch: Batch, path: Path) -> Batch:
        """Copy an input that is in a bucket. The batch fails where that is impossible."""
        if await asyncio.to_thread(path.exists):
            return batch
        file = await asyncio.to_thread(self._files.find, batch.input_file_id)
        try:
            if file is None:
                message = "The input file was deleted before the batch had read it from its bucket."
                raise OpenAiError(404, message, code="file_not_found")
            await self._buckets.fetch(file, path, self._settings.min_free_bytes)
        except OpenAiError as error:
            if self._may_pass(error, batch):
                raise
            found = {"line": None, "code": error.code, "message": error.message, "param": "input_file_id"}

            def fail(batch: Batch) -> None:
                if batch.state == "validating":
                    batch.errors = [found]
                    batch.enter("failed", self._now())

            return await asyncio.to_thread(self._rows.change, batch.id, fail)
        return batch

    def _may_pass(self, error: OpenAiError, batch: Batch) -> bool:
        """Return whether to try again: for some minutes after the batch entered its state."""
        waited = self._now() - batch.times.get(batch.state, batch.created_at)
        return isinstance(error, BucketError) and error.is_passing and waited < BUCKET_SECONDS

    async def _validate(self, batch: Batch, path: Path) -> Batch:
        result = await validate_file(
            "batch",
            path,
            endpoint=batch.endpoint,
            max_lines=self._settings.max_batch_lines,
            max_line_bytes=self._settings.max_batch_line_bytes,
        )

        def change(batch: Batch) -> None:
            batch.model, batch.total = result.properties.get("model", ""), result.lines
            batch.errors = [error.as_openai() for error in result.errors]
            if batch.state == "validating":
                batch.enter("failed" if result.errors else "in_progress", self._now())

        return await asyncio.to_thread(self._rows.change, batch.id, change)

    async def _run(self, batch: Batch, folder: Path) -> None:
        """Run until all lines are processed, or the batch is cancelled or expires."""

        async def save(results: ResultsFile) -> None:
            def change(batch: Batch) -> None:
                batch.completed, batch.failed = results.completed, results.failed
                batch.result_bytes = results.bytes

            await asyncio.to_thread(self._rows.change, batch.id, change)

        workers = self._settings.batch_concurrency
        run = BatchRun(
            *(batch, folder, self._callers, self._client, self._slots, self._clock, workers, save),
            self._settings.min_free_bytes,
        )
        work = asyncio.create_task(run.run())
        ends = [
            asyncio.create_task(self._cancelled[batch.id].wait()),
            asyncio.create_task(self._clock.sleep(batch.expires_at - self._now())),
        ]
        try:
            await asyncio.wait([work, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, *ends):
                task.cancel()
            await asyncio.wait([work, *ends])
        if not work.cancelled() and (error := work.exception()):
            raise error

    async def _finish(self, batch_id: str, folder: Path) -> None:
        """Create the output files and set the final state. Each step may be repeated."""
        batch = await asyncio.to_thread(self._rows.change, batch_id, self._prepare_files)
        if batch.state != "failed":
            split = await asyncio.to_thread(self._split, batch, folder)
            created = dict[str, str]()
            for path, file_id, name in split.files:
                created[name] = await self._add_output(batch, path, f"{batch.id}_{name}.jsonl", file_id)

            def change(batch: Batch) -> None:
                batch.output_file_id = created.get("output", "")
                batch.error_file_id = created.get("error", "")
                batch.completed, batch.failed = split.completed, split.failed
                finished = "expired" if split.is_expired else "completed"
                batch.enter("cancelled" if batch.state == "cancelling" else finished, self._now())

            await asyncio.to_thread(self._rows.change, batch_id, change)
        await asyncio.to_thread(self.remove_folder, batch_id)

    def _split(self, batch: Batch, folder: Path) -> "_Split":
        is_expired = batch.state == "finalizing" and self._note_expired(batch, folder)
        results = ResultsFile(folder)
        results.close()
        output, errors = split_results(folder)
        names = ((output, batch.output_file_id, "output"), (errors, batch.error_file_id, "error"))
        files = [each for each in names if each[0].stat().st_size]
        return _Split(files, results.completed, results.failed, is_expired)

    async def _add_output(self, batch: Batch, path: Path, name: str, file_id: str) -> str:
        """Add a file of results, to the project's bucket if it has one. Where the bucket does not take it,
        the gateway keeps it in its own folder, and the batch says why: results must not be lost."""
        bucket = self._buckets.bucket_of(batch.project_id, OUTPUT)
        if bucket is not None:
            try:
                return await self._buckets.add(
                    *(batch.project_id, path, OUTPUT, name, file_id, bucket), batch.output_expires_seconds
                )
            except BucketError as error:
                if self._may_pass(error, batch):
                    raise
                await asyncio.to_thread(self._rows.change, batch.id, _noting(error, name))
        return await asyncio.to_thread(
            self._files.add,
            *(batch.project_id, path, OUTPUT, name, file_id, batch.output_expires_seconds),
        )

    def _end_access(self, batch: Batch) -> None:
        """End the batch like a cancelled one, with the results so far."""
        message = (
            "Your access ended while the batch was running: the API key or session that created it was"
            " revoked, or the permission was removed. The output file has the results up to then."
        )
        batch.errors = [{"line": None, "code": "right_ended", "message": message, "param": None}]
        if batch.state == "in_progress":
            batch.enter("cancelling", self._now())

    def _prepare_files(self, batch: Batch) -> None:
        """Save the ids before the files are created, so that no file is created twice."""
        if batch.state == "failed":
            return
        batch.output_file_id = batch.output_file_id or new_file_id()
        batch.error_file_id = batch.error_file_id or new_file_id()
        if batch.state == "in_progress":
            batch.enter("finalizing", self._now())

    def _note_expired(self, batch: Batch, folder: Path) -> bool:
        """Turn lines without a result into errors; return whether there were any."""
        results = ResultsFile(folder)
        try:
            lines = InputLines(folder / "input.jsonl", results)
            was_expired = "finalizing" in batch.times and batch.times["finalizing"] >= batch.expires_at
            message = "This request was not processed before the batch expired."
            while block := lines.read_block():
                was_expired = True
                results.append(unanswered(line, "batch_expired", message) for line in block)
            return was_expired
        finally:
            results.close()

    def _fail(self, batch_id: str, reason: str) -> None:
        def change(batch: Batch) -> None:
            message = (
                f"The batch failed with an internal error ({reason}). Create it again, or contact your"
                " administrator."
            )
            batch.errors = [{"line": None, "code": "internal_error", "message": message, "param": None}]
            batch.enter("failed", self._now())

        self._rows.change(batch_id, change)
        self.remove_folder(batch_id)

    def _sweep(self, open_ids: set[str]) -> None:
        for folder in self._root.glob("*"):
            if folder.name not in open_ids:
                shutil.rmtree(folder, ignore_errors=True)

    def _now(self) -> int:
        return int(self._clock.now().timestamp())
