"""The folder of one job: what the control plane puts there, and what the recipes leave.

A WorkFolder reads files and decides nothing. The job's container writes in the same folder and may run a
tenant's code. So no link is followed, anything but a plain file counts as missing, and the content of each
line is checked before it is used. All calls block while the disk works.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeGuard

from neocloud.core.cleanup import undo_on_error
from neocloud.core.json_values import as_object
from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted.files import Folder, UnsafePath, remove_tree, whole_lines
from neocloud.core.untrusted.trees import copy_tree, stage_file
from neocloud.services.tuning.rules.hyperparameters import DataSize
from neocloud.services.tuning.rules.outcome import LARGEST_NUMBER, Outcome, read_outcome

LOG_CHUNK_BYTES = 256 * 1024
MAX_LINES_BYTES = 16 * 1024**2
"""Bytes of a file of events or metrics that are read."""
MAX_RESULT_BYTES = 64 * 1024**2
"""Largest size of a result file, such as the metrics of all steps."""
LATEST_SECONDS = 4_102_444_800.0
"""The year 2100. A later time was not written by a recipe."""
LARGEST_STEP = 2**31 - 1
"""The largest value that statuses and events can hold."""
MEASURED = {"reward": "reward", "reward_margin": "margin of the preferred answers"}
"""Measurements of the methods beside supervised training that events tell, with their words."""
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,12})")

Row = Mapping[str, object]
"""A JSON object."""


class BadResult(ValueError):
    """The result that a job left is not one that recipes write; the message names the file."""


@dataclass(frozen=True)
class Event:
    id: str
    time: float
    level: str
    message: str
    data: str = ""
    """The JSON object of a metrics event."""


@dataclass(frozen=True)
class Metrics:
    """One line of the metrics: a training step, or a validation after it."""

    time: float
    step: int
    total_steps: int
    tokens: int
    train_loss: float | None
    valid_loss: float | None
    row: Row
    """The line as it was written."""


@dataclass(frozen=True)
class Checkpoint:
    step: int
    time: float
    train_loss: float
    valid_loss: float | None
    name: str
    """Name of its folder, below `finetune`."""


@dataclass(frozen=True)
class LogPart:
    text: str
    next_offset: int = 0
    """Offset of the byte after it."""
    is_end: bool = True
    """Whether nothing more was written when it was read."""


class WorkFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def stage(self, source: Path, name: str) -> None:
        """Copy a file of the project here, unless that was done: later changes of either leave the other."""
        with self._made() as folder, Folder.open(source.parent) as files:
            if folder.has_file(name):
                return
            folder.remove(name)
            stage_file(files, source.name, folder, name)

    @contextlib.contextmanager
    def new_file(self, name: str) -> Generator[BinaryIO]:
        """Yield a file to write, which gets its name when the block ends, and is removed when that raises."""
        partial = f".{name}.partial"
        with self._made() as folder:
            folder.remove(partial)
            with undo_on_error(lambda: folder.remove(partial)):
                with folder.new_file(partial) as file:
                    yield file
                folder.rename(partial, name)

    def has_file(self, name: str) -> bool:
        with self._opened() as folder:
            return folder is not None and folder.has_file(name)

    def measure(self, name: str) -> DataSize:
        """Return the size of a file with one conversation on each line. Raises OSError."""
        lines = total = longest = 0
        with Folder.open(self.path) as folder, folder.file(name) as file:
            for line in file:
                if line.strip():
                    lines, total, longest = lines + 1, total + len(line), max(longest, len(line))
        return DataSize(lines, total, longest)

    def report(self) -> Row:
        return self._object("report.json")

    def settings(self) -> Row:
        """Return job.json, the settings of the recipes; empty before the first attempt."""
        return self._object("job.json")

    def write_settings(self, settings: Row) -> None:
        """Write the settings of a new attempt and remove the outcome of the one before."""
        with self._made() as folder:
            folder.unlink("outcome.json")
            folder.write("job.json", json.dumps(settings, indent=1).encode())

    def outcome(self, attempt: int) -> Outcome | None:
        """Return how this attempt ended; None while it has not."""
        found = self._object("outcome.json")
        return read_outcome(found) if found.get("attempt") == attempt else None

    @cached_property
    def metrics(self) -> list[Metrics]:
        """Return the measurements, oldest first. Read once for each WorkFolder."""
        found = (_metrics(time, row) for _, time, row in self._lines("finetune/metrics.jsonl"))
        return [each for each in found if each is not None]

    @property
    def has_begun_training(self) -> bool:
        """Large files are not copied from a cluster, so there the metrics of the first step show it."""
        return self.has_file("chats_train.arrow") or self.has_file("finetune/metrics.jsonl")

    def events(self) -> list[Event]:
        """Return the events of the recipes and of the control plane, oldest first."""
        found = [
            Event(f"ftevent-{name[0]}{number}", time, _text(row, "level", "info"), _text(row, "message"))
            for name in ("events.jsonl", "control.jsonl")
            for number, time, row in self._lines(name)
        ]
        for each in self.metrics:
            if each.train_loss is not None:
                data = {name: value for name, value in each.row.items() if name != "time"}
                message = f"Step {each.step}/{each.total_steps}: training loss={each.train_loss:.4f}"
                message += "".join(
                    f", {words}={value:.4f}"
                    for name, words in MEASURED.items()
                    if _is_number(value := each.row.get(name))
                )
                found.append(Event(f"ftevent-m{each.step}", each.time, "info", message, json.dumps(data)))
        return sorted(found, key=lambda event: (event.time, event.id))

    def add_event(self, time: float, message: str, level: str = "info") -> None:
        """Add an event of the control plane. It is lost when the container has put a link in the way."""
        line = json.dumps({"time": time, "level": level, "message": message}) + "\n"
        with self._made() as folder, contextlib.suppress(UnsafePath):
            folder.append("control.jsonl", line.encode())

    def checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints, newest first; an incomplete one has another name."""
        found: list[Checkpoint] = []
        for step, saved_at, name in sorted(self._saved(), reverse=True):
            train = [
                row.train_loss for row in self.metrics if row.train_loss is not None and row.step <= step
            ]
            valid = [
                row.valid_loss for row in self.metrics if row.valid_loss is not None and row.step == step
            ]
            found.append(
                Checkpoint(step, saved_at, train[-1] if train else 0.0, valid[-1] if valid else None, name)
            )
        return found

    def log_tail(self, lines: int) -> LogPart:
        """Return the last lines of the recipes' log."""
        _, size = self._log(0, 0)
        data, _ = self._log(max(0, size - LOG_CHUNK_BYTES), LOG_CHUNK_BYTES)
        text = data.decode("utf-8", errors="replace").splitlines(keepends=True)[-lines:]
        return LogPart("".join(text), size)

    def log_after(self, offset: int, *, has_ended: bool) -> LogPart:
        """Return the whole lines of the recipes' log from an offset on; of a job that has ended also an
        unfinished one. A log that is shorter than the offset was begun again, and is read from its start."""
        data, size = self._log(offset, LOG_CHUNK_BYTES)
        if not size:
            return LogPart("", offset)
        if size < offset:
            offset = 0
            data, size = self._log(offset, LOG_CHUNK_BYTES)
        is_end = offset + len(data) >= size
        if not (has_ended and is_end):
            data = whole_lines(data, LOG_CHUNK_BYTES)
        return LogPart(data.decode("utf-8", errors="replace"), offset + len(data), is_end)

    def _log(self, offset: int, limit: int) -> tuple[bytes, int]:
        """Return a part of the log and its size; nothing where there is no plain file."""
        with self._opened() as folder:
            try:
                return (b"", 0) if folder is None else folder.part("log.txt", offset, limit)
            except (UnsafePath, FileNotFoundError, NotADirectoryError):
                return b"", 0

    @contextlib.contextmanager
    def result_file(self, name: str) -> Generator[Path]:
        """Yield a path that reads this file while the context lasts, even when it is replaced meanwhile.

        Raises BadResult.
        """
        try:
            with Folder.open(self.path) as folder, folder.file(name) as file:
                if os.fstat(file.fileno()).st_size > MAX_RESULT_BYTES:
                    raise BadResult(f"{name} is larger than {MAX_RESULT_BYTES:,} bytes")
                yield Path(f"/proc/self/fd/{file.fileno()}")
        except (UnsafePath, FileNotFoundError, NotADirectoryError) as error:
            raise BadResult(f"{name} is missing, or no plain file") from error

    def copy_result(self, target: Path) -> None:
        """Copy the new model to the folder `target`, out of the container's reach, completely or not at all.

        Raises BadResult for a link or anything else but files and folders; OSError.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with Folder.open(target.parent) as parent:
            if parent.state(target.name) is not None:
                return
            try:
                with (
                    Folder.open(self.path) as folder,
                    folder.folder("result") as result,
                    parent.staged(target.name) as copy,
                ):
                    copy_tree(result, copy)
            except (UnsafePath, FileNotFoundError, NotADirectoryError) as error:
                raise BadResult(f"the new model cannot be copied: {error}") from error

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            remove_tree(self.path)

    def _made(self) -> Folder:
        make_folder(self.path)
        return Folder.open(self.path)

    @contextlib.contextmanager
    def _opened(self) -> Generator[Folder | None]:
        try:
            folder = Folder.open(self.path)
        except FileNotFoundError:
            yield None
            return
        with folder:
            yield folder

    def _object(self, name: str) -> Row:
        with self._opened() as folder:
            text = b"" if folder is None else _or_empty(lambda: folder.read(name))
        return _parse(text)

    def _lines(self, name: str) -> Iterator[tuple[int, float, Row]]:
        """Yield number, time and content of the complete lines that hold an object with a time."""
        with self._opened() as folder:
            text = b"" if folder is None else _or_empty(lambda: _head(folder, name))
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            row = _parse(line if line.endswith(b"\n") else b"")
            time = row.get("time")
            if _is_number(time) and 0 <= time <= LATEST_SECONDS:
                yield number, float(time), row

    def _saved(self) -> Iterator[tuple[int, float, str]]:
        """Yield step, time and name of each checkpoint."""
        with self._opened() as folder:
            if folder is None or folder.state("finetune") is None:
                return
            with contextlib.suppress(OSError), folder.folder("finetune") as inner:
                for name in inner.names():
                    step, state = _CHECKPOINT.fullmatch(name), inner.state(name)
                    if step and state is not None and _is_step(int(step[1])):
                        yield int(step[1]), min(max(0.0, state.st_mtime), LATEST_SECONDS), name


def _head(folder: Folder, name: str) -> bytes:
    with folder.file(name) as file:
        return file.read(MAX_LINES_BYTES)


def _or_empty(read: Callable[[], bytes]) -> bytes:
    """Return the content; b"" where there is no plain file, or one that is too large."""
    try:
        return read()
    except (UnsafePath, FileNotFoundError, NotADirectoryError):
        return b""


def _parse(text: bytes) -> Row:
    """Return the JSON object; an empty one for anything else."""
    try:
        return as_object(json.loads(text) if text else None)
    except (ValueError, RecursionError):
        return {}


def _metrics(time: float, row: Row) -> Metrics | None:
    """Return the measured values; None for a row that no recipe writes."""
    step, total_steps, tokens = row.get("step"), row.get("total_steps"), row.get("tokens", 0)
    train_loss, valid_loss = row.get("train_loss"), row.get("valid_loss")
    if (
        _is_step(step)
        and _is_step(total_steps)
        and _is_number(tokens)
        and type(tokens) is int
        and tokens >= 0
        and ((train_loss is None and "train_loss" not in row) or _is_loss(train_loss))
        and ((valid_loss is None and "valid_loss" not in row) or _is_loss(valid_loss))
    ):
        return Metrics(
            time=time,
            step=step,
            total_steps=total_steps,
            tokens=tokens,
            train_loss=train_loss,
            valid_loss=valid_loss,
            row=row,
        )
    return None


def _is_step(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= LARGEST_STEP


def _is_loss(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or _is_number(value)  # NaN where the training diverged


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and abs(value) < LARGEST_NUMBER  # false for NaN


def _text(row: Row, name: str, default: str = "") -> str:
    return str(row.get(name, default))
