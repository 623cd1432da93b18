"""A kernel log as a person pasted it: lines of any form, entries of a journal, and what was not understood.

A line in which the word for a fault stands, but which is neither a fault nor a message of the kernel that is
known, is counted: it may be the one that matters.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neocloud.core.json_values import as_object, is_list
from neocloud.fleet.policy.kernel_log import LONGEST_TEXT, KernelMessage, names_fault, visible
from neocloud.fleet.policy.kernel_log_line import Line, pasted, sequence_of

MOST_FIELDS = 200
"""Fields of one entry of a journal."""
MOST_SHOWN = 3
"""Lines that were not understood, which are kept."""
_INDENT = re.compile(r"[ \t]{0,64}(?:[>|][> |]{0,16})?")
_NUMBERED = re.compile(r" {0,8}\d{1,9}\t")
_VERBOSE = re.compile(r"(?:\w{3} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? \S{1,32} \[s=[0-9a-f]{1,32};")
_FIELD = re.compile(r"(?: {4})?([A-Z_][A-Z0-9_]{0,63})=(.*)")
_JSON_FIELD = re.compile(r'\s*"(\w{1,64})"\s*:\s*(.*?),?\s*')
_BRACE = re.compile(r"\s*(?:\]|\[|\}|\},?\s*\{?|\{|\"dmesg\" *: *\[),?\s*")
_MESSAGES = ("MESSAGE", "msg", "message", "log", "line")


@dataclass
class PastedLog:
    """Reads a log, and counts what is left of it. One for each log."""

    others: int = 0
    """Lines and entries that are not the kernel's."""
    lost: int = 0
    """Records of /dev/kmsg that are missing."""
    not_understood: int = 0
    """Lines that name a fault and are not the kernel's in a form that is known."""
    shown: list[str] = field(default_factory=list[str])
    """The first of them."""
    _next_sequence: int = 0
    _last_s: float | None = None
    _indent: str | None = None
    _entry: dict[str, Any] | None = None

    def records(self, lines: Iterable[str]) -> Iterator[KernelMessage]:
        """Yield the records of the kernel."""
        for line in lines:
            yield from self._records(self._without_indent(line))
        yield from self._end_entry()

    def _without_indent(self, line: str) -> str:
        """Take off what stands before the first line, such as the indent or the quote marks of a mail."""
        line = line.lstrip("\ufeff\x1e")
        if self._indent is None and line.strip():
            found = None if _NUMBERED.match(line) else _INDENT.match(line)
            self._indent = found[0] if found else ""
        return line.removeprefix(self._indent or "") if self._indent else line

    def _records(self, line: str) -> Iterator[KernelMessage]:
        text = line.rstrip("\r\n")
        if _VERBOSE.match(text) or text.startswith("__CURSOR=") or text.strip() in ("{", "}, {", "},{"):
            yield from self._end_entry()
            self._entry = {}
            self._add_field(text)
        elif self._entry is not None and (not text.strip() or _BRACE.fullmatch(text)):
            yield from self._end_entry()
        elif not self._add_field(text) and not _BRACE.fullmatch(text):
            yield from self._line(text)

    def _line(self, text: str) -> Iterator[KernelMessage]:
        sequence = sequence_of(text)
        if sequence is not None:
            self.lost += max(0, sequence - self._next_sequence)
            self._next_sequence = sequence + 1
        start = text.find("{")
        is_entry = 0 <= start <= LONGEST_TEXT and text.rstrip().endswith("}")
        fields = _json(text[start:] if is_entry else "")
        found = _line_of(fields) if any(name in fields for name in _MESSAGES) else pasted(text)
        yield from self._kept(found, text)

    def _kept(self, found: Line, text: str) -> Iterator[KernelMessage]:
        record = found.record
        if record is None:
            if text.strip():
                self.others += 1
                self._note(text)
            return
        if record.time_s is None and found.since_s is not None and self._last_s is not None:
            record = replace(record, time_s=self._last_s + found.since_s)
        self._last_s = record.time_s if record.time_s is not None else self._last_s
        yield record

    def _note(self, text: str) -> None:
        if names_fault(text):
            self.not_understood += 1
            if len(self.shown) < MOST_SHOWN:
                self.shown.append(visible(text.strip()))

    def _add_field(self, text: str) -> bool:
        """Take a field of an entry; the first of a name counts. Return whether the line is one."""
        entry = self._entry
        if entry is None or len(entry) >= MOST_FIELDS:
            return False
        if match := _FIELD.fullmatch(text):
            entry.setdefault(match[1], match[2])
            return True
        if match := _JSON_FIELD.fullmatch(text):
            entry.setdefault(match[1], _json(f'{{"value": {match[2]}}}').get("value"))
            return True
        return False

    def _end_entry(self) -> Iterator[KernelMessage]:
        fields, self._entry = self._entry or {}, None
        if any(name in fields for name in _MESSAGES):
            yield from self._kept(_line_of(fields), _text_of(fields))


def _json(text: str) -> Mapping[str, object]:
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _line_of(fields: Mapping[str, object]) -> Line:
    """Return what an entry of a journal, of `dmesg --json` or of a container's log says."""
    kernels = {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0", "fac": "kern"}
    if any(name in fields and str(fields[name]) != value for name, value in kernels.items()):
        return Line(None)
    priority = fields.get("pri")
    if isinstance(priority, int) and priority >> 3:
        return Line(None)
    text = _text_of(fields)
    found = Line(KernelMessage(text)) if fields.get("_TRANSPORT") == "kernel" else pasted(text)
    record, time_s = found.record, _time_of(fields)
    if record is None or time_s is None:
        return found
    return Line(replace(record, time_s=record.time_s if record.time_s is not None else time_s))


def _text_of(fields: Mapping[str, object]) -> str:
    """Return the message. A journal writes one with control characters as a list of bytes."""
    value = next((fields[name] for name in _MESSAGES if name in fields), "")
    if is_list(value):
        numbers = [each for each in value if isinstance(each, int) and 0 <= each < 256]
        if len(numbers) == len(value):
            return bytes(numbers).decode(errors="replace")
        value = value[0]
    return value.rstrip("\r\n") if isinstance(value, str) else ""


def _time_of(fields: Mapping[str, Any]) -> float | None:
    for name, unit in (("__REALTIME_TIMESTAMP", 1e6), ("time", 1.0)):
        try:
            return float(fields[name]) / unit
        except (KeyError, ValueError, TypeError, OverflowError):
            continue
    return None
