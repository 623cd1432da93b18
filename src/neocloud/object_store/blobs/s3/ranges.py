# pyright: strict
"""Bytes of an object, counted: an answer that has not exactly what it announces is a failure."""

import re

from neocloud.s3_client.answers import unreadable
from neocloud.s3_client.client import S3Bucket
from neocloud.s3_client.http import Answer

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


async def read_range(bucket: S3Bucket, key: str, first: int, length: int) -> bytes:
    """Return these bytes of an object, fewer where it ends. Raises EndpointError."""
    async with bucket.get(key, "", first, first + length - 1) as answer:
        expected = _announced(answer, first, length)
        if expected is None:
            raise unreadable(bucket.endpoint.origin, "other bytes than were asked for")
        found: list[bytes] = []
        received = 0
        async for chunk in answer.chunks():
            received += len(chunk)
            if received > expected:
                break
            found.append(chunk)
        if received != expected:
            raise unreadable(bucket.endpoint.origin, "another number of bytes than it announced")
        return b"".join(found)


def _announced(answer: Answer, first: int, length: int) -> int | None:
    """Return how many bytes follow; None: they are not those that were asked for."""
    if answer.status == 200:  # the range covers the whole object
        whole = answer.length
        return whole if first == 0 and whole is not None and whole <= length else None
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if answer.status != 206 or found is None:
        return None
    begin, last, total = (int(each) for each in found.groups())
    if begin != first or last != min(first + length, total) - 1:
        return None
    return last - begin + 1
