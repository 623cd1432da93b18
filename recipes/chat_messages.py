"""Check one conversation: its messages, and which of them the model learns.

A message has a role and a content: text, or a list of text parts. It may be marked as not to be learnt, and
whatever else it has must not change what it means: a key with an unknown meaning is an error.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from recipe_errors import RecipeError

ROLES = ("system", "user", "assistant")
SHAREGPT_ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
}  # fmt: skip
MARKS = ("weight", "trainable", "train", "loss_mask", "loss")
"""Names under which a message says whether it is learnt: true or 1, false or 0."""
UNUSED_KEYS = frozenset(
    {
        *("id", "uuid", "message_id", "name", "index", "turn", "lang", "language"),
        *("timestamp", "created_at", "create_time", "time", "date"),
    }
)
"""Keys of a message that no chat template shows to a model."""
TEXT_PARTS = ("text", "input_text", "output_text")
_READ = {"role", "from", "content", "value", *MARKS}

Message = dict[str, Any]
"""`role` and `content`; with `weight` 0 where an assistant's words are not learnt."""
Conversation = list[Message]
Remarks = Counter[str]
"""Remarks on content that was left out on purpose or does not matter, with the number of times."""


class BadRecordError(RecipeError):
    """A record cannot be used; `--skip-bad` leaves it out and counts it."""


class NotToLearnError(RecipeError):
    """All that a record could teach is marked as not to be learnt."""


def check_conversation(messages: Any, where: str, remarks: Remarks | None = None) -> Conversation:
    """Return the conversation with contents stripped; raise an error that names the fault and its place."""
    remarks = Remarks() if remarks is None else remarks
    if not isinstance(messages, list) or not messages:
        raise BadRecordError(f"{where}: must be a list with at least one message")
    checked = [
        _message(message, f"{where}: message {number}", remarks) for number, message in enumerate(messages, 1)
    ]
    _check_order([message["role"] for message in checked], where)
    if not any(is_learnt(message) for message in checked):
        raise NotToLearnError(f"{where}: all answers are marked as not to be learnt")
    return checked


def is_learnt(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("weight", 1) != 0


def is_marked_to_learn(value: Any, where: str) -> bool | None:
    """Return what a mark says; None where there is none. Raises BadRecordError for a share, such as 0.5."""
    if value is None or value != value:  # NaN is the null of tables
        return None
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise BadRecordError(
        f"{where} is {value!r:.80}; it must be 0 or 1 (false or true), shares are not supported"
    )


def is_empty(value: Any) -> bool:
    """Return whether a value says nothing: null, false, zero, NaN, or without content."""
    return not value or value != value or (isinstance(value, str) and not value.strip())


def _check_order(roles: list[str], where: str) -> None:
    turns = roles[1:] if roles[0] == "system" else roles
    expected = [("user", "assistant")[number % 2] for number in range(len(turns))]
    if turns != expected:
        found = ", ".join(roles[:20])
        raise BadRecordError(
            f"{where}: roles must be an optional system, then user and assistant in turn; found {found}"
        )
    if roles[-1] != "assistant":
        text = "the last message must have the role assistant: it is what the model learns"
        raise BadRecordError(f"{where}: {text}")


def _message(message: Any, where: str, remarks: Remarks) -> Message:
    if not isinstance(message, dict):
        raise BadRecordError(f"{where} is not an object")
    named = {key: SHAREGPT_ROLES.get(str(message.get(key)), message.get(key)) for key in ("role", "from")}
    role = _one_of(named, "role", "from", where)
    if role not in ROLES:
        raise BadRecordError(f"{where} has role {role!r:.80}, known roles are {', '.join(ROLES)}")
    where = f"{where} ({role})"
    for key, value in message.items():
        if key in _READ or is_empty(value):
            continue
        if key not in UNUSED_KEYS:
            raise BadRecordError(f"{where} has the key {key!r:.80}, which would not be learnt; remove it")
        remarks[f"messages have the key {key!r:.80}, which is not used"] += 1
    text = _content(_one_of(message, "content", "value", where), where)
    marks = [is_marked_to_learn(message.get(name), f"{where}: {name!r}") for name in MARKS]
    if role != "assistant":
        if any(marks):
            remarks[f"{role} messages are marked to be learnt; only answers are"] += 1
        return {"role": role, "content": text}
    _check_reasoning(text, where)
    return {"role": role, "content": text} | ({"weight": 0} if False in marks else {})


def _one_of(message: dict[str, Any], name: str, other: str, where: str) -> Any:
    """Return the value under one of two names. Both may be there where they say the same."""
    first, second = message.get(name), message.get(other)
    if first is not None and second is not None and first != second:
        raise BadRecordError(f"{where} has {name!r} and {other!r}, which differ; keep one")
    return second if first is None else first


def _content(content: Any, where: str) -> str:
    if isinstance(content, list):
        content = "\n".join(_part(part, where) for part in content)  # as model servers join them
    if content is not None and content == content and not isinstance(content, str):
        raise BadRecordError(f"{where} has a content of the type {type(content).__name__}; text is needed")
    if not isinstance(content, str) or not content.strip():
        raise BadRecordError(f"{where} has no content")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(content[error.start]):04X} at position {error.start + 1}"
        raise BadRecordError(f"{where} has half of a surrogate pair, {found}; repair the text") from None
    return content.strip()


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if not isinstance(part, dict) or kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
        raise BadRecordError(f"{where} has a part of the type {kind!r:.80}; only text is learnt")
    if more := [key for key, value in part.items() if key not in ("type", "text") and not is_empty(value)]:
        raise BadRecordError(f"{where} has a part with {more[0]!r:.80}; only text is learnt")
    return part["text"]


def _check_reasoning(text: str, where: str) -> None:
    """Refuse reasoning that chat templates would cut apart: they read one block, at the beginning."""
    if text.startswith("<think>") and "</think>" not in text:
        raise BadRecordError(f"{where} begins a <think> block that does not end")
    reasoning, end, answer = text.partition("</think>")
    if end and ("</think>" in answer or reasoning.count("<think>") != reasoning.startswith("<think>")):
        raise BadRecordError(f"{where} must have one block of <think> and </think>, before the answer")
    if end and not answer.strip():
        raise BadRecordError(f"{where} has reasoning but no answer after it")
