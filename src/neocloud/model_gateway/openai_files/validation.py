"""Validate batch and training files: batches here, large ones in a process of their own; data to train on
with the reader of the jobs.

`python -m neocloud.model_gateway.openai_files.validation PATH '{"endpoint": ...}'` prints the result as JSON.
The process writes nothing and reads nothing but the file.
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Self

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.core.training_data import (
    SUPERVISED,
    CheckFailed,
    as_sentence,
    check_training_data,
    limit_this_process,
)
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.api.fields import InvalidJson, parse_json

MAX_ERRORS = 100
Kind = Literal["batch", "training"]
_LINE = re.compile(r"line (\d+)\b")


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


async def validate_training_file(path: Path, options: Mapping[str, str | int]) -> ValidationResult:
    """Validate training data with the reader that jobs use."""
    with path.open("rb") as file:
        try:
            method, grader = str(options.get("method", SUPERVISED)), str(options.get("grader", ""))
            found = await check_training_data(file, method, grader)
        except CheckFailed as error:
            raise ValidationCrashed(str(error)) from error
    result = ValidationResult(lines=found.conversations, total_errors=found.error_count)
    for error in found.errors:
        line = _LINE.match(error)
        number = int(line[1]) if line else 0
        result.errors.append(ValidationError(number, "invalid_training_line", as_sentence(error)))
    return result


SMALL_BYTES = 256 << 10
MAX_PROCESSES = 2
MAX_WAITING = 16
"""Validations that callers wait for, besides those that run."""
AGAIN_SECONDS = 10


class ValidationCrashed(Exception):
    """The validation process failed, which says nothing about the file."""


async def validate_file(kind: Kind, path: Path, **options: str | int) -> ValidationResult:
    """Raises ValidationCrashed, or OSError where the file is gone."""
    is_small = (await asyncio.to_thread(path.stat)).st_size <= SMALL_BYTES
    if kind == "training":
        async with _SMALL_SLOTS if is_small else _SLOTS:
            return await validate_training_file(path, options)
    if is_small:
        return await asyncio.to_thread(validate_batch_file, path, **options)  # type: ignore[arg-type]
    async with _SLOTS:
        return await _validate_in_process(path, options)


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
_SMALL_SLOTS = _Slots(MAX_PROCESSES)


async def _validate_in_process(path: Path, options: Mapping[str, str | int]) -> ValidationResult:
    command = [sys.executable, "-m", __name__, str(path), json.dumps(options)]
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


def main(path: str, options: str) -> None:
    limit_this_process()
    sys.stdout.write(validate_batch_file(Path(path), **json.loads(options)).to_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
