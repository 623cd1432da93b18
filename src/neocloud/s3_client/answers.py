"""Reads what S3 endpoints answer, which is hostile: lists, errors, headers. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.header import Header
from urllib.parse import quote, unquote_plus, urlencode

from neocloud.core.untrusted.xml_elements import Element, MalformedXml, parse
from neocloud.s3_client.types import EndpointError, Listed

MAX_ANSWER_BYTES = 8 * 1024 * 1024
MOST_LISTED = 1000
_KEPT = (
    *("content-type", "cache-control", "content-disposition", "content-encoding", "content-language"),
    *("expires", "x-amz-website-redirect-location"),
)
_META_NAME = re.compile(r"x-amz-meta-[a-z0-9._-]{1,200}")
_MOST_TAGS, _MOST_TAG_NAME, _MOST_TAG_VALUE = 10, 128, 256  # S3's limits of an object
_ETAG = re.compile(r"[!#-~]{1,200}")
_RETRIED = frozenset((408, 429, 500, 502, 503, 504))
_MEANINGS = {
    301: ("PermanentRedirect", "The bucket is at another endpoint; name that one."),
    403: ("AccessDenied", "Access is denied. Check the access key and its rights."),
    404: ("NotFound", "The bucket or the object does not exist."),
    412: ("PreconditionFailed", "The object was changed meanwhile."),
}


@dataclass(frozen=True)
class Page:
    objects: Sequence[Listed]
    next_token: str
    """"": it is the last page."""


@dataclass(frozen=True)
class ListedPart:
    number: int
    size: int
    etag: str


def page(body: bytes, prefix: str, origin: str) -> Page:
    """Read the answer to ListObjectsV2. Raises EndpointError."""
    try:
        root = parse(body, "ListBucketResult")
        is_encoded = root.get("EncodingType") == "url"
        found = [_listed(each, prefix, is_encoded=is_encoded) for each in root.all("Contents")]
        is_truncated = root.get("IsTruncated").strip() == "true"
        token = root.get("NextContinuationToken") if is_truncated else ""
    except ValueError as error:
        raise unreadable(origin, "a list of objects") from error
    if (is_truncated and not token) or len(found) > MOST_LISTED:
        raise unreadable(origin, "a list of objects")
    return Page(found, token)


def _listed(element: Element, prefix: str, *, is_encoded: bool) -> Listed:
    key = element.require("Key")
    key = unquote_plus(key, errors="strict") if is_encoded else key
    size = element.number("Size")
    modified = datetime.fromisoformat(element.require("LastModified").strip())
    etag = element.require("ETag").strip().strip('"')
    if not key.startswith(prefix) or size is None or not _ETAG.fullmatch(etag):
        raise ValueError("the list has what was not asked for")
    modified = modified if modified.tzinfo else modified.replace(tzinfo=UTC)
    return Listed(key.removeprefix(prefix), size, etag, modified)


def parts(body: bytes, origin: str) -> tuple[Sequence[ListedPart], int]:
    """Read the answer to ListParts: the parts, and the marker of the next page (0: there is none)."""
    try:
        root = parse(body, "ListPartsResult")
        found = [_part(each) for each in root.all("Part")]
        marker = root.number("NextPartNumberMarker") if root.get("IsTruncated").strip() == "true" else 0
    except MalformedXml as error:
        raise unreadable(origin, "a list of parts") from error
    return found, marker or 0


def _part(element: Element) -> ListedPart:
    number, size = element.number("PartNumber") or 0, element.number("Size") or 0
    return ListedPart(number, size, element.require("ETag").strip('"'))


def tags(body: bytes, origin: str) -> str:
    """Read the answer to GetObjectTagging, and return it as the value of `x-amz-tagging`; "" without tags.

    Raises EndpointError."""
    try:
        found = parse(body, "Tagging").all("TagSet")
        pairs = [(tag.require("Key"), tag.get("Value")) for each in found for tag in each.all("Tag")]
    except MalformedXml as error:
        raise unreadable(origin, "the tags of an object") from error
    is_allowed = all(
        1 <= len(name) <= _MOST_TAG_NAME and len(value) <= _MOST_TAG_VALUE for name, value in pairs
    )
    if len(pairs) > _MOST_TAGS or not is_allowed:
        raise unreadable(origin, "the tags of an object")
    return urlencode(pairs, quote_via=quote, safe="")


def upload_id(body: bytes, origin: str) -> str:
    try:
        found = parse(body, "InitiateMultipartUploadResult").require("UploadId")
    except MalformedXml as error:
        raise unreadable(origin, "the start of an upload") from error
    if not found or len(found) > 2048:
        raise unreadable(origin, "the start of an upload")
    return found


def error_of(status: int, body: bytes, origin: str) -> EndpointError:
    """Return the error of an answer that is none of success."""
    code, message = _MEANINGS.get(status, (f"HTTP{status}", f"The endpoint answered with status {status}."))
    try:
        root = parse(body, "Error")
        code, message = root.get("Code") or code, root.get("Message") or message
    except MalformedXml:
        pass  # HEAD has no body, and a proxy answers with HTML
    return EndpointError(origin, code, message, status=status, is_transient=status in _RETRIED)


def completion_error(body: bytes, origin: str) -> EndpointError | None:
    """Return the error in the body of an answer of CompleteMultipartUpload with status 200, if it is one."""
    try:
        parse(body, "Error")
    except MalformedXml:
        return None
    return error_of(500, body, origin)


def unreadable(origin: str, what: str) -> EndpointError:
    message = f"The endpoint answered with {what} that cannot be read."
    return EndpointError(origin, "InvalidResponse", message, is_transient=True)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers and user metadata of an object that its copy gets."""
    found = {name: headers[name] for name in _KEPT if headers.get(name)}
    found |= {name: value for name, value in headers.items() if _META_NAME.fullmatch(name)}
    return {name: _ascii(value) for name, value in found.items()}


def _ascii(value: str) -> str:
    """Return the value as it can be signed; other letters than those of ASCII as RFC 2047 has them."""
    if value.isascii() and value.isprintable():
        return value
    text = value.encode("latin-1", "replace").decode("utf-8", "replace")
    return Header(text, "utf-8", maxlinelen=10_000).encode().replace("\n", " ")


def md5_of(headers: Mapping[str, str]) -> str:
    """Return the MD5 of the body in hexadecimal, where the ETag is that; else ""."""
    etag = headers.get("etag", "").strip('"').lower()
    encryption = headers.get("x-amz-server-side-encryption", "")
    is_other = encryption.startswith("aws:") or "x-amz-server-side-encryption-customer-algorithm" in headers
    return etag if re.fullmatch(r"[0-9a-f]{32}", etag) and not is_other else ""
