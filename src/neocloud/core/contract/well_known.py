"""Times and Any values in the contract's own pool, which the stock classes do not belong to."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from neocloud.core.contract.registry import message

if TYPE_CHECKING:
    from google.protobuf.any_pb2 import Any as PackedMessage
    from google.protobuf.timestamp_pb2 import Timestamp

_TYPE_URL = "type.googleapis.com/"


def timestamp(moment: datetime) -> "Timestamp":
    """Return the Timestamp of an aware datetime."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; use datetimes in UTC.")
    result = message("google.protobuf.Timestamp")()
    result.FromDatetime(moment)
    return result


def to_datetime(value: "Timestamp") -> datetime:
    """Return the aware datetime in UTC of a Timestamp; nanoseconds are cut to microseconds."""
    return value.ToDatetime(tzinfo=UTC)


def pack(value: Message) -> "PackedMessage":
    """Return the message in a google.protobuf.Any."""
    return message("google.protobuf.Any")(
        type_url=_TYPE_URL + value.DESCRIPTOR.full_name, value=value.SerializeToString()
    )


def unpack(packed: "PackedMessage") -> Any:
    """Return the message in a google.protobuf.Any. Raise LookupError when the contract lacks its type."""
    return message(packed.type_url.rpartition("/")[2]).FromString(packed.value)
