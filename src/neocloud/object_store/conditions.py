"""Conditional requests, and which bytes a range is. Pure."""

from datetime import datetime

from neocloud.object_store.errors import (
    ConditionFailed,
    InvalidKey,
    InvalidRequest,
    KeyTooLong,
    NoSuchKey,
    NotModified,
    RangeNotSatisfiable,
)
from neocloud.object_store.types import (
    MAX_KEY_BYTES,
    MAX_PAGE,
    ByteRange,
    ObjectVersion,
    ReadConditions,
    WriteConditions,
)


def check_put(conditions: WriteConditions, latest: ObjectVersion | None) -> None:
    """`latest` is None where there is no object, or a delete marker. Raises ConditionFailed, NoSuchKey."""
    if conditions.if_match is not None and latest is None:
        raise NoSuchKey("There is no object that could match.")
    if latest is not None and conditions.if_none_match in ("*", latest.etag):
        raise ConditionFailed("There is an object already.", "If-None-Match")
    if latest is not None:
        check_delete(conditions, latest)


def check_delete(conditions: WriteConditions, found: ObjectVersion) -> None:
    """Deleting what does not exist succeeds, so there is nothing to check then. Raises ConditionFailed."""
    if conditions.if_match not in (None, "*", found.etag):
        raise ConditionFailed("The object has another ETag.", "If-Match")
    if conditions.if_size not in (None, found.size):
        raise ConditionFailed("The object has another size.", "x-amz-if-match-size")
    at = conditions.if_modified_at
    if at is not None and _seconds(at) != _seconds(found.modified_at):
        raise ConditionFailed("The object is of another time.", "x-amz-if-match-last-modified-time")


def check_read(conditions: ReadConditions, version: ObjectVersion) -> None:
    """Raises ConditionFailed, NotModified."""
    modified = _seconds(version.modified_at)
    if conditions.if_match:
        if not _matches(conditions.if_match, version):
            raise ConditionFailed("The object has another ETag.", "If-Match")
    elif conditions.if_unmodified_since is not None and modified > _seconds(conditions.if_unmodified_since):
        raise ConditionFailed("The object was changed since.", "If-Unmodified-Since")
    if conditions.if_none_match:
        if _matches(conditions.if_none_match, version):
            raise NotModified("The object has this ETag.", version)
    elif conditions.if_modified_since is not None and modified <= _seconds(conditions.if_modified_since):
        raise NotModified("The object was not changed since.", version)


def check_source(conditions: ReadConditions, version: ObjectVersion) -> None:
    """Check the source of a copy, where "not modified" is a failure as well. Raises ConditionFailed."""
    try:
        check_read(conditions, version)
    except NotModified as error:
        name = "If-None-Match" if conditions.if_none_match else "If-Modified-Since"
        raise ConditionFailed(str(error), name) from None


def check_source_range(range: ByteRange | None, size: int) -> None:
    """Check the range of a copy, which has to be whole within the source. Raises RangeNotSatisfiable."""
    if range is not None and range.last is not None and range.last >= size:
        raise RangeNotSatisfiable(f"The source has {size:,} bytes; the range ends behind them.", size)


def resolve(range: ByteRange | None, size: int) -> tuple[int, int]:
    """Return the first byte and the length. The last bytes of nothing are nothing. Raises
    RangeNotSatisfiable."""
    if range is None or (size == 0 and range.first is None and range.last):
        return 0, size
    if range.first is None:
        length = min(range.last or 0, size)
        if length == 0:
            raise RangeNotSatisfiable("The range selects no byte.", size)
        return size - length, length
    last = size - 1 if range.last is None else min(range.last, size - 1)
    if range.first > last:
        raise RangeNotSatisfiable(f"The object has {size:,} bytes.", size)
    return range.first, last - range.first + 1


def key_bytes(key: str) -> bytes:
    """Raises InvalidKey, KeyTooLong."""
    encoded = encode(key)
    if not encoded:
        raise InvalidKey("A key has at least one character.")
    if len(encoded) > MAX_KEY_BYTES:
        raise KeyTooLong(f"A key has at most {MAX_KEY_BYTES:,} bytes in UTF-8.")
    return encoded


def encode(text: str) -> bytes:
    """Encode a prefix, delimiter or marker. Raises InvalidKey."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidKey("Keys are text that can be encoded in UTF-8.") from None


def check_limit(limit: int) -> int:
    if limit < 0:
        raise InvalidRequest("A page cannot have less than nothing.")
    return min(limit, MAX_PAGE)


def _matches(etags: tuple[str, ...], version: ObjectVersion) -> bool:
    return "*" in etags or version.etag in etags


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())
