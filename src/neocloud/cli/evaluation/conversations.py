"""Test conversations from a JSONL file: the questions drawn from them, as in the recipe, and their
perplexity.

The model server renders a whole conversation and returns the text and log-probability of each token
(`prompt_logprobs`). The tokens of the assistant are found by the position of the messages in that text.
"""

import json
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from neocloud.client.errors import ClientError
from neocloud.core.json_values import as_list, as_object, is_object

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


def read_conversations(path: Path, limit: int, seed: int, name: str = "") -> list[Conversation]:
    """Read all conversations, or `limit` drawn at random. Raises ClientError that names the invalid line, and
    the file; `name` is that of what the file is a copy of."""
    shown = name or str(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError("INVALID_ARGUMENT", f"{shown} cannot be read: {error}") from error
    found = [
        _conversation(line, f"{shown}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not found:
        raise ClientError(
            "INVALID_ARGUMENT", f"{shown} contains no conversation", "Give the test part of your data"
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
    messages = as_list(as_object(record).get("messages"))
    if not messages:
        raise _bad(where, "'messages' must be a list with at least one message")
    found = [_message(each, f"{where}, message {number}") for number, each in enumerate(messages, 1)]
    turns = [each["role"] for each in found][found[0]["role"] == "system" :]
    if "assistant" not in turns or turns != [ROLES[1 + number % 2] for number in range(len(turns))]:
        raise _bad(where, "roles must be an optional system, then user and assistant in turn")
    return found


def _message(message: object, where: str) -> dict[str, str]:
    if not is_object(message) or message.get("role") not in ROLES:
        raise _bad(where, f"the role must be one of {', '.join(ROLES)}")
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        raise _bad(where, "the content is missing")
    return {"role": str(message["role"]), "content": content.strip()}


def _bad(where: str, why: str) -> ClientError:
    return ClientError("INVALID_ARGUMENT", f"{where}: {why}", "Correct the line or remove it")


class NoLikelihood(Exception):
    """The answer lacks log-probabilities; the message says why."""


@dataclass(frozen=True)
class Token:
    text: str
    log_probability: float | None
    """None for the first token, which nothing precedes."""


@dataclass
class Loss:
    """Sum of the loss over conversations."""

    total: float = 0.0
    tokens: int = 0

    @property
    def perplexity(self) -> float | None:
        return math.exp(min(self.total / self.tokens, 700)) if self.tokens else None

    def add(self, conversation: Conversation, tokens: Sequence[Token], context: int) -> None:
        """Add the conversation's assistant tokens among the first `context`."""
        labelled = set(assistant_tokens(conversation, tokens))
        for place, token in enumerate(tokens[:context]):
            if place in labelled and token.log_probability is not None:
                self.total -= token.log_probability
                self.tokens += 1


def prompt_tokens(answer: object) -> list[Token]:
    """Return the tokens of a chat completion with `prompt_logprobs`. Raises NoLikelihood."""
    places = as_list(as_object(answer).get("prompt_logprobs"))
    ids = as_list(as_object(answer).get("prompt_token_ids"))
    if not places:
        raise NoLikelihood("the model server returns no log-probabilities of prompts")
    found: list[Token] = []
    for number, place in enumerate(places):
        if place is None:
            found.append(Token("", None))
            continue
        entries = as_object(place)
        own = entries.get(str(ids[number])) if ids else next(iter(entries.values()))
        value = as_object(own).get("logprob")
        if not is_object(own) or not isinstance(value, int | float):
            raise NoLikelihood(f"the model server omits the prompt's own token at {number}")
        found.append(Token(str(own.get("decoded_token") or ""), value))
    return found


def assistant_tokens(conversation: Conversation, tokens: Sequence[Token]) -> Iterator[int]:
    """Iterate over the indexes of the assistant's tokens, including each turn's closing token."""
    starts = [0, *accumulate(len(token.text) for token in tokens)]
    text, position = "".join(token.text for token in tokens), 0
    for message in conversation:
        found = _pattern(message["content"]).search(text, position)
        if found is None:
            raise NoLikelihood("the model's chat template changes or omits messages")
        position = found.end()
        if message["role"] == "assistant":
            yield from _spoken(starts, tokens, found.start(), found.end())


def _spoken(starts: Sequence[int], tokens: Sequence[Token], begin: int, end: int) -> Iterator[int]:
    place = -1
    for place in (number for number in range(len(tokens)) if begin <= starts[number] < end):
        yield place
    after = place + 1
    if 0 < after < len(tokens) and tokens[after].text.strip():
        yield after


def _pattern(content: str) -> re.Pattern[str]:
    """Return a pattern of the content in which non-ASCII text matches any non-ASCII text.

    The bytes of one character may be split into several tokens, shown as replacement characters.
    """
    parts = re.split(r"[^\x00-\x7f]+", content)
    return re.compile(r"[^\x00-\x7f]+".join(re.escape(part) for part in parts))
