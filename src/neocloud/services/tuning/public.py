"""The interface to files that were uploaded to the gateway. The composition provides its implementation."""

from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Files of projects. All calls block for as long as a disk does."""

    def path(self, project_id: str, file_id: str) -> Path:
        """Where the bytes are, to read. Raises LookupError when the project has no such file."""
        ...

    def add(self, project_id: str, path: Path, purpose: str, name: str, file_id: str = "") -> str:
        """Keep a copy; nothing happens when the file is there already. Answers with its id."""
        ...
