"""How many wrong passwords an address may have, and for how long it is locked after that."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

MAX_ATTEMPTS = 5
WINDOW = timedelta(minutes=15)
"""From the first wrong one on; then all are forgotten."""
MAX_ENTRIES = 128


@dataclass
class Attempts:
    """Counts by name, each with the time of its first."""

    entries: dict[str, tuple[int, datetime]] = field(default_factory=dict)

    def locked_until(self, name: str, now: datetime) -> datetime | None:
        count, since = self.entries.get(name, (0, now))
        return since + WINDOW if count >= MAX_ATTEMPTS and now < since + WINDOW else None

    def count(self, name: str, now: datetime) -> None:
        alive = {key: entry for key, entry in self.entries.items() if now < entry[1] + WINDOW}
        count, since = alive.get(name, (0, now))
        alive[name] = (count + 1, since)
        while len(alive) > MAX_ENTRIES:
            # The fewest go first: who fills the table cannot wash away a lock with as many single guesses.
            del alive[min((key for key in alive if key != name), key=lambda key: alive[key])]
        self.entries = alive

    def forget(self, name: str) -> bool:
        return self.entries.pop(name, None) is not None
