"""Times and Any values in the contract's own pool, so that nobody reaches for the stock classes by habit."""

from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message

from neocloud.core.contract.registry import message

_TYPE_URL = "type.googleapis.com/"


def timestamp(moment: datetime) -> Any:
    """A Timestamp of an aware datetime."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; use datetimes in UTC.")
    result = message("google.protobuf.Timestamp")()
    result.FromDatetime(moment)
    return result


def to_datetime(value: Any) -> datetime:
    """The aware UTC datetime of a Timestamp; nanoseconds are cut to microseconds."""
    return value.ToDatetime(tzinfo=UTC)


def pack(value: Message) -> Any:
    """`value` in an Any."""
    return message("google.protobuf.Any")(
        type_url=_TYPE_URL + value.DESCRIPTOR.full_name, value=value.SerializeToString()
    )


def unpack(packed: Any) -> Any:
    """The message inside an Any; LookupError when the contract does not know its type."""
    return message(packed.type_url.rpartition("/")[2]).FromString(packed.value)
