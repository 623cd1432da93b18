"""The order of versions of Debian packages, as deb-version(7) has it. Pure."""

import re
from functools import cmp_to_key

_PART = re.compile(r"([^0-9]*)([0-9]*)")
_MAX_DIGITS = 64


def compare(one: str, other: str) -> int:
    """Return a negative number, 0, or a positive one, where `one` is older, the same, or newer."""
    epoch, upstream, revision = _split(one)
    other_epoch, other_upstream, other_revision = _split(other)
    order = epoch - other_epoch or _compare_part(upstream, other_upstream)
    return order or _compare_part(revision, other_revision)


KEY = cmp_to_key(compare)
"""Sorts versions, the oldest first."""


def _split(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon or not epoch.isdigit():
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    return int(epoch[:_MAX_DIGITS]), upstream if dash else rest, revision if dash else ""


def _compare_part(one: str, other: str) -> int:
    """Compare by turns what are no digits and what are, until they differ."""
    mine, theirs = _PART.findall(one), _PART.findall(other)
    length = max(len(mine), len(theirs))
    for text, number in zip(_filled(mine, length), _filled(theirs, length), strict=True):
        if (order := _compare_text(text[0], number[0])) or (order := _compare_digits(text[1], number[1])):
            return order
    return 0


def _filled(parts: list[tuple[str, str]], length: int) -> list[tuple[str, str]]:
    return parts + [("", "")] * (length - len(parts))


def _compare_digits(one: str, other: str) -> int:
    mine, theirs = one.lstrip("0"), other.lstrip("0")
    return len(mine) - len(theirs) or (mine > theirs) - (mine < theirs)


def _compare_text(one: str, other: str) -> int:
    mine, theirs = [*map(_weight, one), 0], [*map(_weight, other), 0]
    return (mine > theirs) - (mine < theirs)


def _weight(letter: str) -> int:
    """Order "~" before the end, and letters before everything else."""
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256
