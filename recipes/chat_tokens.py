"""Encode conversations as token ids, with labels for those that the model should learn.

The chat template of the tokenizer decides what surrounds each message (`chat_frames.py`). So the exact
position of every assistant message is known, and only those tokens (with the token that ends the turn) get
labels; none where the message is marked as not to be learnt. Contents are text: a control token that stands
in one is encoded as its characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chat_frames import ChatTemplate, Frame, Shape, take_apart
from chat_messages import Conversation, Message, is_learnt, tools_of
from recipe_errors import RecipeError
from tool_calls import as_json, name_of

IGNORED = -100  # the label that PyTorch's cross entropy leaves out
CONTEXT, LEARNT, CUT = "context", "learnt", "cut"
"""The kinds of text in a row: read by the model, learnt by it, or left out since the row is full."""


@dataclass(frozen=True)
class Piece:
    text: str
    is_learnt: bool = False
    is_content: bool = False
    """Whether it is of a message, not of the template."""


Tokens = tuple[list[int], list[int]]  # ids, and where each starts in the text


def load_tokenizer(model: str) -> Any:
    """Return the tokenizer of a local folder or a hub id such as `Qwen/Qwen3-8B`."""
    from transformers import AutoTokenizer  # noqa: PLC0415  token_report.py does without

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
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
        self._template = ChatTemplate(tokenizer)
        added = tokenizer.added_tokens_decoder.values()
        self._added = sorted({str(token) for token in added} - {""}, key=len, reverse=True)
        control = sorted({str(token) for token in added if token.special} - {""}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, control)) or "(?!)")
        self._joins_parts: bool | None = None

    def encode(self, messages: list[Message]) -> Tokens:
        """Return token ids, and labels that are IGNORED outside the assistant's messages."""
        ids, labels, _, _ = self._labelled(messages)
        return ids, labels

    def spans(self, messages: list[Message], context: int) -> Iterator[tuple[str, str]]:
        """Yield the text that the model reads, in parts: CONTEXT, LEARNT, or CUT behind that many tokens."""
        ids, labels, starts, text = self._labelled(messages)
        kinds = [LEARNT if label != IGNORED else CONTEXT for label in labels[:context]]
        kinds += [CUT] * (len(ids) - len(kinds))
        begin = 0
        for at, kind in enumerate(kinds):
            if at + 1 == len(kinds) or kinds[at + 1] != kind:
                end = starts[at + 1] if at + 1 < len(kinds) else len(text)
                if end > begin:
                    yield text[begin:end], kind
                begin = end

    def _labelled(self, messages: list[Message]) -> tuple[list[int], list[int], list[int], str]:
        """Return token ids, labels, where each token begins, and the text."""
        pieces = self._pieces(messages)
        ids, starts = self._encoded(messages, pieces)
        spans, labels, current = _learnt_spans(pieces), [], 0
        for token, start in zip(ids, starts, strict=True):
            while current < len(spans) and start >= spans[current][1]:
                current += 1
            is_in_span = current < len(spans) and start >= spans[current][0]
            labels.append(token if is_in_span else IGNORED)
        if labels:
            labels[0] = IGNORED  # nothing precedes it, also when conversations are packed
        return ids, labels, starts, _joined(pieces)

    def _encoded(self, messages: list[Message], pieces: list[Piece]) -> Tokens:
        """Return the token ids of the pieces, and where each token begins."""
        self._refuse_control_in_calls(messages)
        contents = (piece.text for piece in pieces if piece.is_content)
        control = next((found[0] for text in contents if (found := self._control.search(text))), "")
        if control and not self._can_join_parts():
            raise RecipeError(
                f"the conversation that begins {messages[0]['content']!r:.60} holds {control!r}, which this"
                " model's tokenizer reads as a control token; remove it"
            )
        return self._in_parts(pieces) if control else self._whole(_joined(pieces))

    def _refuse_control_in_calls(self, messages: list[Message]) -> None:
        """Refuse control tokens in what the template writes itself; those in contents become letters."""
        calls = (message.get("tool_calls") for message in messages)
        for given in (tools_of(messages), *calls):
            if given and (found := self._control.search(as_json(given))):
                raise RecipeError(
                    f"the tools or their calls hold {found[0]!r}, which this model's tokenizer reads as a"
                    " control token; remove it"
                )

    def prompt(self, messages: list[Message], *, thinking: bool = False) -> str:
        """Return the text that the next assistant message follows; with `thinking`, it reasons first."""
        shapes = tuple(take_apart(message)[0] for message in messages)
        frame = self._template.frame(shapes, ask=True, thinking=thinking, tools=_tools(messages))
        return _joined(self._around(messages, frame, [False] * len(messages)))

    def answer(self, messages: list[Message]) -> str:
        """Return the last answer as the model writes it, with calls of tools and without its end."""
        if not messages[-1].get("tool_calls"):
            return messages[-1]["content"]
        shapes = tuple(take_apart(message)[0] for message in messages)
        frame = self._template.frame(shapes, tools=_tools(messages))
        is_last = [number == len(messages) for number in range(1, len(messages) + 1)]
        pieces = self._around(messages, frame, is_last)
        text = _joined(piece for piece in pieces if piece.is_learnt)
        return text.removesuffix(self.turn_end()).strip()

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """Return the token ids of the text that the next assistant message follows."""
        shapes = tuple(take_apart(message)[0] for message in messages)
        frame = self._template.frame(shapes, ask=True, tools=_tools(messages))
        return self._encoded(messages, list(self._around(messages, frame, [False] * len(messages))))[0]

    def parted(self, prompt: Conversation, answer: Message) -> tuple[list[int], list[int]]:
        """Return the token ids of a prompt and of its answer, which ends where the model ends its turn."""
        whole = Conversation([*({**each, "weight": 0} for each in prompt), answer], prompt.tools)
        ids, labels, _, _ = self._labelled(whole)
        places = [place for place, label in enumerate(labels) if label != IGNORED]
        return ids[: places[0]], ids[places[0] : places[-1] + 1]

    def turn_end(self) -> str:
        """Return the token that closes an assistant message ("" if the template has none)."""
        return self._leading_added(self._template.frame((Shape("user"), Shape("assistant"))).end).strip()

    def _pieces(self, messages: list[Message]) -> list[Piece]:
        shapes = tuple(take_apart(message)[0] for message in messages)
        is_thinking = any(shape.between for shape in shapes)
        frame = self._template.frame(shapes, thinking=is_thinking, tools=_tools(messages))
        places = enumerate(zip(shapes, frame.slots, strict=True))
        cut = [at for at, (shape, slot) in places if shape.between and slot.after_reasoning is None]
        if cut and cut[-1] == len(messages) - 1:
            raise RecipeError(
                "the chat template cuts the reasoning (<think>) out of the last answer, so it cannot be"
                " learnt; remove it from the data, or use another model"
            )
        first = cut[-1] + 1 if cut else 0  # an answer without its reasoning is no example of how to answer
        learnt = [at >= first and is_learnt(message) for at, message in enumerate(messages)]
        return list(self._around(messages, frame, learnt))

    def _around(self, messages: list[Message], frame: Frame, learnt: list[bool]) -> Iterator[Piece]:
        """Yield the messages with the template around them. A learnt answer has its end token."""
        parts = [take_apart(message) for message in messages]
        follows_learnt, calls = False, ""
        for at, ((shape, reasoning, words), slot) in enumerate(zip(parts, frame.slots, strict=True)):
            called, before = self._split_calls(calls, slot.before)
            yield Piece(called, follows_learnt)
            end = self._leading_added(before) if follows_learnt else ""
            before = before[len(end) :]
            yield Piece(end, True)
            if slot.after_reasoning is None:
                yield Piece(before)
            else:
                asked = self._asked([shape for shape, _, _ in parts[:at]], before)
                yield Piece(before[:asked])
                yield Piece(before[asked:], learnt[at])
                yield Piece(reasoning, learnt[at], True)
                yield Piece(slot.after_reasoning, learnt[at])
            yield Piece(words, learnt[at], True)
            follows_learnt, calls = learnt[at], shape.calls
        called, rest = self._split_calls(calls, frame.end)
        yield Piece(called, follows_learnt)
        end = self._leading_added(rest) if follows_learnt else ""
        yield Piece(end, True)
        yield Piece(rest[len(end) :])

    def _split_calls(self, calls: str, text: str) -> tuple[str, str]:
        """Split the text behind an answer into its calls, and what begins with the end of the turn."""
        if not calls:
            return "", text
        place = text.find(self.turn_end() or "\0")
        if place < 0:
            raise RecipeError(
                "cannot tell where a call of a tool ends in the chat template; use another model"
            )
        if hidden := [name_of(call) for call in json.loads(calls) if name_of(call) not in text[:place]]:
            raise RecipeError(
                f"the chat template of this model leaves out the call of {hidden[0]!r}: it cannot be learnt;"
                " use a model whose template has tools, such as Qwen3's"
            )
        return text[:place], text[place:]

    def _asked(self, shapes: Iterable[Shape], before: str) -> int:
        """Return how much of the text before an answer's reasoning the model is given: the rest it writes."""
        given = self._template.frame(tuple(shapes), ask=True, thinking=True).end
        end = self._leading_added(given)  # `before` is without the token that ends a learnt answer
        found = next((text for text in (given, given[len(end) :]) if before.startswith(text)), before)
        return len(found)

    def _leading_added(self, text: str) -> str:
        """Return the token at the beginning; where it is the one that ends a text, with space before it."""
        rest, end = text.lstrip(), self.tokenizer.eos_token
        if end and rest.startswith(end):
            return text[: len(text) - len(rest) + len(end)]
        return next((token for token in self._added if text.startswith(token)), "")

    def _whole(self, text: str) -> Tokens:
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False
        )
        return encoded["input_ids"], [start for start, _ in encoded["offset_mapping"]]

    def _in_parts(self, pieces: list[Piece]) -> Tokens:
        """Return the tokens with control tokens in contents read as text: what stands between the template's
        own is encoded part by part."""
        ids, starts, position = list[int](), list[int](), 0
        for text, is_control in _merged(self._split(pieces)):
            if is_control:
                ids.append(self.tokenizer.convert_tokens_to_ids(text))
                starts.append(position)
            else:
                encoded = self.tokenizer(
                    text,
                    add_special_tokens=False,
                    return_offsets_mapping=True,
                    return_attention_mask=False,
                    split_special_tokens=True,
                )
                ids += encoded["input_ids"]
                starts += [position + start for start, _ in encoded["offset_mapping"]]
            position += len(text)
        return ids, starts

    def _split(self, pieces: list[Piece]) -> Iterator[tuple[str, bool]]:
        """Yield text, and the control tokens of the template."""
        for piece in pieces:
            position = 0
            for found in () if piece.is_content else self._control.finditer(piece.text):
                yield piece.text[position : found.start()], False
                yield found[0], True
                position = found.end()
            yield piece.text[position:], False

    def _can_join_parts(self) -> bool:
        """Return whether parts have the tokens that they have in the whole: not where a tokenizer marks the
        beginning of each."""
        if self._joins_parts is None:
            texts = ("Is it  open?", "Yes, from 9\nto 5.", "And on Sunday?", "No.")
            chat = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
            pieces = self._pieces(chat)
            self._joins_parts = self._in_parts(pieces)[0] == self._whole(_joined(pieces))[0]
        return self._joins_parts


def _tools(messages: list[Message]) -> str:
    """Return the tools of a conversation as JSON; "" for none."""
    tools = tools_of(messages)
    return as_json(tools) if tools else ""


def _joined(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _merged(parts: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Yield the parts with texts that follow each other as one."""
    text = ""
    for part, is_control in parts:
        if is_control:
            if text:
                yield text, False
            yield part, True
        text = "" if is_control else text + part
    if text:
        yield text, False


def _learnt_spans(pieces: list[Piece]) -> list[tuple[int, int]]:
    spans, position = [], 0
    for piece in pieces:
        if piece.is_learnt:
            spans.append((position, position + len(piece.text)))
        position += len(piece.text)
    return spans
