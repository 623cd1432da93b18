"""Render the chat template of a tokenizer with placeholders, and keep what stands between them.

The template is rendered once per order of roles. Reasoning in an answer (`<think>`) has a placeholder of its
own, since templates keep it in some places and cut it in others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jinja2

from chat_messages import Message
from recipe_errors import RecipeError

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
        self._frames: dict[tuple[str, tuple[Shape, ...], bool, bool], Frame] = {}

    def frame(self, shapes: tuple[Shape, ...], *, ask: bool = False, thinking: bool = False) -> Frame:
        """Return what stands around messages; with `ask`, it ends where the next answer begins."""
        key = (str(self._tokenizer.chat_template), shapes, ask, thinking)
        if key not in self._frames:
            self._frames[key] = self._render(shapes, ask, thinking)
        return self._frames[key]

    def _render(self, shapes: tuple[Shape, ...], ask: bool, thinking: bool) -> Frame:
        messages = [
            {"role": shape.role, "content": f"@@{number}@@"}
            if not shape.between
            else {"role": shape.role, "content": f"{shape.before}@@R{number}@@{shape.between}@@{number}@@"}
            for number, shape in enumerate(shapes)
        ]
        try:
            rest = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=ask, enable_thinking=thinking
            )
        except _FAULTS as error:
            roles = ", ".join(shape.role for shape in shapes)
            raise RecipeError(f"the chat template refuses roles {roles}: {str(error)[:300]}") from error
        slots: list[Slot] = []
        for number in range(len(shapes)):
            before, found, rest = rest.partition(f"@@{number}@@")
            if not found:
                raise RecipeError("the chat template leaves messages out; use another template")
            first, is_kept, second = before.partition(f"@@R{number}@@")
            slots.append(Slot(first, second) if is_kept else Slot(before))
        return Frame(tuple(slots), rest)
