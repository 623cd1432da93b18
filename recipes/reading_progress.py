"""Tell on stderr how much of a file was read, from time to time."""

from __future__ import annotations

import time

from recipe_errors import note

PROGRESS_SECONDS = 2.0


class Progress:
    """Tells how many rows of a file were read."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.said = name, total, time.monotonic()

    def tell(self, done: int) -> None:
        if done % 512 == 0 and time.monotonic() - self.said > PROGRESS_SECONDS:
            self.said = time.monotonic()
            note(f"progress: {self.name}: {done:,} of {self.total:,} rows")
