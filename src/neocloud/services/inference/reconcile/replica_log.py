"""A part of what a replica's model server wrote, and the position in its log that clients follow it from."""

import re
from dataclasses import dataclass

_POSITION = re.compile(r"([a-z0-9-]{1,80})/([0-9-]{1,64})/([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True)
class LogPosition:
    replica: str
    run: str
    """Each start of the model server is another run, whose log has positions of its own."""
    offset: int
    """Offset of the next line, or of the next byte, as the backend of the replica counts."""

    def __str__(self) -> str:
        return f"{self.replica}/{self.run}/{self.offset}"

    @classmethod
    def of(cls, text: str) -> "LogPosition | None":
        """Return the position that was written as this text; None for a text that is none."""
        found = _POSITION.fullmatch(text)
        return cls(found[1], found[2], int(found[3])) if found else None


@dataclass(frozen=True)
class ReplicaLog:
    text: str = ""
    end: LogPosition | None = None
    """After the text; None where the replica has no log."""
