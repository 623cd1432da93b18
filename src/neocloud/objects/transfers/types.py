# pyright: strict
"""What transfers are made of: endpoints, listed objects, what goes wrong."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from neocloud.messages.nebius.storage.v1 import TransferError

MARK = "x-amz-meta-neocloud-transfer"
"""The header of objects that a transfer has written, with its id: others are not overwritten or deleted
unless the transfer may touch them."""
_MOST_CODE, _MOST_MESSAGE = 64, 300


class Origin(StrEnum):
    SOURCE = "SOURCE"
    DESTINATION = "DESTINATION"


class EndpointError(Exception):
    """What an endpoint answered, or that it did not, with words for the tenant."""

    def __init__(
        self, origin: Origin, code: str, message: str, *, status: int = 0, is_transient: bool = False
    ) -> None:
        """`is_transient`: the same request may succeed later."""
        self.code, self.text = _printable(code, _MOST_CODE), _printable(message, _MOST_MESSAGE)
        super().__init__(f"{self.code}: {self.text}")
        self.origin, self.status, self.is_transient = origin, status, is_transient

    def message(self) -> TransferError:
        return TransferError(
            origin=TransferError.Origin.Value(self.origin), code=self.code, message=self.text
        )


def _printable(text: str, most: int) -> str:
    """Return text of an endpoint as it may be shown: it is hostile."""
    return "".join(each if each.isprintable() else " " for each in text[:most]).strip()


@dataclass(frozen=True)
class Endpoint:
    """A bucket at an S3 endpoint, and who asks."""

    origin: Origin
    url: str
    """Without a slash at its end."""
    region: str
    bucket: str
    access_key_id: str = ""
    """"": requests are not signed."""
    secret: str = field(default="", repr=False)
    is_own: bool = False
    """It is this object gateway."""


@dataclass(frozen=True)
class Listed:
    """An object in a list."""

    key: str
    """Without the prefix of the transfer."""
    size: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True)
class Upload:
    """An unfinished multipart upload in the destination."""

    key: str
    source_etag: str
    upload_id: str
    part_size: int
