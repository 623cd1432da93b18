"""Options given before the command: which profile to use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    profile: str = ""
    """The name; "": the current one."""
