"""Pages of usage.

Usage is computed for each page again, so a token keeps the window too: usage of a resource that is still
running neither moves nor grows between two pages.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from neocloud.core import contract
from neocloud.core.usage import CountedUsage, UsageRecord

Record = UsageRecord | CountedUsage

MAX_PAGE_SIZE = 1000


@dataclass(frozen=True)
class Window:
    start: datetime
    end: datetime


@dataclass(frozen=True)
class PageCursor:
    """The position of a page: after this record of this window."""

    window: Window
    after: tuple[int, str, str, str, str]

    def token(self, request: Any) -> str:
        content = [_seconds(self.window.start), _seconds(self.window.end), *self.after]
        return contract.page_token(json.dumps(content), _list_of(request))


def read_cursor(request: Any) -> PageCursor | None:
    """Return the cursor in the request's token, None for the first page.

    Raise ApiError for the token of another list.
    """
    content = contract.page_after(request.page_token, _list_of(request))
    if not content:
        return None
    try:
        start, end, number, *names = json.loads(content)
        window = Window(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))
        first, second, third, fourth = names
    except (ValueError, TypeError, OverflowError, OSError, RecursionError):
        raise contract.bad_page_token() from None
    if type(number) is not int or not all(isinstance(name, str) for name in names):
        raise contract.bad_page_token()
    return PageCursor(window, (number, first, second, third, fourth))


def page(
    records: Sequence[Record], request: Any, window: Window, cursor: PageCursor | None
) -> tuple[Sequence[Record], str]:
    """Return a page of these sorted records, and the token of the next one. Size 0 means all records."""
    rest = [record for record in records if cursor is None or key(record) > cursor.after]
    size = min(request.page_size, MAX_PAGE_SIZE) or len(rest)
    found = rest[:size]
    return found, PageCursor(window, key(found[-1])).token(request) if len(rest) > size else ""


def key(record: Record) -> tuple[int, str, str, str, str]:
    """Which orders all records, and tells them apart: a model has several payers, and prices."""
    price = str(record.unit_price) if isinstance(record, CountedUsage) else ""
    return _seconds(record.start), record.resource_id, record.sku, record.parent_id, price


def _list_of(request: Any) -> str:
    asked = (request.start.ToJsonString(), request.end.ToJsonString())
    return f"usage:{request.parent_id}:{':'.join(asked)}"


def _seconds(at: datetime) -> int:
    """Usage is in whole seconds."""
    return int(at.timestamp())
