"""Render the chat template of a tokenizer with placeholders, and keep what stands between them.

The template is rendered once per order of roles. Reasoning in an answer (`<think>`) has a placeholder of its
own, since templates keep it in some places and cut it in others. Tools and their calls are rendered as they
are. A template that does not show them is an error: the model would learn to call what it cannot see.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jinja2

from chat_messages import Message
from recipe_errors import RecipeError
from tool_calls import as_json, name_of

REASONING, REASONING_END = "<think>", "</think>"
_FAULTS = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError),
    *(ArithmeticError, RecursionError),
)
"""Errors of a template, which is a program of the model's maker."""


@dataclass(frozen=True)
class Shape:
    """The properties of a message that a template may look at, besides its words."""

    role: str
    before: str = ""
    between: str = ""
    """Text before the reasoning of an answer, and between it and the answer; "" for no reasoning."""
    calls: str = ""
    """The calls of tools behind the answer, as JSON."""
    has_words: bool = True
    result: str = ""
    """The call that the message has the result of, as JSON with its id and the name of the tool."""


@dataclass(frozen=True)
class Slot:
    """The template's text before a message; in two parts where it keeps the reasoning between them."""

    before: str
    after_reasoning: str | None = None


@dataclass(frozen=True)
class Frame:
    slots: tuple[Slot, ...]
    end: str


def take_apart(message: Message) -> tuple[Shape, str, str]:
    """Return the shape of a message, its reasoning and its words."""
    role, content = message["role"], message["content"]
    if role == "tool":
        named = {name: message[name] for name in ("tool_call_id", "name") if name in message}
        return Shape(role, result=as_json(named)), "", content
    if calls := message.get("tool_calls"):
        return Shape(role, calls=as_json(calls), has_words=bool(content)), "", content
    if role != "assistant" or REASONING_END not in content:
        return Shape(role), "", content
    head, _, tail = content.partition(REASONING_END)
    opening = REASONING if head.startswith(REASONING) else ""
    inner, words = head[len(opening) :], tail.lstrip()
    before = opening + inner[: len(inner) - len(inner.lstrip())]
    reasoning = inner.strip()
    between = head[len(before) + len(reasoning) :] + REASONING_END + tail[: len(tail) - len(words)]
    return Shape(role, before, between), reasoning, words


class ChatTemplate:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._frames: dict[tuple[str, tuple[Shape, ...], bool, bool, str], Frame] = {}

    def frame(
        self, shapes: tuple[Shape, ...], *, ask: bool = False, thinking: bool = False, tools: str = ""
    ) -> Frame:
        """Return what stands around messages; with `ask`, it ends where the next answer begins. `tools` are
        JSON."""
        key = (str(self._tokenizer.chat_template), shapes, ask, thinking, tools)
        if key not in self._frames:
            self._frames[key] = self._render(shapes, ask, thinking, tools)
        return self._frames[key]

    def _render(self, shapes: tuple[Shape, ...], ask: bool, thinking: bool, tools: str) -> Frame:
        messages = [_placeholder(shape, number) for number, shape in enumerate(shapes)]
        rest = self._text(messages, ask, thinking, tools)
        if tools:
            self._require_tools(rest, messages, ask, thinking, tools)
        slots: list[Slot] = []
        for number, shape in enumerate(shapes):
            if not shape.has_words:
                before = self._asked(shapes[:number], rest, tools)
                slots.append(Slot(before))
                rest = rest[len(before) :]
                continue
            before, found, rest = rest.partition(f"@@{number}@@")
            if not found:
                raise RecipeError("the chat template leaves messages out; use another template")
            first, is_kept, second = before.partition(f"@@R{number}@@")
            slots.append(Slot(first, second) if is_kept else Slot(before))
        return Frame(tuple(slots), rest)

    def _text(self, messages: list[Message], ask: bool, thinking: bool, tools: str) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=ask,
                enable_thinking=thinking,
                tools=json.loads(tools) if tools else None,
            )
        except _FAULTS as error:
            roles = ", ".join(message["role"] for message in messages)
            raise RecipeError(f"the chat template refuses roles {roles}: {str(error)[:300]}") from error

    def _require_tools(
        self, text: str, messages: list[Message], ask: bool, thinking: bool, tools: str
    ) -> None:
        """Raise RecipeError where the template shows no tools, as those of many models do not."""
        names = [name_of(tool) for tool in json.loads(tools)]
        without = self._text(messages, ask, thinking, "")
        hidden = [name for name in names if text.count(name) <= without.count(name)]
        if hidden:
            raise RecipeError(
                f"the chat template of this model does not show the tool {hidden[0]!r}: the model would learn"
                " to call what it cannot see; use a model whose template has tools, such as Qwen3's"
            )

    def _asked(self, shapes: tuple[Shape, ...], rest: str, tools: str) -> str:
        """Return the text before an answer without words: what a model is given before it answers."""
        given = [
            self.frame(shapes, ask=True, thinking=thinking, tools=tools).end for thinking in (False, True)
        ]
        for text in sorted(given, key=len, reverse=True):
            if rest.startswith(text):
                return text
        raise RecipeError("cannot tell where a call of a tool begins in the chat template; use another model")


def _placeholder(shape: Shape, number: int) -> Message:
    """Return a message of this shape for the template."""
    if shape.between:
        return {"role": shape.role, "content": f"{shape.before}@@R{number}@@{shape.between}@@{number}@@"}
    message: Message = {"role": shape.role, "content": f"@@{number}@@" if shape.has_words else ""}
    if shape.calls:
        message["tool_calls"] = json.loads(shape.calls)
    return message | (json.loads(shape.result) if shape.result else {})
