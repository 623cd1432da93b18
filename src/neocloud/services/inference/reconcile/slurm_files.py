"""What an engine that runs as a job needs of the machine, in the folder that its cluster's workers see.

Hard links where the file system allows: no second copy of the weights. Blocking; follows no wish of its own.

    <shown folder of the cluster>/<deployment id>/key           bearer token of the engines
    <shown folder of the cluster>/<deployment id>/model/        the weights
    <shown folder of the cluster>/<deployment id>/adapters/     by id
"""

import os
import shutil
from pathlib import Path, PurePosixPath

KEY, MODEL, ADAPTERS = "key", "model", "adapters"


class JobFiles:
    """Of one deployment, on the machine and as its jobs see them."""

    def __init__(self, shown: Path, shown_as: str, deployment_id: str) -> None:
        self._here = shown / deployment_id
        self._there = PurePosixPath(shown_as) / deployment_id

    @property
    def key(self) -> str:
        return str(self._there / KEY)

    @property
    def model(self) -> str:
        return str(self._there / MODEL)

    def adapter(self, adapter_id: str) -> str:
        return str(self._there / ADAPTERS / adapter_id)

    def lay(self, weights: Path, key: bytes) -> None:
        """May be repeated. Raises OSError."""
        self._here.mkdir(parents=True, exist_ok=True)
        _write(self._here / KEY, key)
        _lay_folder(weights, self._here / MODEL)

    def lay_adapter(self, adapter_id: str, source: Path) -> None:
        (self._here / ADAPTERS).mkdir(parents=True, exist_ok=True)
        _lay_folder(source, self._here / ADAPTERS / adapter_id)

    def remove(self) -> None:
        shutil.rmtree(self._here, ignore_errors=True)


def _write(file: Path, content: bytes) -> None:
    if file.exists() and file.read_bytes() == content:
        return
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as output:
        output.write(content)
    partial.replace(file)


def _lay_folder(source: Path, target: Path) -> None:
    """Whole or not at all. Files of the folder itself: engines read none below it."""
    if target.exists():
        return
    partial = target.with_name(f".{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for file in source.iterdir():
        if file.is_file():
            _link(file.resolve(), partial / file.name)
    partial.rename(target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
