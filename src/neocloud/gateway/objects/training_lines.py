"""What a file to train on must be like, said before a job is made.

A line is a conversation (`messages`), a `prompt` with its `completion`, or `text`; all lines of a file are of
one kind. Of conversations it asks what the recipes' own reader asks, and that the last turn be the
assistant's; a test runs both on the same bad files.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

from neocloud.gateway.objects.findings import Findings, json_objects

ROLES = ("system", "user", "assistant")
MAX_LINE_BYTES = 64 << 20
MAX_LINES = 5_000_000
KINDS = {"messages": ("messages",), "prompt": ("prompt", "completion"), "text": ("text",)}


def check_training(path: Path) -> Findings:
    """`facts`: the kind of its lines, how many are duplicates, and their lengths in characters."""
    findings = Findings(facts={"kind": ""})
    lengths: list[int] = []
    seen: set[bytes] = set()
    for number, line in json_objects(path, findings, MAX_LINE_BYTES):
        if findings.lines > MAX_LINES:
            findings.add(number, "too_many_lines", f"The file has more than {MAX_LINES} lines. Split it.")
            break
        try:
            content = _content(line, findings)
        except ValueError as error:
            findings.add(number, "invalid_training_line", f"Line {number}: {error}")
            continue
        lengths.append(sum(map(len, content)))
        seen.add(blake2b("\0".join(content).encode("utf-8", "surrogatepass"), digest_size=12).digest())
    if not lengths and not findings.errors:
        findings.add(1, "empty_file", "The file has no lines to train on.")
    findings.facts.update(duplicates=len(lengths) - len(seen), characters=_spread(lengths))
    return findings


def _content(line: dict[str, Any], findings: Findings) -> list[str]:
    """The texts of a line. Raises ValueError that says what is wrong."""
    kind = next((kind for kind in KINDS if kind in line), "")
    if not kind:
        raise ValueError("has none of `messages`, `prompt` with `completion`, or `text`")
    findings.facts["kind"] = findings.facts["kind"] or kind
    if findings.facts["kind"] != kind:
        raise ValueError(
            f"has `{kind}`, but earlier lines have `{findings.facts['kind']}`; all lines must have one format"
        )
    if kind == "messages":
        return conversation(line["messages"])
    for name in KINDS[kind]:
        if not isinstance(line.get(name), str) or not line[name].strip():
            raise ValueError(f"`{name}` must be a non-empty string")
    return [line[name] for name in KINDS[kind]]


def conversation(messages: Any) -> list[str]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list with at least one message")
    roles: list[str] = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise ValueError(f"message {number} is not an object")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ValueError(f"message {number} has role {role!r}, known roles are {', '.join(ROLES)}")
        if not isinstance(content, str) or not content.strip():
            raise ValueError(f"message {number} ({role}) has no content")
        roles.append(role)
    turns = roles[1:] if roles[0] == "system" else roles
    if turns != [("user", "assistant")[number % 2] for number in range(len(turns))]:
        found = ", ".join(roles[:20])
        raise ValueError(
            f"roles must be an optional system, then alternating user and assistant; found {found}"
        )
    if not turns or turns[-1] != "assistant":
        raise ValueError("the last message must have the role assistant: it is what the model learns")
    return [message["content"] for message in messages]


def _spread(lengths: list[int]) -> dict[str, int]:
    if not lengths:
        return {}
    ordered = sorted(lengths)
    at = {"min": 0, "p50": len(ordered) // 2, "p95": len(ordered) * 95 // 100, "max": len(ordered) - 1}
    return {**{name: ordered[index] for name, index in at.items()}, "sum": sum(ordered)}
