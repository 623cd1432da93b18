"""Check one conversation: its messages, and which of them the model learns.

A message has a role and a content: text, or a list of text parts. An answer may call tools; a message with
the role `tool` has the result. A message may be marked as not to be learnt, and whatever else it has must not
change what it means: a key with an unknown meaning is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from recipe_errors import BadRecordError, RecipeError
from tool_calls import Tool, check_calls, check_tools, check_use

ROLES = ("system", "user", "assistant", "tool")
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
_READ = {"role", "from", "content", "value", "tool_calls", *MARKS}
_RESULT = {"tool_call_id", "name"}

Message = dict[str, Any]
"""`role` and `content`; with `weight` 0 where an assistant's words are not learnt."""
Remarks = Counter[str]
"""Remarks on content that was left out on purpose or does not matter, with the number of times."""


class Conversation(list[Message]):
    """The messages of a conversation, and the tools that the assistant may call in it."""

    def __init__(self, messages: Iterable[Message] = (), tools: Iterable[Tool] = ()) -> None:
        super().__init__(messages)
        self.tools = list(tools)

    def first(self, count: int) -> Conversation:
        """Return the first messages, with the tools."""
        return Conversation(self[:count], self.tools)


def tools_of(messages: list[Message]) -> list[Tool]:
    """Return the tools of a conversation; a plain list of messages has none."""
    return messages.tools if isinstance(messages, Conversation) else []


class NotToLearnError(RecipeError):
    """All that a record could teach is marked as not to be learnt."""


def check_conversation(
    messages: Any, where: str, remarks: Remarks | None = None, tools: Any = None, parallel: Any = None
) -> Conversation:
    """Return the conversation with contents stripped; raise an error that names the fault and its place."""
    checked = check_messages(messages, where, remarks, tools, parallel)
    if checked[-1]["role"] != "assistant":
        text = "the last message must have the role assistant: it is what the model learns"
        raise BadRecordError(f"{where}: {text}")
    if not any(is_learnt(message) for message in checked):
        raise NotToLearnError(f"{where}: all answers are marked as not to be learnt")
    return checked


def check_messages(
    messages: Any, where: str, remarks: Remarks | None = None, tools: Any = None, parallel: Any = None
) -> Conversation:
    """Return the messages with contents stripped; the last may have any role."""
    remarks = Remarks() if remarks is None else remarks
    if not isinstance(messages, list) or not messages:
        raise BadRecordError(f"{where}: must be a list with at least one message")
    checked = [
        _message(message, f"{where}: message {number}", remarks) for number, message in enumerate(messages, 1)
    ]
    _check_order(checked, where)
    known = check_tools(tools, where)
    check_use(checked, known, parallel, where)
    return Conversation(checked, known)


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


def _check_order(messages: list[Message], where: str) -> None:
    expected = ("system", "user")
    has_tools = any(each["role"] == "tool" or each.get("tool_calls") for each in messages)
    results = ", and results of tools behind the answer that calls them" if has_tools else ""
    for message in messages:
        role = message["role"]
        if role not in expected:
            found = ", ".join(each["role"] for each in messages[:20])
            raise BadRecordError(
                f"{where}: roles must be an optional system, then user and assistant in turn{results};"
                f" found {found}"
            )
        if role == "tool":
            expected = ("tool", "assistant")
        elif role == "assistant":
            expected = ("tool",) if message.get("tool_calls") else ("user",)
        else:
            expected = ("assistant",) if role == "user" else ("user",)


def _message(message: Any, where: str, remarks: Remarks) -> Message:
    if not isinstance(message, dict):
        raise BadRecordError(f"{where} is not an object")
    named = {key: SHAREGPT_ROLES.get(str(message.get(key)), message.get(key)) for key in ("role", "from")}
    role = _one_of(named, "role", "from", where)
    if role not in ROLES:
        raise BadRecordError(f"{where} has role {role!r:.80}, known roles are {', '.join(ROLES)}")
    where = f"{where} ({role})"
    for key, value in message.items():
        if key in _READ or is_empty(value) or (role == "tool" and key in _RESULT):
            continue
        if key not in UNUSED_KEYS:
            raise BadRecordError(f"{where} has the key {key!r:.80}, which would not be learnt; remove it")
        remarks[f"messages have the key {key!r:.80}, which is not used"] += 1
    calls = check_calls(message.get("tool_calls") or [], where)
    if calls and role != "assistant":
        raise BadRecordError(f"{where} has 'tool_calls'; only answers call tools")
    content = _one_of(message, "content", "value", where)
    text = "" if calls and is_empty(content) else _content(content, where)
    marks = [is_marked_to_learn(message.get(name), f"{where}: {name!r}") for name in MARKS]
    if role != "assistant":
        if any(marks):
            remarks[f"{role} messages are marked to be learnt; only answers are"] += 1
        return {"role": role, "content": text} | (_result(message) if role == "tool" else {})
    if calls and "</think>" in text:
        raise BadRecordError(f"{where} has reasoning and 'tool_calls', which templates order differently")
    _check_reasoning(text, where)
    called = {"tool_calls": calls} if calls else {}
    return {"role": role, "content": text, **called} | ({"weight": 0} if False in marks else {})


def _result(message: Message) -> Message:
    """Return what says of which call and which tool a message is the result."""
    return {key: str(message[key]) for key in ("tool_call_id", "name") if not is_empty(message.get(key))}


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
