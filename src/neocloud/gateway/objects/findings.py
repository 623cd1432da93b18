"""What is wrong with a file of lines, by line number; the border to the process that checks large ones."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from neocloud.gateway import json_input

MOST_ERRORS = 100


@dataclass(frozen=True)
class Finding:
    line: int
    code: str
    message: str
    param: str | None = None

    def as_openai(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Findings:
    """Errors that refuse the file, and what else is worth knowing of it."""

    errors: list[Finding] = field(default_factory=list)
    total_errors: int = 0
    lines: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, line: int, code: str, message: str, param: str | None = None) -> None:
        self.total_errors += 1
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(Finding(line, code, message, param))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        values = json.loads(text)
        errors = [Finding(**error) for error in values.pop("errors")]
        return cls(errors=errors, **values)


def json_objects(path: Path, findings: Findings, max_line_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers. Blank lines are passed over, others that are no
    objects are errors."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_line_bytes + 1):
            number += 1
            if len(raw) > max_line_bytes:
                findings.add(number, "line_too_long", f"Line {number} is longer than {max_line_bytes} bytes.")
                return
            value = _object(raw, number, findings)
            if value is not None:
                findings.lines += 1
                yield number, value


def _object(raw: bytes, number: int, findings: Findings) -> dict[str, Any] | None:
    try:
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        if not line.strip():
            return None
        value = json_input.loads(line.encode())
    except UnicodeDecodeError as error:
        found = f"Line {number} is not UTF-8 (byte 0x{raw[error.start]:02x} at position {error.start + 1})."
        findings.add(number, "invalid_utf8", found)
        return None
    except json_input.InvalidJson as error:
        findings.add(number, "invalid_json_line", f"Line {number} {error.of_line}.")
        return None
    if isinstance(value, dict):
        return value
    findings.add(number, "invalid_json_line", f"Line {number} must be a JSON object.")
    return None
