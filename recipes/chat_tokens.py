"""Encode conversations as token ids, with labels for those that the model should learn.

The chat template of the tokenizer decides what surrounds each message. It is rendered once per
order of roles, with placeholders for the contents; the text between the placeholders is then
reused for every conversation of that shape. So the exact position of every assistant message is
known, and only those tokens (with the token that ends the turn) get labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer

from conversations import Conversation
from recipe_errors import RecipeError

IGNORED = -100  # the label that PyTorch's cross entropy leaves out

Piece = tuple[str, bool]  # text, and whether it is the assistant's


def load_tokenizer(model: str) -> Any:
    """Return the tokenizer of a local folder or a hub id such as `Qwen/Qwen3-8B`."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        kind = "folder" if Path(model).exists() else "neither a folder here nor a reachable hub id"
        first_line = (str(error).splitlines() or [""])[0]
        raise RecipeError(f"{model}: {kind}; cannot load a tokenizer ({first_line})") from error
    if not tokenizer.chat_template:
        raise RecipeError(
            f"{model}: the tokenizer has no chat template; use a chat model, or put a"
            " chat_template.jinja into its folder"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


class ChatEncoder:
    """An encoder of conversations for one tokenizer; build it once per process."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._frames: dict[tuple[tuple[str, ...], bool], list[str]] = {}
        self._special = sorted(
            {str(token) for token in tokenizer.added_tokens_decoder.values()} - {""},
            key=len,
            reverse=True,
        )

    def encode(self, messages: Conversation) -> tuple[list[int], list[int]]:
        """Return token ids, and labels that are IGNORED outside the assistant's messages."""
        pieces = self._pieces(messages)
        encoded = self.tokenizer(
            "".join(text for text, _ in pieces),
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )
        spans = _assistant_spans(pieces)
        ids, labels, current = encoded["input_ids"], [], 0
        for token, (start, _) in zip(ids, encoded["offset_mapping"], strict=True):
            while current < len(spans) and start >= spans[current][1]:
                current += 1
            spoken = current < len(spans) and start >= spans[current][0]
            labels.append(token if spoken else IGNORED)
        if labels:
            labels[0] = IGNORED  # nothing precedes it, also when conversations are packed
        return ids, labels

    def prompt(self, messages: Conversation) -> str:
        """Return the text that the next assistant message follows."""
        frame = self._frame(tuple(message["role"] for message in messages), True)
        contents = [message["content"] for message in messages]
        return "".join(a + b for a, b in zip(frame, [*contents, ""], strict=True))

    def turn_end(self) -> str:
        """Return the special token that closes an assistant message ('' if the template has none)."""
        return self._leading_special(self._frame(("user", "assistant"), False)[-1])

    def _pieces(self, messages: Conversation) -> list[Piece]:
        frame = self._frame(tuple(message["role"] for message in messages), False)
        pieces: list[Piece] = [(frame[0], False)]
        for message, after in zip(messages, frame[1:], strict=True):
            spoken = message["role"] == "assistant"
            end = self._leading_special(after) if spoken else ""
            pieces += [(message["content"] + end, spoken), (after[len(end) :], False)]
        return pieces

    def _leading_special(self, text: str) -> str:
        return next((token for token in self._special if text.startswith(token)), "")

    def _frame(self, roles: tuple[str, ...], ask: bool) -> list[str]:
        key = (roles, ask)
        if key not in self._frames:
            self._frames[key] = self._render_frame(roles, ask)
        return self._frames[key]

    def _render_frame(self, roles: tuple[str, ...], ask: bool) -> list[str]:
        marks = [f"@@{number}@@" for number in range(len(roles))]
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        try:
            rest = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=ask, enable_thinking=False
            )
        except jinja2.TemplateError as error:
            raise RecipeError(f"the chat template refuses roles {', '.join(roles)}: {error}") from error
        frame = []
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found:
                raise RecipeError("the chat template leaves messages out; use another template")
            frame.append(before)
        return [*frame, rest]


def _assistant_spans(pieces: list[Piece]) -> list[tuple[int, int]]:
    spans, position = [], 0
    for text, spoken in pieces:
        if spoken:
            spans.append((position, position + len(text)))
        position += len(text)
    return spans
