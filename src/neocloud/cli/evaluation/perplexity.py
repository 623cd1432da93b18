"""Perplexity of the assistant's messages, from the log-probabilities of a prompt. Pure.

The model server renders the whole conversation and returns each token's text and log-probability
(`prompt_logprobs`). The assistant's tokens are found by the position of the messages in that text.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from neocloud.cli.evaluation.conversations import Conversation


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
    places = answer.get("prompt_logprobs") if isinstance(answer, dict) else None
    ids = answer.get("prompt_token_ids") if isinstance(answer, dict) else None
    if not places:
        raise NoLikelihood("the model server returns no log-probabilities of prompts")
    found = []
    for number, place in enumerate(places):
        if place is None:
            found.append(Token("", None))
            continue
        own = place.get(str(ids[number])) if ids else next(iter(place.values()))
        if own is None:
            raise NoLikelihood(f"the model server omits the prompt's own token at {number}")
        found.append(Token(own.get("decoded_token") or "", own["logprob"]))
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
