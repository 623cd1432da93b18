"""Small JSON files that survive the server: written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

from neocloud.engines.base import EngineError


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, None when there is none or only half of one from before a crash."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def write_record(path: Path, record: dict[str, Any]) -> None:
    write_file(path, json.dumps(record, sort_keys=True).encode(), 0o600)


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Replace the file in one step, so that a reader sees the old or the new content."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        temporary.replace(path)
    except OSError as error:
        raise EngineError(
            f"{path} could not be written: {error.strerror}; check free space and the owner of the "
            "state folder."
        ) from error
