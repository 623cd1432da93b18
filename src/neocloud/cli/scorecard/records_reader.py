"""Reads records of a cloud for its scorecard, bounded in size and time; a service may give no answer."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from neocloud.cli.scorecard.cloud_facts import Records
from neocloud.client.connection import PAGE_SIZE, Client, items_field
from neocloud.client.errors import ClientError, ReleasesApart
from neocloud.core import contract
from neocloud.fleet.active.judge import plain

CALL_SECONDS = 15.0
WHOLE_SECONDS = 120.0
"""After so long nothing more is asked."""
MOST_ITEMS = 5000
"""Items of one list."""
LONGEST_REASON = 150
_T = TypeVar("_T")


class RecordsReader:
    """A reader that lists unreadable records in `unread`, with the reason, and incomplete ones in `cut`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ends = client.clock() + WHOLE_SECONDS
        self._has_answer = False
        self.unread: dict[Records, str] = {}
        self.cut: set[Records] = set()

    def read(self, records: Records, get: Callable[[], _T], otherwise: _T) -> _T:
        """Return what `get` reads, or `otherwise` and note why.

        Raises ClientError where that would be the same for all: no account is signed in, or no cloud answers.
        """
        try:
            return get()
        except ClientError as error:
            if error.code == "UNAUTHENTICATED" or isinstance(error, ReleasesApart):
                raise
            if not self._has_answer and error.code == "UNAVAILABLE" and not error.may_be_repeated:
                raise
            self.unread[records] = plain(error.message, LONGEST_REASON)
            return otherwise

    def list(
        self,
        records: Records,
        path: str,
        request: Mapping[str, object] | None = None,
        most: int = MOST_ITEMS,
    ) -> list[Any]:
        """Return at most so many items; none, and note why, where they cannot be read."""
        return self.read(records, lambda: self._pages(records, path, request or {}, most), [])

    def call(self, path: str, request: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Any:
        """Raises ClientError."""
        left = self._ends - self._client.clock()
        if left <= 0:
            raise ClientError(
                "DEADLINE_EXCEEDED", f"not asked: all others took {WHOLE_SECONDS:.0f} s together"
            )
        try:
            answer = self._client.call(
                path, request, timeout_seconds=min(left, CALL_SECONDS), headers=headers or {}
            )
        except ClientError as error:
            self._has_answer |= error.code != "UNAVAILABLE" or error.may_be_repeated
            raise
        self._has_answer = True
        return answer

    def _pages(self, records: Records, path: str, request: Mapping[str, object], most: int) -> "list[Any]":
        asked = dict(request)
        if "page_size" in contract.method(path).input.DESCRIPTOR.fields_by_name:
            asked["page_size"] = min(most, PAGE_SIZE)
        found: list[Any] = []
        for _ in range(-(-most // PAGE_SIZE)):
            response = self.call(path, asked)
            found += getattr(response, items_field(response.DESCRIPTOR))
            asked["page_token"] = getattr(response, "next_page_token", "")
            if not asked["page_token"] or len(found) >= most:
                break
        if asked["page_token"] or len(found) > most:
            self.cut.add(records)
        return found[:most]
