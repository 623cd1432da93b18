"""Types of S3 endpoints, their lists and their errors."""

from dataclasses import dataclass, field
from datetime import datetime

_MOST_CODE, _MOST_MESSAGE = 64, 300


class EndpointError(Exception):
    """An endpoint's error, or its silence, in words."""

    def __init__(
        self, origin: str, code: str, message: str, *, status: int = 0, is_transient: bool = False
    ) -> None:
        """`is_transient`: the same request may succeed later."""
        self.code, self.text = _printable(code, _MOST_CODE), _printable(message, _MOST_MESSAGE)
        super().__init__(f"{self.code}: {self.text}")
        self.origin, self.status, self.is_transient = origin, status, is_transient


def _printable(text: str, most: int) -> str:
    """Return text of an endpoint as it may be shown: it is hostile."""
    return "".join(each if each.isprintable() else " " for each in text[:most]).strip()


@dataclass(frozen=True)
class Endpoint:
    """A bucket at an S3 endpoint, and the credentials for it."""

    origin: str
    """The endpoint among several, for its errors."""
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
    """Without the prefix that was asked for."""
    size: int
    etag: str
    modified_at: datetime
