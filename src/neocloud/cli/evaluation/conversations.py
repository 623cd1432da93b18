"""Test conversations from a JSONL file and the questions drawn from them, as in the recipe."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neocloud.client.errors import ClientError

ROLES = ("system", "user", "assistant")

Conversation = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Question:
    """The messages before an answer, and the reference answer."""

    messages: Conversation
    reference: str

    @property
    def input(self) -> str:
        return self.messages[-1]["content"]


def read_conversations(path: Path, limit: int, seed: int) -> list[Conversation]:
    """Read all conversations, or `limit` drawn at random. Raises ClientError that names the invalid line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError("INVALID_ARGUMENT", f"{path} cannot be read: {error}") from error
    found = [
        _conversation(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not found:
        raise ClientError(
            "INVALID_ARGUMENT", f"{path} contains no conversation", "Give the test part of your data"
        )
    return random.Random(seed).sample(found, len(found))[:limit] if limit else found  # a sample, no secret  # nosec B311


def choose_questions(conversations: Sequence[Conversation], count: int, seed: int) -> list[Question]:
    """Draw one answer of each of `count` random conversations."""
    generator = random.Random(seed)  # a sample, no secret  # nosec B311
    chosen = generator.sample(list(conversations), min(count, len(conversations)))
    answers = [[at for at, one in enumerate(messages) if one["role"] == "assistant"] for messages in chosen]
    places = [places[generator.randrange(len(places))] for places in answers]
    return [
        Question(messages[:at], messages[at]["content"]) for messages, at in zip(chosen, places, strict=True)
    ]


def last_questions(conversations: Sequence[Conversation]) -> list[Question]:
    """Return each conversation's last answer, for data whose answers are labels."""
    last = [max(at for at, one in enumerate(each) if one["role"] == "assistant") for each in conversations]
    return [Question(each[:at], each[at]["content"]) for each, at in zip(conversations, last, strict=True)]


def _conversation(line: str, where: str) -> Conversation:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _bad(where, f"broken JSON ({error})") from error
    messages: object = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not messages:
        raise _bad(where, "'messages' must be a list with at least one message")
    found = [_message(each, f"{where}, message {number}") for number, each in enumerate(messages, 1)]
    turns = [each["role"] for each in found][found[0]["role"] == "system" :]
    if "assistant" not in turns or turns != [ROLES[1 + number % 2] for number in range(len(turns))]:
        raise _bad(where, "roles must be an optional system, then user and assistant in turn")
    return found


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise _bad(where, f"the role must be one of {', '.join(ROLES)}")
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        raise _bad(where, "the content is missing")
    return {"role": message["role"], "content": content.strip()}


def _bad(where: str, why: str) -> ClientError:
    return ClientError("INVALID_ARGUMENT", f"{where}: {why}", "Correct the line or remove it")
