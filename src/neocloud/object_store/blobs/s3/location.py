"""The location of a store's blobs in another S3 engine, and the key to it."""

import configparser
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from neocloud.core.osfiles import read_private
from neocloud.s3_client.types import Endpoint

_URL = re.compile(
    r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/((?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}/?){0,8}))?"
)
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_SECTION = "default"
_MOST_FILE_BYTES = 64 * 1024
_ORIGIN = "BLOBS"


@dataclass(frozen=True)
class S3Location:
    bucket: str
    prefix: str
    """Empty, or with a slash at its end."""
    endpoint: str
    """The URL of the engine, without a slash at its end."""
    region: str
    credentials_file: Path

    @property
    def name(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def connection(self) -> Endpoint:
        """Return the endpoint with the key in the file. Raises ValueError, OSError."""
        key_id, secret = read_key(self.credentials_file)
        return Endpoint(_ORIGIN, self.endpoint, self.region, self.bucket, key_id, secret)


def s3_place(url: str, endpoint: str, region: str, credentials_file: Path) -> S3Location:
    """Return the location that these settings name. Raises ValueError with words for the operator."""
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(f"{url!r} is not a place such as s3://BUCKET/PREFIX")
    if not _REGION.fullmatch(region):
        raise ValueError(f"{region!r} is not the name of a region")
    prefix = (found[2] or "").rstrip("/")
    prefix = f"{prefix}/" if prefix else ""
    return S3Location(found[1], prefix, engine_url(endpoint), region, credentials_file)


def engine_url(text: str) -> str:
    """Return the URL of an endpoint, which has no path. Raises ValueError."""
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable, parts = False, urlsplit("")
    is_bare = not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    if not (is_usable and is_bare and text.isascii() and text.isprintable()):
        raise ValueError(f"{text!r} is not the URL of an S3 endpoint, such as https://s3.example.com:9000")
    return f"{parts.scheme}://{parts.netloc}"


def read_key(file: Path) -> tuple[str, str]:
    """Return the id of an access key and its secret. Raises ValueError, OSError.

    The file is one of AWS's clients, with the key in its section `default`.
    """
    content = read_private(file, _MOST_FILE_BYTES)
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(content)
        key_id = parser.get(_SECTION, "aws_access_key_id")
        secret = parser.get(_SECTION, "aws_secret_access_key")
    except (configparser.Error, ValueError) as error:
        # Not what the parser says: it may quote the secret.
        raise ValueError(
            f"{file} needs a section [{_SECTION}] with aws_access_key_id and aws_secret_access_key"
            f" ({type(error).__name__})"
        ) from None
    if not all(each.isascii() and each.isprintable() and each for each in (key_id, secret)):
        raise ValueError(f"{file} has a key that is empty or has letters that no key has")
    return key_id, secret


def arguments(location: S3Location) -> list[str]:
    """Return the options of the object gateway that name a location."""
    return [
        f"--blobs={location.name}",
        f"--blobs-endpoint={location.endpoint}",
        f"--blobs-region={location.region}",
        f"--blobs-credentials={location.credentials_file}",
    ]
