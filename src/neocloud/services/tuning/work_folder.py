"""The folder of one job: what the control plane lays into it, and what the recipes leave there.

Everything is read anew each time; nothing here decides anything. All calls block for as long as a disk does.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neocloud.services.tuning.rules.hyperparameters import DataSize

LOG_CHUNK_BYTES = 256 * 1024


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

    def place(self, source: Path, name: str) -> Path:
        """A file of the project, as the job's own: what happens to the other one later does not matter."""
        target = self.path / name
        if target.exists():
            return target
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f".{name}.partial"
        partial.unlink(missing_ok=True)
        try:
            os.link(source, partial)
        except OSError:  # on another file system
            shutil.copyfile(source, partial)
        partial.replace(target)
        return target

    def wanted(self) -> Mapping[str, Any]:
        """job.json as the recipes were given it; empty before."""
        return self._object("job.json")

    def want(self, wanted: Mapping[str, Any]) -> None:
        partial = self.path / ".job.json.partial"
        partial.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
        (self.path / "outcome.json").unlink(missing_ok=True)
        partial.replace(self.path / "job.json")

    def outcome(self, attempt: int) -> Mapping[str, Any]:
        """How this attempt ended; empty while it has not."""
        found = self._object("outcome.json")
        return found if found.get("attempt") == attempt else {}

    @cached_property
    def metrics(self) -> list[Mapping[str, Any]]:
        """What was measured, oldest first. Read once for each WorkFolder."""
        return [row for _, row in self._lines("finetune/metrics.jsonl")]

    @property
    def has_begun_training(self) -> bool:
        """Large files do not come back from a cluster: there it shows by the step's own folder."""
        made = ("chats_train.arrow", "finetune/metrics.jsonl")
        return any((self.path / name).exists() for name in made)

    def events(self) -> list[Event]:
        """Of all writers, oldest first."""
        found = [
            Event(f"ftevent-{name[0]}{number}", row["time"], row.get("level", "info"), row["message"])
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
        """An event of the control plane's."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "control.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time, "level": level, "message": message}) + "\n")

    def checkpoints(self) -> list[Checkpoint]:
        """Newest first; only whole ones have this name."""
        found = []
        for path in sorted(self.path.glob("finetune/checkpoint-[0-9]*"), reverse=True):
            step = int(path.name.removeprefix("checkpoint-"))
            train = [row["train_loss"] for row in self.metrics if "train_loss" in row and row["step"] <= step]
            valid = [row["valid_loss"] for row in self.metrics if "valid_loss" in row and row["step"] == step]
            last = train[-1] if train else 0.0
            found.append(Checkpoint(step, path.stat().st_mtime, last, valid[-1] if valid else None))
        return found

    def log_tail(self, lines: int) -> str:
        """The last lines of what the recipes wrote."""
        try:
            with (self.path / "log.txt").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_CHUNK_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "".join(text.splitlines(keepends=True)[-lines:])

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _object(self, name: str) -> Mapping[str, Any]:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def _lines(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Whole lines with their numbers; the last may be half written."""
        try:
            text = (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            if line.endswith("\n"):
                yield number, json.loads(line)


def measure(path: Path) -> DataSize:
    """How large a file of conversations is, one a line."""
    lines = total = longest = 0
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                lines, total, longest = lines + 1, total + len(line), max(longest, len(line))
    return DataSize(lines, total, longest)
