"""The log of the cloud's server: text or JSON lines, rotated files, and filters."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import IO

from neocloud.cli.terminal import write
from neocloud.client.errors import ClientError

POLL_SECONDS = 0.3
_HEADER = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r" (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<logger>[\w.]+):? (?P<message>.*)"
)
_SEARCH = re.compile(r"(\[[^]]*\]:? )?'[\w.]+/GetByName' NOT_FOUND:")
"""How the server logs the search for a name among resources of a kind that has none."""
_SPAN = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_ORDER = [level.value.upper() for level in Level]


@dataclass(frozen=True)
class Record:
    """One record of the log: a line in text or JSON form, with the lines of its traceback."""

    text: str
    fields: Mapping[str, object]
    """`time level logger message`, and in JSON form the bound fields, such as `resource`."""
    is_json: bool

    @property
    def time(self) -> datetime | None:
        try:
            moment = datetime.fromisoformat(str(self.fields.get("time", "")).replace(",", "."))
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.astimezone()

    def mentions(self, words: re.Pattern[str]) -> bool:
        return words.search(self.text) is not None

    @property
    def is_search(self) -> bool:
        message, logger = (str(self.fields.get(key, "")) for key in ("message", "logger"))
        return logger.endswith(".pipeline") and _SEARCH.match(message) is not None

    def as_text(self) -> str:
        if not self.is_json:
            return self.text
        field = {key: str(value) for key, value in self.fields.items() if value not in (None, "")}
        bound = "".join(f" [{field[key]}]" for key in ("resource", "attempt", "request_id") if key in field)
        head = f"{field.get('time', '')} {field.get('level', '')} {field.get('logger', '')}:{bound}"
        trace = field.get("exception") or field.get("exc_info") or ""
        return f"{head} {field.get('message', '')}" + (f"\n{trace}" if trace else "")

    def as_json(self) -> str:
        return self.text if self.is_json else json.dumps(dict(self.fields), ensure_ascii=False)


@dataclass(frozen=True)
class Filter:
    words: re.Pattern[str] | None = None
    since: datetime | None = None
    level: Level = Level.DEBUG

    def accepts(self, record: Record) -> bool:
        level = str(record.fields.get("level", "")).upper()
        if level in _ORDER and _ORDER.index(level) < _ORDER.index(self.level.value.upper()):
            return False
        if self.since is not None and (record.time is None or record.time < self.since):
            return False
        return self.words is None or (record.mentions(self.words) and not record.is_search)


def print_records(found: Iterable[Record], chosen: Filter, output: LogFormat) -> int:
    """Print the accepted records and return their number."""
    printed = 0
    for record in found:
        if chosen.accepts(record):
            write((record.as_json() if output is LogFormat.JSON else record.as_text()) + "\n")
            printed += 1
    return printed


def start_of(text: str, now: datetime) -> datetime:
    """Return the time named by a span such as 15m, or by a date or time in UTC."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        try:
            return now - timedelta(**{_UNITS[span[2]]: int(span[1])})
        except (OverflowError, ValueError) as error:
            raise ClientError(
                "INVALID_ARGUMENT", f"{text} is too long ago", "Leave out --since to print the whole log"
            ) from error
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{text!r} is not a time", "Write 15m, 12h, 7d or 2026-11-01T08:00:00"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def older_file(file: Path) -> Path:
    """Return the file that the previous log was rotated to."""
    return file.with_name(f"{file.name}.1")


def lines(file: Path, *, follow: bool, sleep: Callable[[float], None] = time.sleep) -> Iterator[str | None]:
    """Iterate over the lines of the rotated file and the file itself; None when there are no more for now.

    While following, a file that was rotated or truncated is read again from its start.
    """
    if older_file(file).exists():
        with older_file(file).open(encoding="utf-8", errors="replace") as older:
            yield from older
    while not file.exists():
        if not follow:
            return
        sleep(POLL_SECONDS)
    current = _open(file)
    partial = ""
    try:
        while True:
            piece = current.readline()
            if piece.endswith("\n"):
                yield partial + piece
                partial = ""
                continue
            partial += piece
            if not follow:
                break
            yield None
            if file.exists() and _was_replaced(current, file):
                current.close()
                current, partial = _open(file), ""
            else:
                sleep(POLL_SECONDS)
    finally:
        current.close()
    if partial:
        yield partial


def records(found: Iterable[str | None]) -> Iterator[Record]:
    """Join lines to records: lines without a header, such as tracebacks, belong to the line before them."""
    pending: list[str] = []
    for line in found:
        if line is None or _begins_record(line):
            if pending:
                yield _record(pending)
            pending = []
        if line is not None and line.strip():
            pending.append(line.rstrip("\n"))
    if pending:
        yield _record(pending)


def _begins_record(line: str) -> bool:
    return line.startswith("{") or _HEADER.match(line) is not None


def _record(texts: list[str]) -> Record:
    text = "\n".join(texts)
    if texts[0].startswith("{"):
        try:
            fields = json.loads(texts[0])
        except ValueError:
            return Record(text, {"message": text}, is_json=False)
        return Record(text, fields, is_json=True)
    match = _HEADER.match(texts[0])
    if match is None:
        return Record(text, {"message": text}, is_json=False)
    return Record(text, {**match.groupdict(), "message": text[match.start("message") :]}, is_json=False)


def _open(file: Path) -> IO[str]:
    return file.open(encoding="utf-8", errors="replace")


def _was_replaced(current: IO[str], file: Path) -> bool:
    known, present = os.fstat(current.fileno()), file.stat()
    return known.st_ino != present.st_ino or present.st_size < current.tell()


def any_of(words: Set[str]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(word) for word in sorted(words))
    return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])")
