"""Advisories of Debian: the file of its security tracker, which the operator provides, and an index of it.

The file is the published one of the Debian security tracker: by source package and issue, its state in each
release. `python -m neocloud.object_gateway.work.scan.advisories FILE INDEX` writes the index, in a process
with limits, since the file has some 80 MB.
"""

import os
import resource
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from neocloud.core.json_values import is_object
from neocloud.object_gateway.work.scan import versions

MAX_FILE_BYTES = 512 * 1024**2
LIMITS = {
    resource.RLIMIT_AS: 6 * 1024**3,
    resource.RLIMIT_CPU: 600,
    resource.RLIMIT_FSIZE: 1024**3,
    resource.RLIMIT_CORE: 0,
}
UNAFFECTED = "0"
"""A fixed version which means that the release never had the issue."""
_MAX_TEXT = 256
_SCHEMA = """
CREATE TABLE source (modified_ns INTEGER NOT NULL, size INTEGER NOT NULL);
CREATE TABLE advisory (
    source TEXT NOT NULL,
    release TEXT NOT NULL,
    id TEXT NOT NULL,
    status TEXT NOT NULL,
    fixed_version TEXT NOT NULL,
    urgency TEXT NOT NULL,
    PRIMARY KEY (source, release, id)
) WITHOUT ROWID;
"""


def provided_file(home: Path) -> Path:
    """Return where in the state folder the operator puts the file."""
    return home / "advisories" / "debian.json"


def index_file(folder: Path) -> Path:
    """Return where in the folder of the object gateway the index is."""
    return folder / "advisories.db"


class NotAdvisories(Exception):
    """The file is not one of the security tracker."""


@dataclass(frozen=True)
class Finding:
    id: str
    """ "CVE-2026-12345"."""
    source: str
    version: str
    """The installed version."""
    fixed_version: str
    """"": there is none yet."""
    urgency: str
    """The tracker's word: "high", "low", "unimportant", "not yet assigned"."""
    status: str
    """ "resolved": an update repairs it; "open"; "undetermined": it may be concerned."""


def build(source: Path, target: Path) -> int:
    """Write the index; return how many advisories it has. Raises NotAdvisories, OSError, sqlite3.Error."""
    with source.open("rb") as file:
        state = os.fstat(file.fileno())
        if state.st_size > MAX_FILE_BYTES:
            raise NotAdvisories(f"it has more than {MAX_FILE_BYTES:,} bytes")
        content = file.read(MAX_FILE_BYTES)
    part = target.with_suffix(".new")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(part)) as connection:
        connection.executescript(_SCHEMA)
        connection.executemany("INSERT INTO advisory VALUES (?, ?, ?, ?, ?, ?)", _rows(content))
        (number,) = connection.execute("SELECT count(*) FROM advisory").fetchone()
        if not number:
            raise NotAdvisories("it has no advisories")
        connection.execute("INSERT INTO source VALUES (?, ?)", (state.st_mtime_ns, state.st_size))
        connection.commit()
    part.replace(target)
    return number


def _rows(content: bytes) -> Iterator[tuple[str, str, str, str, str, str]]:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise NotAdvisories("it is not JSON") from error
    for source, issues in _entries(document):
        for issue, about in _entries(issues):
            for release, state in _entries(dict(_entries(about)).get("releases", {})):
                found = dict(_entries(state))
                texts = (found.get("status"), found.get("fixed_version", ""), found.get("urgency", ""))
                is_text = all(isinstance(each, str) and len(each) <= _MAX_TEXT for each in texts)
                if not is_text or not texts[0]:
                    raise NotAdvisories(f"{issue[:_MAX_TEXT]} says no status for {release[:_MAX_TEXT]}")
                yield source, release, issue, str(texts[0]), str(texts[1]), str(texts[2])


def _entries(value: object) -> Iterator[tuple[str, object]]:
    if not is_object(value):
        raise NotAdvisories("it has another structure than the tracker's file")
    yield from value.items()


def stamp(index: Path) -> tuple[int, int] | None:
    """Return the time in ns and the size of the file that an index was made of; None: there is no index."""
    try:
        with closing(_open(index)) as connection:
            return connection.execute("SELECT modified_ns, size FROM source").fetchone()
    except sqlite3.Error:
        return None


def findings(
    index: Path, release: str, sources: Sequence[tuple[str, str]]
) -> tuple[datetime, list[Finding]] | None:
    """Return from when the advisories are, and what they say of these source packages, by issue; None where
    there are none for the release."""
    found: list[Finding] = []
    with closing(_open(index)) as connection:
        row = connection.execute(
            "SELECT modified_ns FROM source WHERE EXISTS (SELECT 1 FROM advisory WHERE release = ?)",
            (release,),
        ).fetchone()
        if row is None:
            return None
        for source, version in sources:
            for id, status, fixed, urgency in connection.execute(
                "SELECT id, status, fixed_version, urgency FROM advisory WHERE source = ? AND release = ?",
                (source, release),
            ):
                if _is_affected(version, status, fixed):
                    found.append(Finding(id, source, version, fixed, urgency, status))
    at = datetime.fromtimestamp(row[0] / 1e9, UTC)
    return at, sorted(found, key=lambda each: (each.id, each.source, each.version))


def _is_affected(version: str, status: str, fixed: str) -> bool:
    if fixed == UNAFFECTED:
        return False
    if fixed:
        return versions.compare(version, fixed) < 0
    return status != "resolved"


def _open(index: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro", uri=True, timeout=5)


def main(arguments: list[str]) -> None:
    os.nice(10)
    os.umask(0o077)
    for limited, most in LIMITS.items():
        resource.setrlimit(limited, (most, most))
    try:
        sys.stdout.write(str(build(Path(arguments[0]), Path(arguments[1]))))
    except (NotAdvisories, OSError, sqlite3.Error) as error:
        sys.exit(str(error))
    except MemoryError:
        sys.exit("it needs more memory than may be used to read it")


if __name__ == "__main__":
    main(sys.argv[1:])
