"""The folder of one job: what the control plane lays into it, and what the recipes leave there.

Everything is read anew each time; nothing here decides anything. The job's container writes in the same
folder and may run a tenant's code, so nothing is followed out of it, what is no plain file counts as missing,
and no line is trusted to hold what the recipes would write. All calls block for as long as a disk does.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted_files import Folder, UnsafePath, remove_tree
from neocloud.core.untrusted_trees import copy_tree, stage_file
from neocloud.services.tuning.rules.hyperparameters import DataSize

LOG_CHUNK_BYTES = 256 * 1024
MAX_LINES_BYTES = 16 * 1024**2
"""Bytes of a file of events or metrics that are read."""
MAX_RESULT_BYTES = 64 * 1024**2
"""Size of a result file, such as the metrics of all steps."""
LATEST_SECONDS = 4_102_444_800.0
"""The year 2100: times beyond it are not a recipe's."""
LARGEST_STEP, LARGEST_NUMBER = 2**31 - 1, 2**62
"""What statuses and events have room for."""
_SUCCEEDED = (
    *("trained_tokens", "base_perplexity", "fine_tuned_perplexity", "perplexity_improvement"),
    "conversations",
)
_FAILED = ("code", "message", "param")
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,12})")


class BadResult(ValueError):
    """What a job left as its result is not what recipes leave; the message says which file."""


@dataclass(frozen=True)
class Event:
    id: str
    time: float
    level: str
    message: str
    data: str = ""
    """A JSON object, of a metrics event."""


@dataclass(frozen=True)
class Checkpoint:
    step: int
    time: float
    train_loss: float
    valid_loss: float | None


class WorkFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, source: Path, name: str) -> None:
        """A copy of a file of the project: what happens to the one later does not matter to the other."""
        with self._made() as folder, Folder.open(source.parent) as files:
            if folder.has_file(name):
                return
            folder.remove(name)
            stage_file(files, source.name, folder, name)

    def holds(self, name: str) -> bool:
        """Whether there is such a file."""
        with self._opened() as folder:
            return folder is not None and folder.has_file(name)

    def measure(self, name: str) -> DataSize:
        """How large a file of conversations is, one a line. Raises OSError."""
        lines = total = longest = 0
        with Folder.open(self.path) as folder, folder.file(name) as file:
            for line in file:
                if line.strip():
                    lines, total, longest = lines + 1, total + len(line), max(longest, len(line))
        return DataSize(lines, total, longest)

    def wanted(self) -> Mapping[str, Any]:
        """job.json as the recipes were given it; empty before."""
        return self._object("job.json")

    def want(self, wanted: Mapping[str, Any]) -> None:
        with self._made() as folder:
            folder.unlink("outcome.json")
            folder.write("job.json", json.dumps(wanted, indent=1).encode())

    def outcome(self, attempt: int) -> Mapping[str, Any]:
        """How this attempt ended; empty while it has not."""
        found = self._object("outcome.json")
        return found if found.get("attempt") == attempt and _is_outcome(found) else {}

    @cached_property
    def metrics(self) -> list[Mapping[str, Any]]:
        """What was measured, oldest first. Read once for each WorkFolder."""
        return [row for _, row in self._lines("finetune/metrics.jsonl") if _is_measured(row)]

    @property
    def has_begun_training(self) -> bool:
        """Large files do not come back from a cluster: there it shows by the step's own folder."""
        return self.holds("chats_train.arrow") or self.holds("finetune/metrics.jsonl")

    def events(self) -> list[Event]:
        """Of all writers, oldest first."""
        found = [
            Event(
                f"ftevent-{name[0]}{number}", row["time"], _text(row, "level", "info"), _text(row, "message")
            )
            for name in ("events.jsonl", "control.jsonl")
            for number, row in self._lines(name)
        ]
        for row in self.metrics:
            if "train_loss" in row:
                data = {name: value for name, value in row.items() if name != "time"}
                message = f"Step {row['step']}/{row['total_steps']}: training loss={row['train_loss']:.4f}"
                found.append(Event(f"ftevent-m{row['step']}", row["time"], "info", message, json.dumps(data)))
        return sorted(found, key=lambda event: (event.time, event.id))

    def tell(self, time: float, message: str, level: str = "info") -> None:
        """An event of the control plane's. Lost where the container has put something else there."""
        line = json.dumps({"time": time, "level": level, "message": message}) + "\n"
        with self._made() as folder, contextlib.suppress(UnsafePath):
            folder.append("control.jsonl", line.encode())

    def checkpoints(self) -> list[Checkpoint]:
        """Newest first; only whole ones have this name."""
        found = []
        for step, saved_at in sorted(self._saved(), reverse=True):
            train = [row["train_loss"] for row in self.metrics if "train_loss" in row and row["step"] <= step]
            valid = [row["valid_loss"] for row in self.metrics if "valid_loss" in row and row["step"] == step]
            last = train[-1] if train else 0.0
            found.append(Checkpoint(step, saved_at, last, valid[-1] if valid else None))
        return found

    def log_tail(self, lines: int) -> str:
        """The last lines of what the recipes wrote."""
        with self._opened() as folder:
            text = b"" if folder is None else _or_nothing(lambda: folder.tail("log.txt", LOG_CHUNK_BYTES))
        return "".join(text.decode("utf-8", errors="replace").splitlines(keepends=True)[-lines:])

    @contextlib.contextmanager
    def result_file(self, name: str) -> Iterator[Path]:
        """A path under which this process may read the file while the context lasts, whatever takes its name.

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
        """The new model as the folder `target`, which nobody else can change: whole or not at all.

        Raises BadResult for a link or anything else but files and folders; OSError.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with Folder.open(target.parent) as place:
            if place.state(target.name) is not None:
                return
            try:
                with (
                    Folder.open(self.path) as folder,
                    folder.folder("result") as result,
                    place.staged(target.name) as copy,
                ):
                    copy_tree(result, copy)
            except (UnsafePath, FileNotFoundError, NotADirectoryError) as error:
                raise BadResult(f"the new model cannot be taken: {error}") from error

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            remove_tree(self.path)

    def _made(self) -> Folder:
        make_folder(self.path)
        return Folder.open(self.path)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Folder | None]:
        try:
            folder = Folder.open(self.path)
        except FileNotFoundError:
            yield None
            return
        with folder:
            yield folder

    def _object(self, name: str) -> Mapping[str, Any]:
        with self._opened() as folder:
            text = b"" if folder is None else _or_nothing(lambda: folder.read(name))
        return _parsed(text)

    def _lines(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the complete lines that hold an object with a time, with their numbers."""
        with self._opened() as folder:
            text = b"" if folder is None else _or_nothing(lambda: _head(folder, name))
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            row = _parsed(line) if line.endswith(b"\n") else {}
            if _is_number(row.get("time")) and 0 <= row["time"] <= LATEST_SECONDS:
                yield number, row

    def _saved(self) -> Iterator[tuple[int, float]]:
        """Step and time of each checkpoint."""
        with self._opened() as folder:
            if folder is None or folder.state("finetune") is None:
                return
            with contextlib.suppress(OSError), folder.folder("finetune") as inner:
                for name in inner.names():
                    step, state = _CHECKPOINT.fullmatch(name), inner.state(name)
                    if step and state is not None:
                        yield int(step[1]), min(max(0.0, state.st_mtime), LATEST_SECONDS)


def _head(folder: Folder, name: str) -> bytes:
    with folder.file(name) as file:
        return file.read(MAX_LINES_BYTES)


def _or_nothing(read: Any) -> bytes:
    """What was read; nothing where there is no plain file, or one that is too large."""
    try:
        return read()
    except (UnsafePath, FileNotFoundError, NotADirectoryError):
        return b""


def _parsed(text: bytes) -> Mapping[str, Any]:
    """A JSON object; empty for anything else."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _is_measured(row: Mapping[str, Any]) -> bool:
    steps = (row.get("step"), row.get("total_steps"))
    losses = [row[name] for name in ("train_loss", "valid_loss") if name in row]
    return (
        all(type(step) is int and 0 <= step <= LARGEST_STEP for step in steps)
        and all(isinstance(loss, float) or _is_number(loss) for loss in losses)  # NaN where it diverged
        and type(row.get("tokens", 0)) is int
        and _is_number(row.get("tokens", 0))
    )


def _is_outcome(found: Mapping[str, Any]) -> bool:
    match found.get("state"):
        case "succeeded":
            return all(_is_number(found.get(name)) for name in _SUCCEEDED)
        case "failed":
            return all(isinstance(found.get(name), str) for name in _FAILED)
        case state:
            return state == "stopped"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < LARGEST_NUMBER


def _text(row: Mapping[str, Any], name: str, default: str = "") -> str:
    return str(row.get(name, default))
