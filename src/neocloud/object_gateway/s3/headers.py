"""Headers of requests as the object store takes them: attributes, conditions, ranges, checksums, keys."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache
from urllib.parse import parse_qsl, unquote_to_bytes

from neocloud.object_gateway.s3.errors import S3Error, denied, invalid, no_acls, not_served
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_store.storage_class import SELECTABLE, StorageClass
from neocloud.object_store.types import (
    READ_ALWAYS,
    Attributes,
    Bucket,
    ByteRange,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    ReadConditions,
    Retention,
    RetentionMode,
    Source,
    WriteConditions,
)

KEPT = (
    *("content-type", "cache-control", "content-disposition", "content-encoding", "content-language"),
    *("expires", "x-amz-website-redirect-location"),
)
MAX_METADATA_BYTES = 2048
MAX_KEPT_BYTES = 8192
MAX_TAGS, MAX_TAG_KEY, MAX_TAG_VALUE = 10, 128, 256
DEFAULT_TYPE = "binary/octet-stream"
CHECKSUM_SIZES = {
    ChecksumAlgorithm.CRC32: 4,
    ChecksumAlgorithm.CRC32C: 4,
    ChecksumAlgorithm.CRC64NVME: 8,
    ChecksumAlgorithm.SHA1: 20,
    ChecksumAlgorithm.SHA256: 32,
}
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_COPY_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CANNED = ("private", "bucket-owner-full-control", "bucket-owner-read")
_OPEN = ("public-read", "public-read-write", "authenticated-read")
_PUBLIC = (*_OPEN, "aws-exec-read", "log-delivery-write")
_READ_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_KEY_PARTS = ("algorithm", "key", "key-md5")
SSE, _KMS_KEY = "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id"
_SSE_C = "x-amz-server-side-encryption-customer"


def attributes(request: S3Request) -> Attributes:
    """Return what the client says of an object. Raises S3Error."""
    check_encryption(request)
    kept = {name: request.headers[name] for name in KEPT if request.header(name)}
    if "content-encoding" in kept:
        codings = [each.strip() for each in kept["content-encoding"].split(",")]
        kept["content-encoding"] = ", ".join(each for each in codings if each != "aws-chunked")
        if not kept["content-encoding"]:
            del kept["content-encoding"]
    if sum(len(name) + len(value) for name, value in kept.items()) > MAX_KEPT_BYTES:
        raise invalid(f"Headers that are kept with the object may have {MAX_KEPT_BYTES:,} bytes.")
    return Attributes(
        headers=kept,
        metadata=metadata(dict(request.metadata_headers)),
        tags=header_tags(request.header("x-amz-tagging")),
        storage_class=storage_class(request),
        retention=retention(request),
        has_legal_hold=_legal_hold(request.header("x-amz-object-lock-legal-hold")),
    )


def metadata(given: Mapping[str, str]) -> Mapping[str, str]:
    found = {name.removeprefix("x-amz-meta-"): value for name, value in given.items()}
    if not all(_TOKEN.fullmatch(name) for name in found):
        raise invalid("The name of user metadata must be one of a header.")
    if sum(len(name) + len(value) for name, value in found.items()) > MAX_METADATA_BYTES:
        raise S3Error("MetadataTooLarge", f"User metadata may have {MAX_METADATA_BYTES:,} bytes.")
    return found


def header_tags(text: str) -> Mapping[str, str]:
    """Return the tags of x-amz-tagging, which is written as a query."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_TAGS + 1)
    except ValueError:
        raise S3Error("InvalidTag", f"Tags are key=value pairs, {MAX_TAGS} at most.") from None
    return checked_tags(pairs, MAX_TAGS)


def checked_tags(pairs: list[tuple[str, str]], most: int) -> Mapping[str, str]:
    tags = dict(pairs)
    if len(tags) != len(pairs):
        raise S3Error("InvalidTag", "Each tag key may come once.")
    if len(tags) > most:
        raise S3Error("InvalidTag", f"At most {most} tags are allowed.")
    for key, value in pairs:
        if not 1 <= len(key) <= MAX_TAG_KEY or len(value) > MAX_TAG_VALUE or key.startswith("aws:"):
            raise S3Error(
                "InvalidTag",
                f"A tag key has 1 to {MAX_TAG_KEY} characters and does not begin with aws:;"
                f" a value has at most {MAX_TAG_VALUE}.",
            )
    return tags


def storage_class(request: S3Request) -> StorageClass | None:
    given = request.header("x-amz-storage-class")
    if not given:
        return None
    if given not in SELECTABLE:
        raise S3Error("InvalidStorageClass", f"Use one of {', '.join(SELECTABLE)}.")
    return StorageClass(given)


def retention(request: S3Request) -> Retention | None:
    mode = request.header("x-amz-object-lock-mode")
    until = request.header("x-amz-object-lock-retain-until-date")
    if not mode and not until:
        return None
    if not mode or not until:
        raise invalid("x-amz-object-lock-mode and x-amz-object-lock-retain-until-date come together.")
    return Retention(lock_mode(mode, "InvalidArgument"), iso_time(until, "InvalidArgument"))


def lock_mode(text: str, code: str) -> RetentionMode:
    try:
        return RetentionMode(text)
    except ValueError:
        raise S3Error(code, "A lock mode is GOVERNANCE or COMPLIANCE.") from None


def iso_time(text: str, code: str = "MalformedXML") -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise S3Error(code, "A time is written as 2026-11-24T19:12:41Z.") from None


def _legal_hold(text: str) -> bool:
    if text not in ("", "ON", "OFF"):
        raise invalid("x-amz-object-lock-legal-hold is ON or OFF.")
    return text == "ON"


def check_acl(request: S3Request, bucket: Bucket) -> None:
    """Raises S3Error for access control lists other than those that say what is true anyway: the owner of the
    bucket has full control."""
    given, blocked = _canned(request), bucket.front.public_access
    if given in _OPEN and blocked is not None and blocked.blocks_acls:
        raise denied("The public access block of the bucket forbids public ACLs.")
    if (given and given not in _CANNED) or not _are_own(request, bucket.project_id):
        raise no_acls()


def check_new_acl(request: S3Request) -> None:
    """Raises S3Error for an ACL other than private of a bucket that is to be made."""
    if _canned(request) not in ("", *_CANNED) or not _are_own(request, ""):
        raise S3Error(
            "InvalidBucketAclWithObjectOwnership",
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting.",
        )


def _canned(request: S3Request) -> str:
    """Raises S3Error."""
    given = request.header("x-amz-acl")
    if given not in ("", *_CANNED, *_PUBLIC):
        raise invalid("x-amz-acl is not a canned ACL.", name="x-amz-acl", value=given)
    return given


def _are_own(request: S3Request, owner: str) -> bool:
    """Return whether the grants in headers, if there are any, give full control to the owner alone."""
    given = {name: value for name, value in request.headers.items() if name.startswith("x-amz-grant-")}
    full = given.pop("x-amz-grant-full-control", "")
    whom = [each.strip().replace('"', "") for each in full.split(",") if each.strip()]
    return not given and all(owner and each == f"id={owner}" for each in whom)


def check_owner(expected: str, bucket: Bucket) -> None:
    """Raises S3Error where the client takes a bucket for another project's. It is the error of those who may
    not use the bucket, so it does not tell them whose it is."""
    if expected not in ("", bucket.project_id):
        raise denied()


def check_encryption(request: S3Request) -> None:
    """Raises S3Error for headers that contradict each other, and for keys of a key management service."""
    given, key_id = request.header(SSE), request.header(_KMS_KEY)
    if given not in ("", "AES256", "aws:kms", "aws:kms:dsse"):
        raise invalid("The encryption method specified is not supported.", name=SSE, value=given)
    if (given or key_id) and request.header(f"{_SSE_C}-algorithm"):
        raise invalid(
            "An object is encrypted either by a key of the client or by one of the server.", name=SSE
        )
    if key_id and not given.startswith("aws:kms"):
        raise invalid(f"{_KMS_KEY} comes with {SSE}: aws:kms.", name=_KMS_KEY)
    if given.startswith("aws:kms"):
        raise not_served("Encryption by a key of a key management service")


def check_no_encryption(request: S3Request) -> None:
    """Raises S3Error where a read says how the object is to be encrypted by the server."""
    for name in (SSE, _KMS_KEY):
        if name in request.headers:
            raise invalid(f"{name} is for writes.", name=name)


def customer_key(request: S3Request, *, of_source: bool = False) -> bytes | None:
    """Return the key of the client that encrypts an object (SSE-C). Raises S3Error."""
    start = f"x-amz-copy-source{_SSE_C.removeprefix('x-amz')}" if of_source else _SSE_C
    given = [request.header(f"{start}-{name}") for name in _KEY_PARTS]
    if not any(given):
        return None
    if not request.is_secure:
        raise S3Error("InvalidRequest", "Keys of clients are only accepted over TLS.")
    algorithm, encoded, digest = given
    if algorithm != "AES256":
        raise invalid(f"{start}-algorithm must be AES256.")
    key = base64_bytes(encoded, 32, f"{start}-key")
    expected = base64_bytes(digest, 16, f"{start}-key-md5")
    if not hmac.compare_digest(hashlib.md5(key, usedforsecurity=False).digest(), expected):
        raise invalid(f"{start}-key-md5 is not the MD5 of the key.")
    return key


def base64_bytes(text: str, size: int, name: str, code: str = "InvalidArgument") -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != size:
        raise S3Error(code, f"{name} must be {size} bytes in base64.")
    return found


def content_md5(request: S3Request) -> bytes | None:
    given = request.headers.get("content-md5")
    return None if given is None else base64_bytes(given, 16, "Content-MD5", "InvalidDigest")


def algorithm(text: str, name: str) -> ChecksumAlgorithm | None:
    if not text:
        return None
    try:
        return ChecksumAlgorithm(text.upper())
    except ValueError:
        raise S3Error("InvalidRequest", f"{name} must be one of {', '.join(ChecksumAlgorithm)}.") from None


def checksum(headers: Mapping[str, str]) -> Checksum | None:
    """Return the checksum that a body must have, of headers or trailers. Raises S3Error."""
    found = [each for each in ChecksumAlgorithm if f"x-amz-checksum-{each.lower()}" in headers]
    if len(found) > 1:
        raise S3Error("InvalidRequest", "Only one checksum may be given.")
    if not found:
        return None
    name = f"x-amz-checksum-{found[0].lower()}"
    base64_bytes(headers[name], CHECKSUM_SIZES[found[0]], name, "InvalidRequest")
    return Checksum(found[0], headers[name])


def checksum_type(request: S3Request) -> ChecksumType | None:
    given = request.header("x-amz-checksum-type")
    if not given:
        return None
    try:
        return ChecksumType(given)
    except ValueError:
        raise S3Error("InvalidRequest", "x-amz-checksum-type is FULL_OBJECT or COMPOSITE.") from None


def byte_range(text: str) -> ByteRange | None:
    """Return the range of a Range header; None, as RFC 9110 has it, for one that is to be ignored."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or not (found[1] or found[2]):
        return None
    first, last = (int(each) if each else None for each in found.groups())
    if first is not None and last is not None and last < first:
        return None
    return ByteRange(first, last)


def copy_range(text: str) -> ByteRange | None:
    if not text:
        return None
    found = _COPY_RANGE.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        raise invalid("x-amz-copy-source-range is written as bytes=first-last.", value=text)
    return ByteRange(int(found[1]), int(found[2]))


def read_conditions(request: S3Request, start: str = "") -> ReadConditions:
    """`start` is "x-amz-copy-source-" for those of the source of a copy."""
    if not any(f"{start}{name}" in request.headers for name in _READ_CONDITIONS):
        return READ_ALWAYS
    return ReadConditions(
        if_match=etags(request.header(f"{start}if-match")),
        if_none_match=etags(request.header(f"{start}if-none-match")),
        if_modified_since=http_time(request.header(f"{start}if-modified-since")),
        if_unmodified_since=http_time(request.header(f"{start}if-unmodified-since")),
    )


def write_conditions(request: S3Request) -> WriteConditions:
    """Return what has to be true of the object that is replaced. One ETag may be named, or "*"."""
    given, none = request.headers.get("if-match"), request.headers.get("if-none-match")
    if "," in f"{given}{none}":
        raise not_served("A condition of several ETags on a write")
    return WriteConditions(
        if_match=None if given is None else etag(given), if_none_match=None if none is None else etag(none)
    )


def delete_conditions(request: S3Request) -> WriteConditions:
    given, size = request.headers.get("if-match"), request.headers.get("x-amz-if-match-size")
    if size is not None and not (size.isascii() and size.isdigit() and len(size) <= 18):
        raise invalid("x-amz-if-match-size must be a number of bytes.")
    return WriteConditions(
        if_match=None if given is None else etag(given),
        if_modified_at=http_time(request.header("x-amz-if-match-last-modified-time")),
        if_size=None if size is None else int(size),
    )


def etag(text: str) -> str:
    return text.strip().removeprefix("W/").strip('"')


def etags(text: str) -> tuple[str, ...]:
    return tuple(found for each in text.split(",") if (found := etag(each)))


def http_time(text: str) -> datetime | None:
    """Return a time; None for one that is not valid, which RFC 9110 wants ignored."""
    if not text:
        return None
    try:
        found = parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=1024)
def http_date(moment: datetime) -> str:
    return format_datetime(moment.astimezone(UTC).replace(microsecond=0), usegmt=True)


def copy_source(request: S3Request) -> tuple[str, str, str | None]:
    """Return bucket, key and version of x-amz-copy-source. Raises S3Error."""
    text, marker, version = request.header("x-amz-copy-source").partition("?versionId=")
    try:
        path = unquote_to_bytes(text.encode("latin-1")).decode().removeprefix("/")
    except UnicodeDecodeError:
        raise invalid("x-amz-copy-source must be in UTF-8.") from None
    bucket, slash, key = path.partition("/")
    if not bucket or not slash or not key:
        raise invalid("x-amz-copy-source must be bucket/key.", name="x-amz-copy-source")
    if marker and not version:
        raise invalid("The version of x-amz-copy-source is empty.", name="x-amz-copy-source")
    return bucket, key, unquote_to_bytes(version).decode("utf-8", "replace") if marker else None


def source_of(request: S3Request, bucket_id: str, key: str, version_id: str | None) -> Source:
    return Source(bucket_id, key, version_id, customer_key(request, of_source=True))
