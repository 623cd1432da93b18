"""What a batch's input file must be like. Reads the file once; holds of each line a few bytes."""

from hashlib import blake2b
from pathlib import Path
from typing import Any

from neocloud.gateway.objects.findings import Findings, json_objects

MAX_CUSTOM_ID = 512


def check_batch(path: Path, endpoint: str, *, max_lines: int, max_line_bytes: int) -> Findings:
    """Errors by line; `facts` has the model that all lines name."""
    findings = Findings()
    first_lines: dict[bytes, int] = {}
    for number, line in json_objects(path, findings, max_line_bytes):
        if findings.lines > max_lines:
            found = f"The file has more than {max_lines} requests, which is the limit of a batch. Split it."
            findings.add(number, "too_many_requests", found)
            break
        _check_id(line.get("custom_id"), number, first_lines, findings)
        _check_request(line, number, endpoint, findings)
    if not findings.lines and not findings.errors:
        findings.add(1, "empty_file", "The file has no requests.")
    return findings


def _check_id(custom_id: Any, number: int, first_lines: dict[bytes, int], findings: Findings) -> None:
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        findings.add(
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
        findings.add(number, "duplicate_custom_id", found, "custom_id")


def _check_request(line: dict[str, Any], number: int, endpoint: str, findings: Findings) -> None:
    if line.get("method") != "POST":
        findings.add(number, "invalid_method", f'Line {number}: method must be "POST".', "method")
    if line.get("url") != endpoint:
        found = f"Line {number}: url is {str(line.get('url'))[:80]!r}, but the batch is for {endpoint}."
        findings.add(number, "mismatched_url", found, "url")
    body = line.get("body")
    if not isinstance(body, dict):
        findings.add(number, "invalid_body", f"Line {number}: body must be an object.", "body")
        return
    model = body.get("model")
    if not isinstance(model, str) or not model:
        findings.add(
            number, "missing_model", f"Line {number}: body.model must be a model name.", "body.model"
        )
    elif findings.facts.setdefault("model", model) != model:
        before = findings.facts["model"]
        found = f"Line {number} uses the model {model[:80]!r}, earlier lines {before[:80]!r}; use one model."
        findings.add(number, "mismatched_model", found, "body.model")
    if body.get("stream"):
        findings.add(
            number, "stream_in_batch", f"Line {number}: streaming is not supported in batches.", "body.stream"
        )
