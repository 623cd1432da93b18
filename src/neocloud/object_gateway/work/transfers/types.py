"""Types of transfers: their sides, their mark, unfinished uploads."""

from dataclasses import dataclass
from enum import StrEnum

from neocloud.messages.nebius.storage.v1 import TransferError
from neocloud.s3_client.types import EndpointError

MARK = "x-amz-meta-neocloud-transfer"
"""The header of objects that a transfer has written, with its id: others are not overwritten or deleted
unless the transfer may touch them."""


class Origin(StrEnum):
    SOURCE = "SOURCE"
    DESTINATION = "DESTINATION"


def message(error: EndpointError) -> TransferError:
    """Return the text of an error for the tenant."""
    return TransferError(origin=TransferError.Origin.Value(error.origin), code=error.code, message=error.text)


@dataclass(frozen=True)
class Upload:
    """An unfinished multipart upload in the destination."""

    key: str
    source_etag: str
    upload_id: str
    part_size: int
