"""The interface to files that were uploaded to the gateway. The composition provides its implementation."""

from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """The files of projects. All calls block while the disk works."""

    def path(self, project_id: str, file_id: str) -> Path:
        """Return the path to read the file from. Raises LookupError when the project has no such file."""
        ...

    def add(self, project_id: str, path: Path, purpose: str, name: str, file_id: str = "") -> str:
        """Store a copy and return its id; do nothing when a file of this id exists."""
        ...
