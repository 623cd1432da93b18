"""Write the metrics of a run as lines of JSON, for programs.

A line has a `time` (seconds since 1970), a `step` and the values measured after it. A run that resumes drops
the lines after its checkpoint, since those steps are done again. Needs only the standard library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conversations import atomic_text


class MetricsFile:
    """The file of metrics; only the first process of a run may write it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep_until(self, step: int) -> None:
        """Drop all lines of later steps, and a last line that was not written to its end."""
        if not self._path.exists():
            return
        kept = [line for line in self._path.read_text(encoding="utf-8").splitlines() if _step(line) <= step]
        with atomic_text(self._path) as file:
            file.writelines(f"{line}\n" for line in kept)

    def add(self, facts: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **facts}) + "\n")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
