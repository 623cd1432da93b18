"""Write how long each step took this process, and how much of it was waiting for the others.

`neo slurm job diagnose` reads these files while the job runs, and finds the process that is slow.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from recipe_errors import note
from training_step import StepResult

FOLDER = "NEOCLOUD_STEP_TIMES"
"""Variable that names the folder."""


class StepTimes:
    """The file of one process. A job that cannot write it continues without."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file

    @classmethod
    def of(cls, rank: int) -> StepTimes:
        """Open the file, if this is a job of Slurm or the variable names a folder."""
        job = os.environ.get("SLURM_JOB_ID")
        folder = os.environ.get(FOLDER) or (f"step-times-{job}" if job else "")
        if not folder:
            return cls(None)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return cls(open(Path(folder) / f"rank-{rank}.jsonl", "a", encoding="utf-8", buffering=1))
        except OSError as error:
            note(f"{folder}: step times are not written: {error.strerror}")
            return cls(None)

    def add(self, step: int, result: StepResult) -> None:
        if self._file is None:
            return
        line = {"step": step, "seconds": round(result.seconds, 6)}
        if result.waited is not None:
            line["waited"] = round(min(result.waited, result.seconds), 6)
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            note(f"{self._file.name}: step times end here: {error.strerror}")
            self.close()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # it writes what is left, and fails again on a full disk
                self._file.close()
            self._file = None
