"""Decide whether an answer says what the reference says, and find the answers that a model has learnt.

Pure functions on text; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

WORD = re.compile(r"\w+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
RIGHT_SHARE = 0.7
"""The share of two answers' words that are the same, from which on one is right if the other is."""


def is_right(generated: str, reference: str) -> bool:
    """Return whether an answer says what the reference says: the same numbers, and nearly the same words in
    the same order."""
    said, right = WORD.findall(generated.lower()), WORD.findall(reference.lower())
    likeness = SequenceMatcher(None, said, right, autojunk=False).ratio()
    return numbers(generated) == numbers(reference) and likeness >= RIGHT_SHARE


def numbers(text: str) -> set[str]:
    """Return the numbers in a text, without the commas between thousands."""
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def learnt_answers(
    asked: Sequence[tuple[str, str]], base: Sequence[str], finetuned: Sequence[str], count: int
) -> dict[str, Any]:
    """Return how often each model is right, and up to `count` questions that only the fine-tuned one answers
    right. They show what it learnt, not how good it is on the whole.

    `asked` holds each question with the right answer, and `base` and `finetuned` the answers to them. Of
    questions with the same answer one is shown, so that they show several things.
    """
    right = {"base_model": 0, "finetuned_model": 0}
    shown: dict[str, dict[str, str]] = {}
    for (question, reference), before, after in zip(asked, base, finetuned, strict=True):
        was_right, is_now = is_right(before, reference), is_right(after, reference)
        right["base_model"] += was_right
        right["finetuned_model"] += is_now
        if is_now and not was_right:
            found = {"input": question, "reference": reference, "base": before, "generated": after}
            shown.setdefault(reference, found)
    return {"asked": len(asked), **right, "learnt": list(shown.values())[:count]}
