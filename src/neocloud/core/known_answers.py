"""Questions with known answers, by which the quality of a model is tested. Pure.

An answer is right when it has one of the known words, as a whole word in any case.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

LARGEST_FILE_BYTES = 256 << 10

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    question: Text
    answers: Annotated[list[Word], msgspec.Meta(min_length=1, max_length=16)]


Questions = Annotated[list[Question], msgspec.Meta(min_length=1, max_length=32)]


def parse_questions(content: bytes) -> Sequence[Question]:
    """Return the questions of a JSON file. Raises ValueError with the first thing that is wrong in it."""
    if len(content) > LARGEST_FILE_BYTES:
        raise ValueError(f"it has more than {LARGEST_FILE_BYTES:,} bytes")
    try:
        return msgspec.json.decode(content, type=Questions)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def is_right(said: str, answers: Iterable[str]) -> bool:
    """Return whether an answer has one of the words."""
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said, re.IGNORECASE) for word in answers)
