"""Write and find checkpoints, which are either complete or absent.

A checkpoint is a folder `checkpoint-000120` with the files of the run's state and a
`manifest.json` naming each file's size and SHA-256. It is written under another name, synced and
renamed, in a background thread, so training continues meanwhile. A reader takes the newest folder
whose files match the manifest and reports the ones it skipped. This module knows folders and
bytes, not models.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError, note

MANIFEST = "manifest.json"
PREFIX = "checkpoint-"
READ_BYTES = 1 << 20
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

WriteFile = Callable[[Path], None]  # writes one file at the path it is given


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk; `state` describes the run."""

    path: Path
    step: int
    state: dict[str, Any]


def write_checkpoint(
    folder: Path, step: int, state: Mapping[str, Any], files: Mapping[str, WriteFile]
) -> Path:
    """Write all files and the manifest under a temporary name, then rename the folder."""
    target = folder / f"{PREFIX}{step:06d}"
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _fill(partial, step, state, files)
    except BaseException:
        shutil.rmtree(partial)  # free the space, above all when the disk is full
        raise
    if target.exists():  # a damaged one of the same step, or it would have been resumed from
        shutil.rmtree(target)
    partial.rename(target)
    _sync(folder)
    return target


def _fill(folder: Path, step: int, state: Mapping[str, Any], files: Mapping[str, WriteFile]) -> None:
    entries = {}
    for name, write in files.items():
        write(folder / name)
        _sync(folder / name)
        size = (folder / name).stat().st_size
        entries[name] = {"bytes": size, "sha256": _sha256(folder / name)}
    manifest = {"step": step, "state": dict(state), "files": entries}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(folder / MANIFEST)
    _sync(folder)


def publish(made: Path, folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Make a checkpoint of a folder with plain files that another program has written."""
    target = folder / f"{PREFIX}{step:06d}"
    entries = {}
    for path in sorted(made.iterdir()):
        _sync(path)
        entries[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    manifest = {"step": step, "state": dict(state), "files": entries}
    (made / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(made / MANIFEST)
    _sync(made)
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)
    _sync(folder)
    return target


def newest_whole(folder: Path) -> Checkpoint | None:
    """Return the checkpoint to resume from; report damaged ones on stderr and skip them."""
    for path in sorted(folder.glob(f"{PREFIX}[0-9]*"), reverse=True):
        damage = damage_in(path)
        if damage is None:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            return Checkpoint(path, manifest["step"], manifest["state"])
        note(f"{path}: {damage}; skipped, the one before is used")
    return None


def damage_in(path: Path) -> str | None:
    """Return why a checkpoint is unusable; None if every file matches the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        entries = manifest["files"].items()
        if not {"step", "state"} <= manifest.keys():
            return f"{MANIFEST} is damaged"
    except OSError:
        return f"{MANIFEST} is missing"
    except (ValueError, KeyError, AttributeError, TypeError):
        return f"{MANIFEST} is damaged"
    for name, entry in entries:
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} of {entry['bytes']} bytes"
        if _sha256(file) != entry["sha256"]:
            return f"{name} does not match its checksum"
    return None


def keep_newest(folder: Path, limit: int, every: int = 0, best: int = 0) -> None:
    """Remove all but the newest `limit` checkpoints, that of the step `best`, and those at multiples of
    `every` steps; 0: no others."""
    for path in sorted(folder.glob(f"{PREFIX}[0-9]*"), reverse=True)[limit:]:
        step = int(path.name.removeprefix(PREFIX))
        if step != best and (not every or step % every):
            shutil.rmtree(path)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"{PREFIX}{step:06d}"


class CheckpointWriter:
    """A background writer of one checkpoint at a time; the next call raises its errors."""

    def __init__(self, folder: Path, limit: int, every: int = 0) -> None:
        self._folder, self._limit, self._every = folder, limit, every
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    def save(
        self, step: int, state: Mapping[str, Any], files: Mapping[str, WriteFile], best: int = 0
    ) -> None:
        """Start writing; the data that `files` write must not change any more (pass copies). The checkpoint
        of the step `best` is kept."""
        self.wait()
        self._running = self._thread.submit(self._write, step, state, files, best)

    def wait(self) -> None:
        """Return once the last checkpoint is on disk; raise if it could not be written."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def _write(self, step: int, state: Mapping[str, Any], files: Mapping[str, WriteFile], best: int) -> None:
        try:
            path = write_checkpoint(self._folder, step, state, files)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            text = f"{error.filename or 'a checkpoint'}: cannot be written: {error.strerror}"
            raise RecipeError(f"{text}. {self._kept()}") from error
        except RecipeError as error:
            raise RecipeError(f"{error}. {self._kept()}") from error
        keep_newest(self._folder, self._limit, self._every, best)
        note(f"checkpoint {path}")

    def _kept(self) -> str:
        """Return a sentence about the checkpoint that a run continues from when this one was not written."""
        advice = "Free some space and run the same command again"
        kept = newest_whole(self._folder)
        if kept is None:
            return f"No checkpoint was written before. {advice}: it starts from the beginning"
        return f"The checkpoint before is kept: {kept.path}. {advice}: it continues from there"


def set_aside(found: Checkpoint) -> Path:
    """Rename a checkpoint so that no run continues from it, and return its new place."""
    place = found.path.with_name(f"not-finite-{found.path.name}")
    shutil.rmtree(place, ignore_errors=True)
    found.path.rename(place)
    return place


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
