"""Input and output of the process that reads layers: apart from it, since it imports Arrow."""

from dataclasses import dataclass, field

LENGTH_BYTES = 8
"""How many bytes before each layer say how long it is."""


@dataclass(frozen=True)
class Inventory:
    release: str = ""
    """The code name of the Debian release: "bookworm"; "": it is not Debian, or does not say."""
    packages: int = 0
    sources: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """The source packages that they were built from, each with its version."""
