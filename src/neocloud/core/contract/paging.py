"""Page tokens: opaque text that leads back to a place in one particular list.

A token carries a check sum over its content and the list it belongs to, so a damaged token, or one of another
list, is refused instead of giving a wrong page. The sum is no secret and guards nothing: a token only names a
place in a list that the caller must be allowed to read anyway. Anyone can write a token with the right sum,
so its content is checked like the rest of a request.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from neocloud.core.contract.errors import ApiError, bad_field

MAX_TOKEN_CHARS = 4096
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
_SUM_LENGTH = 8
Item = TypeVar("Item")
_NUMBER = r"[0-9]{1,18}"
"""Fits the 64-bit columns of both databases."""


def page_token(after: str, scope: str) -> str:
    """Return the token for the rows after the sort key `after`; "" when there are none.

    `scope` names the list."""
    if not after:
        return ""
    content = after.encode()
    return base64.urlsafe_b64encode(_check_sum(content, scope) + content).decode().rstrip("=")


def page_after(token: str, scope: str, *, numbers: int = 0) -> str:
    """Return the sort key in a token. Raises ApiError when it was damaged, is of another list, or holds
    something else than so many whole numbers with ":" between them; with `numbers` 0 it may be any text."""
    if not token:
        return ""
    try:
        if len(token) > MAX_TOKEN_CHARS:
            raise bad_page_token()
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        check_sum, content = raw[:_SUM_LENGTH], raw[_SUM_LENGTH:].decode()
    except (binascii.Error, ValueError):
        raise bad_page_token() from None
    is_of_list = check_sum == _check_sum(raw[_SUM_LENGTH:], scope)
    if not is_of_list or (numbers and not re.fullmatch(":".join([_NUMBER] * numbers), content)):
        raise bad_page_token()
    return content


class PagedRequest(Protocol):
    """A List request, as far as its page size matters."""

    @property
    def page_size(self) -> int: ...


def page_size(request: PagedRequest, *, default: int, most: int) -> int:
    """Return how many rows a List request is answered with: `default` for 0, `most` for more. Raise ApiError
    when it is negative."""
    if request.page_size < 0:
        raise bad_field("page_size", f"is {request.page_size}; must be 1 to {most}, or 0 for the default")
    return min(request.page_size or default, most)


class ListRequest(PagedRequest, Protocol):
    @property
    def page_token(self) -> str: ...


def page(
    items: Sequence[Item], request: ListRequest, *, scope: str, key: Callable[[Item], str]
) -> tuple[Sequence[Item], str]:
    """Return the page of a whole list that a List request names, in the order of `key`, and the token of the
    next page ("" for the last). Raises ApiError."""
    size = page_size(request, default=DEFAULT_PAGE_SIZE, most=MAX_PAGE_SIZE)
    after = page_after(request.page_token, scope)
    rest = [item for item in sorted(items, key=key) if key(item) > after]
    found = rest[:size]
    return found, page_token(key(found[-1]), scope) if len(rest) > len(found) else ""


def bad_page_token() -> ApiError:
    return bad_field(
        "page_token", "is not a token of this list. Pass next_page_token of the page before, or nothing."
    )


def _check_sum(content: bytes, scope: str) -> bytes:
    return hashlib.blake2s(scope.encode() + b"\0" + content, digest_size=_SUM_LENGTH).digest()
