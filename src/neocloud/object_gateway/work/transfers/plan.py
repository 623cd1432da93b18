"""Plan an iteration: list both buckets side by side, and decide on each key."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from neocloud.s3_client.answers import Page
from neocloud.s3_client.client import S3Bucket
from neocloud.s3_client.types import EndpointError, Listed

_MOST_EMPTY_PAGES = 1000
"""One after the other, of an endpoint that never ends its list."""


class Action(StrEnum):
    SKIP = "SKIP"
    COPY = "COPY"
    OVERWRITE = "OVERWRITE"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Pair:
    """A key, as it is in the source and in the destination."""

    key: str
    """Without prefixes."""
    source: Listed | None
    destination: Listed | None


@dataclass(frozen=True)
class Strategy:
    replaces_older: bool
    deletes: bool

    def action(self, pair: Pair) -> Action:
        if pair.source is None:
            return Action.DELETE if self.deletes else Action.SKIP
        if pair.destination is None:
            return Action.COPY
        is_newer = self.replaces_older and _is_newer(pair.source, pair.destination)
        return Action.OVERWRITE if is_newer else Action.SKIP


def _is_newer(source: Listed, destination: Listed) -> bool:
    """Return whether the source was written later. Where an endpoint tells whole seconds, the end of the
    second counts: a copy too many, instead of a change that is never seen."""
    modified = source.modified_at
    if not modified.microsecond:
        modified += timedelta(microseconds=999_999)
    return modified > destination.modified_at


Retry = Callable[[Callable[[], Awaitable[Page]]], Awaitable[Page]]
"""Calls this, again where the endpoint may answer later."""


async def listed(bucket: S3Bucket, prefix: str, after: str, retry: Retry) -> AsyncIterator[Listed]:
    """Yield the objects below a prefix, by key. Raises EndpointError where they come in another order."""
    start, token, empty = prefix + after if after else "", "", 0
    last = after.encode() if after else None
    while True:
        page = await retry(lambda token=token: bucket.list(prefix, start, token))
        for each in page.objects:
            key = each.key.encode()
            if last is not None and key <= last:
                raise _out_of_order(bucket.endpoint.origin)
            last = key
            yield each
        token, empty = page.next_token, 0 if page.objects else empty + 1
        if not token:
            return
        if empty > _MOST_EMPTY_PAGES:
            raise _out_of_order(bucket.endpoint.origin)


def _out_of_order(origin: str) -> EndpointError:
    return EndpointError(
        origin, "InvalidResponse", "The endpoint does not list objects in the order of their keys."
    )


async def pairs(source: AsyncIterator[Listed], destination: AsyncIterator[Listed]) -> AsyncIterator[Pair]:
    """Yield all keys of both lists in order."""
    left, right = await anext(source, None), await anext(destination, None)
    while left is not None or right is not None:
        first = min(each.key.encode() for each in (left, right) if each is not None).decode()
        in_source = left if left is not None and left.key == first else None
        in_destination = right if right is not None and right.key == first else None
        yield Pair(first, in_source, in_destination)
        left = await anext(source, None) if in_source is not None else left
        right = await anext(destination, None) if in_destination is not None else right
