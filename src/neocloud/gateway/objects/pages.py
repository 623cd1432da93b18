"""Lists as OpenAI's clients page through them: `after` an id, `limit`, `order`, and `has_more`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from neocloud.gateway.errors import OpenAiError, bad_request

T = TypeVar("T")


@dataclass(frozen=True)
class Page:
    after: str
    limit: int
    newest_first: bool


def page(query: Mapping[str, str], *, limit: int, most: int) -> Page:
    """From the query of a request."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request(f"Invalid order {order!r}. Use asc or desc.", param="order")
    asked = query.get("limit", str(limit))
    if not asked.isdecimal() or not 1 <= int(asked) <= most:
        raise bad_request(f"Invalid limit {asked!r}. Use a number from 1 to {most}.", param="limit")
    return Page(query.get("after", ""), int(asked), order == "desc")


def listed(items: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def cut(items: Sequence[T], asked: Page, id_of: Callable[[T], str]) -> tuple[Sequence[T], bool]:
    """The page of a list that is all there, in order already; and whether more follow."""
    start = 0
    if asked.after:
        start = next((n for n, item in enumerate(items, 1) if id_of(item) == asked.after), -1)
        if start < 0:
            raise unknown_after(asked.after)
    return items[start : start + asked.limit], len(items) > start + asked.limit


def unknown_after(asked: str) -> OpenAiError:
    return bad_request(f"Invalid after {asked!r}: this list has no such entry.", param="after")
