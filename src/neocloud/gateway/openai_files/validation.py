# pyright: strict
"""Validate the lines of batch and training files: small files in a thread, large ones in a process of their
own.

`python -m neocloud.gateway.openai_files.validation batch PATH '{"endpoint": ...}'` prints the result as JSON.
The process writes nothing and reads nothing but the file.
"""

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.gateway.api.errors import OpenAiError
from neocloud.gateway.api.fields import InvalidJson, parse_json

MAX_ERRORS = 100


@dataclass(frozen=True)
class ValidationError:
    line: int
    code: str
    message: str
    param: str | None = None

    def as_openai(self) -> dict[str, object]:
        return asdict(self)


@dataclass
class ValidationResult:
    """Errors of a file, and properties of a valid one."""

    errors: list[ValidationError] = field(default_factory=list[ValidationError])
    total_errors: int = 0
    lines: int = 0
    properties: dict[str, Any] = field(default_factory=dict[str, Any])

    def add(self, line: int, code: str, message: str, param: str | None = None) -> None:
        self.total_errors += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(ValidationError(line, code, message, param))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        values = json.loads(text)
        errors = [ValidationError(**error) for error in values.pop("errors")]
        return cls(errors=errors, **values)


def read_json_objects(
    path: Path, result: ValidationResult, max_line_bytes: int
) -> Iterator[tuple[int, JsonObject]]:
    """Yield the objects of a JSONL file with their line numbers. Blank lines are skipped; other lines are
    errors."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_line_bytes + 1):
            number += 1
            if len(raw) > max_line_bytes:
                result.add(number, "line_too_long", f"Line {number} is longer than {max_line_bytes} bytes.")
                return
            value = _parse_object(raw, number, result)
            if value is not None:
                result.lines += 1
                yield number, value


def _parse_object(raw: bytes, number: int, result: ValidationResult) -> JsonObject | None:
    try:
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        if not line.strip():
            return None
        value = parse_json(line.encode())
    except UnicodeDecodeError as error:
        found = f"Line {number} is not UTF-8 (byte 0x{raw[error.start]:02x} at position {error.start + 1})."
        result.add(number, "invalid_utf8", found)
        return None
    except InvalidJson as error:
        result.add(number, "invalid_json_line", f"Line {number} {error.of_line}.")
        return None
    if isinstance(value, dict):
        return value
    result.add(number, "invalid_json_line", f"Line {number} must be a JSON object.")
    return None


MAX_CUSTOM_ID = 512


def validate_batch_file(
    path: Path, endpoint: str, *, max_lines: int, max_line_bytes: int
) -> ValidationResult:
    """Validate a batch. The property `model` is the model of all lines."""
    result = ValidationResult()
    first_lines: dict[bytes, int] = {}
    for number, line in read_json_objects(path, result, max_line_bytes):
        if result.lines > max_lines:
            found = f"The file has more than {max_lines} requests, which is the limit of a batch. Split it."
            result.add(number, "too_many_requests", found)
            break
        _check_id(line.get("custom_id"), number, first_lines, result)
        _check_request(line, number, endpoint, result)
    if not result.lines and not result.errors:
        result.add(1, "empty_file", "The file has no requests.")
    return result


def _check_id(custom_id: Json, number: int, first_lines: dict[bytes, int], result: ValidationResult) -> None:
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        result.add(
            number,
            "invalid_custom_id",
            f"Line {number}: custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters.",
            "custom_id",
        )
        return
    digest = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=12).digest()
    first = first_lines.setdefault(digest, number)
    if first != number:
        found = f"Line {number}: custom_id {custom_id[:80]!r} is not unique; line {first} has it too."
        result.add(number, "duplicate_custom_id", found, "custom_id")


def _check_request(line: JsonObject, number: int, endpoint: str, result: ValidationResult) -> None:
    if line.get("method") != "POST":
        result.add(number, "invalid_method", f'Line {number}: method must be "POST".', "method")
    if line.get("url") != endpoint:
        found = f"Line {number}: url is {str(line.get('url'))[:80]!r}, but the batch is for {endpoint}."
        result.add(number, "mismatched_url", found, "url")
    body = line.get("body")
    if not isinstance(body, dict):
        result.add(number, "invalid_body", f"Line {number}: body must be an object.", "body")
        return
    model = body.get("model")
    if not isinstance(model, str) or not model:
        result.add(number, "missing_model", f"Line {number}: body.model must be a model name.", "body.model")
    elif result.properties.setdefault("model", model) != model:
        before = result.properties["model"]
        found = f"Line {number} uses the model {model[:80]!r}, earlier lines {before[:80]!r}; use one model."
        result.add(number, "mismatched_model", found, "body.model")
    if body.get("stream"):
        result.add(
            number, "stream_in_batch", f"Line {number}: streaming is not supported in batches.", "body.stream"
        )


ROLES = ("system", "user", "assistant")
MAX_LINE_BYTES = 64 << 20
MAX_LINES = 5_000_000
KINDS = {"messages": ("messages",), "prompt": ("prompt", "completion"), "text": ("text",)}


def validate_training_file(path: Path) -> ValidationResult:
    """Validate training data. Properties are the format, the number of duplicates, and lengths in
    characters.

    A line is a conversation (`messages`), a `prompt` with its `completion`, or `text`; all lines have one
    format. Conversations must be what the reader of the recipes accepts; a test runs both on the same
    files.
    """
    result = ValidationResult(properties={"kind": ""})
    lengths: list[int] = []
    digests: set[bytes] = set()
    for number, line in read_json_objects(path, result, MAX_LINE_BYTES):
        if result.lines > MAX_LINES:
            result.add(number, "too_many_lines", f"The file has more than {MAX_LINES} lines. Split it.")
            break
        try:
            content = _line_texts(line, result)
        except ValueError as error:
            result.add(number, "invalid_training_line", f"Line {number}: {error}")
            continue
        lengths.append(sum(map(len, content)))
        digests.add(blake2b("\0".join(content).encode("utf-8", "surrogatepass"), digest_size=12).digest())
    if not lengths and not result.errors:
        result.add(1, "empty_file", "The file has no lines to train on.")
    result.properties.update(duplicates=len(lengths) - len(digests), characters=_spread(lengths))
    return result


def _line_texts(line: JsonObject, result: ValidationResult) -> list[str]:
    """Return the texts of a line. Raises ValueError that says what is wrong."""
    kind = next((kind for kind in KINDS if kind in line), "")
    if not kind:
        raise ValueError("has none of `messages`, `prompt` with `completion`, or `text`")
    result.properties["kind"] = result.properties["kind"] or kind
    if result.properties["kind"] != kind:
        raise ValueError(
            f"has `{kind}`, but earlier lines have `{result.properties['kind']}`;"
            " all lines must have one format"
        )
    if kind == "messages":
        return conversation(line["messages"])
    found: list[str] = []
    for name in KINDS[kind]:
        value = line.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"`{name}` must be a non-empty string")
        found.append(value)
    return found


def conversation(messages: Json) -> list[str]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list with at least one message")
    roles: list[str] = []
    contents: list[str] = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise ValueError(f"message {number} is not an object")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ValueError(f"message {number} has role {role!r}, known roles are {', '.join(ROLES)}")
        if not isinstance(content, str) or not content.strip():
            raise ValueError(f"message {number} ({role}) has no content")
        roles.append(role)
        contents.append(content)
    turns = roles[1:] if roles[0] == "system" else roles
    if turns != [("user", "assistant")[number % 2] for number in range(len(turns))]:
        found = ", ".join(roles[:20])
        raise ValueError(
            f"roles must be an optional system, then alternating user and assistant; found {found}"
        )
    if not turns or turns[-1] != "assistant":
        raise ValueError("the last message must have the role assistant: it is what the model learns")
    return contents


def _spread(lengths: list[int]) -> dict[str, int]:
    if not lengths:
        return {}
    ordered = sorted(lengths)
    at = {"min": 0, "p50": len(ordered) // 2, "p95": len(ordered) * 95 // 100, "max": len(ordered) - 1}
    return {**{name: ordered[index] for name, index in at.items()}, "sum": sum(ordered)}


VALIDATORS: dict[str, Callable[..., ValidationResult]] = {
    "batch": validate_batch_file,
    "training": validate_training_file,
}
SMALL_BYTES = 256 << 10
MAX_PROCESSES = 2
MAX_WAITING = 16
"""Validations that callers wait for, besides those that run."""
AGAIN_SECONDS = 10
MEMORY_BYTES = 2 << 30
CPU_SECONDS = 1800
"""Five gigabytes of lines take about three minutes."""
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 32,
    resource.RLIMIT_CORE: 0,
}
"""Resource limits of a validation process, which reads one file and writes to a pipe."""


class ValidationCrashed(Exception):
    """The validation process failed, which says nothing about the file."""


async def validate_file(kind: str, path: Path, **options: str | int) -> ValidationResult:
    """Raises ValidationCrashed, or OSError where the file is gone."""
    if (await asyncio.to_thread(path.stat)).st_size <= SMALL_BYTES:
        return await asyncio.to_thread(VALIDATORS[kind], path, **options)
    async with _SLOTS:
        return await _validate_in_process(kind, path, options)


def require_validation_slot() -> None:
    """Raise OpenAiError 429 where too many callers wait for a validation."""
    if _SLOTS.waiting >= MAX_WAITING:
        raise OpenAiError(
            429,
            "Too many files are being validated at the moment. Try again later.",
            type="requests",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(AGAIN_SECONDS)},
        )


class _Slots:
    """A semaphore that counts its waiters."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self.waiting = 0

    async def __aenter__(self) -> None:
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


_SLOTS = _Slots(MAX_PROCESSES)


async def _validate_in_process(kind: str, path: Path, options: Mapping[str, str | int]) -> ValidationResult:
    command = [sys.executable, "-m", __name__, kind, str(path), json.dumps(options)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise ValidationCrashed(
            f"the check of {path.name} ended with {process.returncode}: {errors[-500:]!r}"
        )
    return ValidationResult.from_json(output)


def main(arguments: list[str]) -> None:
    os.nice(10)  # requests go first
    for limited, most in LIMITS.items():
        resource.setrlimit(limited, (most, most))
    kind, path, options = arguments
    sys.stdout.write(VALIDATORS[kind](Path(path), **json.loads(options)).to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
