"""Requests that count as the last access of an object, by nebius.storage.v1.LastAccessConfiguration."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MOST_OF_AN_AGENT = 1000
"""So many characters of a user agent are compared: a bucket may name 10,000 texts to look for."""


class AccessMethod(StrEnum):
    """The requests that read an object; the names are those of the contract."""

    GET_OBJECT = "GET_OBJECT"
    HEAD_OBJECT = "HEAD_OBJECT"
    GET_OBJECT_TAGGING = "GET_OBJECT_TAGGING"
    COPY_OBJECT = "COPY_OBJECT"
    """Reads the source of the copy."""
    UPLOAD_PART_COPY = "UPLOAD_PART_COPY"


@dataclass(frozen=True)
class AccessCondition:
    is_included: bool
    methods: tuple[AccessMethod, ...] = ()
    """(): all."""
    user_agents: tuple[str, ...] = ()
    """The user agent has to contain one of them; (): any will do."""


def counts(conditions: Sequence[AccessCondition], method: AccessMethod, user_agent: str) -> bool:
    """Return whether a read counts: the first condition that matches it decides; without one it counts."""
    agent = user_agent[:MOST_OF_AN_AGENT]
    for each in conditions:
        if each.methods and method not in each.methods:
            continue
        if not each.user_agents or any(text in agent for text in each.user_agents):
            return each.is_included
    return True
