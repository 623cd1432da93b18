"""Logging of a process of ours: level, form of a line, and fields that every record of a task carries.

`bind` adds fields to all records that the current task writes; `extra={...}` adds them to one. Secrets are in
neither.
"""

import json
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

FIELDS = (
    *("resource", "kind", "attempt", "request_id", "method", "subject"),
    *("duration_ms", "result"),
)
"""Attributes of records that are written beside the message."""
_IN_FRONT = ("resource", "attempt", "request_id")
"""Fields that a line of text shows before the message."""

_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
    if chr(code) != "\t"
} | {ord("\n"): "\\n", ord("\r"): "\\r"}
"""Control characters, as a line of text shows them: messages quote what tenants wrote."""

_bound: ContextVar[dict[str, object] | None] = ContextVar("bound_log_fields", default=None)


@contextmanager
def bind(**fields: object) -> Generator[None, None, None]:
    """Add these fields to all records that are written inside the context, by this task."""
    token = _bound.set({**(_bound.get() or {}), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def bind_more(**fields: object) -> None:
    """Add fields to those of the innermost `bind`."""
    bound = _bound.get()
    if bound is not None:
        bound.update(fields)


def set_up_logging(level: str, form: str) -> None:
    """Write records to stderr: ours from this level on ("debug", "info", "warning"), others' from warning on.

    `form` is "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    handler.addFilter(add_bound)
    root = logging.getLogger()
    for each in root.handlers[:]:
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("neocloud").setLevel(level.upper())


def add_bound(record: logging.LogRecord) -> bool:
    """Add the fields of the current task to the record: a filter for handlers."""
    for name, value in (_bound.get() or {}).items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


class _TextLines(logging.Formatter):
    """`time level logger [resource attempt request-id] message`: one line, and one more for each of a
    traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(fields)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        shown = [str(value) for name in _IN_FRONT if (value := getattr(record, name, "")) != ""]
        record.fields = f" [{' '.join(shown)}]" if shown else ""
        return super().formatMessage(record).translate(_ESCAPES)


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
