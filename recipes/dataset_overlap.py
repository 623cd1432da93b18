"""Find conversations that are in another data set, too.

Two are the same when their messages have the same roles and words, whatever their case and spaces. Of each
only a number of 64 bits is kept, so that a large data set needs little memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from chat_messages import Conversation
from conversations import BadRecords
from dataset_columns import GUESSES, choose_columns
from dataset_exchanges import read_conversations
from dataset_rows import open_table
from tool_calls import texts_of

MOST_PLACES = 5


@dataclass
class Known:
    """The conversations of a data set, and their questions."""

    conversations: set[int] = field(default_factory=set)
    questions: set[int] = field(default_factory=set)
    copies: int = 0
    """The number of conversations that occurred before."""

    def add(self, messages: Conversation, place: str = "") -> None:
        """Add a conversation; its place does not matter."""
        whole, asked = _numbers(messages)
        self.copies += whole in self.conversations
        self.conversations.add(whole)
        self.questions.add(asked)


@dataclass
class Overlap:
    """The conversations of a data set that are in the training data as well."""

    known: Known
    conversations: int = 0
    same: int = 0
    same_question: int = 0
    """The questions are the same, and an answer is not."""
    places: list[str] = field(default_factory=list)

    def add(self, messages: Conversation, place: str) -> None:
        whole, asked = _numbers(messages)
        self.conversations += 1
        if whole in self.known.conversations:
            self.same += 1
            if len(self.places) < MOST_PLACES:
                self.places.append(place)
        elif asked in self.known.questions:
            self.same_question += 1

    def lines(self) -> list[str]:
        found = list[str]()
        if self.same:
            found.append(
                f"{self.same} of {self.conversations} conversations are in the training data, too, first:"
                f" {', '.join(self.places)}; the evaluation will look better than the model is"
            )
        if self.same_question:
            found.append(
                f"{self.same_question} of {self.conversations} conversations ask what the training data ask,"
                " with another answer"
            )
        return found


def read_known(path: Path) -> Known:
    """Return the conversations of a file; those that cannot be used are left out."""
    bad, known = BadRecords(skip=True), Known()
    table = open_table(path, None, skip_bad=True)
    columns = choose_columns(table.columns, dict.fromkeys(GUESSES, None), [])
    for _, messages in read_conversations(table, columns, None, bad):
        known.add(messages)
    return known


def _numbers(messages: Conversation) -> tuple[int, int]:
    """Return a number for the conversation, and one for what the user says in it."""
    said = [
        (message["role"], " ".join(text.casefold().split()))
        for message in messages
        for text in texts_of(message)
    ]
    return _number(said), _number(each for each in said if each[0] == "user")


def _number(said: Iterable[tuple[str, str]]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for role, text in said:
        digest.update(f"{role}\0{text}\0".encode())
    return int.from_bytes(digest.digest(), "big")
