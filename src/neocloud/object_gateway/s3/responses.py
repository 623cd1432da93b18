"""Responses: the headers about a version of an object, and how a response is sent."""

from collections.abc import Callable

from starlette.types import Send

from neocloud.object_gateway.s3.body import Body
from neocloud.object_gateway.s3.context import Response
from neocloud.object_gateway.s3.headers import DEFAULT_TYPE, http_date
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_gateway.s3.xml_out import Markup, element, joined, time
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import NULL_VERSION, Checksum, ObjectVersion

_SSE_C = "x-amz-server-side-encryption-customer"


def encryption(customer_key_md5: str) -> dict[str, str]:
    if customer_key_md5:
        return {f"{_SSE_C}-algorithm": "AES256", f"{_SSE_C}-key-md5": customer_key_md5}
    return {"x-amz-server-side-encryption": "AES256"}


def version_id(version: ObjectVersion) -> dict[str, str]:
    return {"x-amz-version-id": version.version_id} if version.is_versioned else {}


def written_id(version: ObjectVersion) -> dict[str, str]:
    """Return the id of a version that was written. S3 names none where versioning is suspended."""
    return {} if version.version_id == NULL_VERSION else version_id(version)


def wants_checksum(request: S3Request) -> bool:
    return request.header("x-amz-checksum-mode").upper() == "ENABLED"


def checksum(found: Checksum | None) -> dict[str, str]:
    if found is None:
        return {}
    return {f"x-amz-checksum-{found.algorithm.lower()}": found.value, "x-amz-checksum-type": found.type}


def checksum_elements(found: Checksum | None) -> Markup:
    if found is None:
        return Markup("")
    return joined((element(f"Checksum{found.algorithm}", found.value), element("ChecksumType", found.type)))


def written(version: ObjectVersion) -> dict[str, str]:
    """Return the headers of the response to a put."""
    return {
        "ETag": f'"{version.etag}"',
        **written_id(version),
        **checksum(version.checksum),
        **encryption(version.customer_key_md5),
    }


def described(version: ObjectVersion, request: S3Request, *, is_whole: bool) -> dict[str, str]:
    """Return the headers of a get or head. A checksum is of the whole object, so ranges have none."""
    attributes = version.attributes
    found = {
        "Content-Type": DEFAULT_TYPE,
        **{_NAMES.get(name, name): value for name, value in attributes.headers.items()},
        **{f"x-amz-meta-{name}": value for name, value in attributes.metadata.items()},
        "ETag": f'"{version.etag}"',
        "Last-Modified": http_date(version.modified_at),
        "Accept-Ranges": "bytes",
        **version_id(version),
        **encryption(version.customer_key_md5),
    }
    if version.storage_class is not StorageClass.STANDARD:
        found["x-amz-storage-class"] = version.storage_class
    if attributes.tags:
        found["x-amz-tagging-count"] = str(len(attributes.tags))
    if attributes.retention is not None:
        found["x-amz-object-lock-mode"] = attributes.retention.mode
        found["x-amz-object-lock-retain-until-date"] = time(attributes.retention.until)
    if attributes.has_legal_hold:
        found["x-amz-object-lock-legal-hold"] = "ON"
    if is_whole and wants_checksum(request):
        found.update(checksum(version.checksum))
    return found


_NAMES = {"content-type": "Content-Type"}


Headers = list[tuple[bytes, bytes]]


async def send_response(
    send: Send, body: Body, response: Response, head: Callable[[bool], Headers], sent: Callable[[int], None]
) -> None:
    """`head` returns the headers: where bytes of the request are still to come, the connection has to be
    closed after the response, as they would be taken for the next request. `sent` is called with the number
    of bytes.
    """
    reader = response.reader
    try:
        is_last = not await body.drain()
        await send({"type": "http.response.start", "status": response.status, "headers": head(is_last)})
        if reader is None:
            sent(len(response.body))
            await send({"type": "http.response.body", "body": response.body, "more_body": is_last})
            if is_last:
                await body.discard()  # a close with bytes unread would take the response from the client
                await send({"type": "http.response.body", "body": b""})
            return
        left = reader.length
        async for chunk in reader:
            left -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})
            sent(len(chunk))
        if left or not reader.length:
            await send({"type": "http.response.body", "body": b""})
    finally:
        if reader is not None:
            await reader.close()


def encoded(headers: dict[str, str]) -> Headers:
    return [(name.encode("latin-1"), _value(value)) for name, value in headers.items()]


def _value(text: str) -> bytes:
    """Return the value of a header; what is not of Latin-1 is sent as UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
