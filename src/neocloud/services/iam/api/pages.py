"""Cuts a list that is at hand into pages, by id."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from neocloud.core import contract

Item = TypeVar("Item")
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


def page(
    items: Sequence[Item], size: int, token: str, *, scope: str, key: Callable[[Item], str]
) -> tuple[Sequence[Item], str]:
    """The asked-for page, ordered by `key`, and the token of the next one ("" when there is none)."""
    if size < 0:
        raise contract.bad_field("page_size", "must not be negative")
    after = contract.page_after(token, scope)
    rest = [item for item in sorted(items, key=key) if key(item) > after]
    found = rest[: min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)]
    has_more = len(rest) > len(found)
    return found, contract.page_token(key(found[-1]), scope) if has_more else ""
