"""GetObject, HeadObject and GetObjectAttributes."""

from dataclasses import replace

from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3 import responses
from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error, from_store, invalid
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_gateway.s3.xml_out import Markup, document, element, joined
from neocloud.object_store import conditions as rules
from neocloud.object_store.errors import NoSuchKey
from neocloud.object_store.last_access import AccessMethod
from neocloud.object_store.types import MAX_PAGE, MAX_PART_NUMBER, ObjectVersion

_OVERRIDES = {
    "response-content-type": "Content-Type",
    "response-content-language": "content-language",
    "response-expires": "expires",
    "response-cache-control": "cache-control",
    "response-content-disposition": "content-disposition",
    "response-content-encoding": "content-encoding",
}
_ATTRIBUTES = ("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize")


async def get_object(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    fields.check_no_encryption(request)
    overrides = _overrides(context)
    number = _part_number(request)
    wanted = fields.byte_range(request.header("range")) if "range" in request.headers else None
    reader = await context.store.open_read(
        bucket.id,
        context.key,
        context.version_id,
        range=wanted,
        part_number=number,
        conditions=fields.read_conditions(request),
        customer_key=fields.customer_key(request),
    )
    version, is_part = reader.version, wanted is not None or number is not None
    found = {**responses.described(version, request, is_whole=not is_part), **overrides}
    if number is not None:
        found.update(await _of_part(context, version, number, fields.customer_key(request)))
    if is_part and version.size:
        last = reader.first + reader.length - 1
        found["Content-Range"] = f"bytes {reader.first}-{last}/{version.size}"
    context.note_access(version, AccessMethod.GET_OBJECT)
    status = 206 if is_part and version.size else 200
    return Response(status, found, reader=reader, length=reader.length)


async def head_object(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    fields.check_no_encryption(request)
    overrides = _overrides(context)
    key, number = fields.customer_key(request), _part_number(request)
    store, version_id = context.store, context.version_id
    wanted = fields.byte_range(request.header("range")) if "range" in request.headers else None
    if number is None:
        version = await store.head(bucket.id, context.key, version_id, customer_key=key)
    else:
        version, wanted = await store.part_range(bucket.id, context.key, version_id, number, customer_key=key)
    rules.check_read(fields.read_conditions(request), version)
    found = {**responses.described(version, request, is_whole=wanted is None), **overrides}
    if number is not None:
        found.update(await _of_part(context, version, number, key))
    if number is not None and not version.size:
        wanted = None
    first, length = rules.resolve(wanted, version.size)
    context.note_access(version, AccessMethod.HEAD_OBJECT)
    if wanted is None or not version.size:
        return Response(200, found, length=version.size)
    found["Content-Range"] = f"bytes {first}-{first + length - 1}/{version.size}"
    return Response(206, found, length=length)


async def _of_part(
    context: S3Context, version: ObjectVersion, number: int, key: bytes | None
) -> dict[str, str]:
    """Return the headers about a part of a multipart object."""
    if not version.part_count:
        return {}
    found = {"x-amz-mp-parts-count": str(version.part_count)}
    if responses.wants_checksum(context.request) and version.checksum is not None:
        page = await context.store.parts_of(
            context.served.id, context.key, version.version_id, after=number - 1, limit=1, customer_key=key
        )
        for part in page.parts:
            if part.checksum is not None:
                found.update(responses.checksum(replace(part.checksum, type=version.checksum.type)))
    return found


async def get_object_attributes(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    wanted = {each.strip() for each in request.header("x-amz-object-attributes").split(",") if each.strip()}
    if not wanted or not wanted <= set(_ATTRIBUTES):
        raise invalid(f"x-amz-object-attributes must be of {', '.join(_ATTRIBUTES)}.")
    key = fields.customer_key(request)
    try:
        version = await context.store.head(bucket.id, context.key, context.version_id, customer_key=key)
    except NoSuchKey as error:
        raise from_store(error) from error
    found = {
        "ETag": element("ETag", version.etag),
        "Checksum": element("Checksum", responses.checksum_elements(version.checksum)),
        "ObjectParts": await _parts(context, version, key) if "ObjectParts" in wanted else "",
        "StorageClass": element("StorageClass", version.storage_class),
        "ObjectSize": element("ObjectSize", version.size),
    }
    body = document("GetObjectAttributesResponse", *(found[each] for each in _ATTRIBUTES if each in wanted))
    headers = {"Last-Modified": fields.http_date(version.modified_at), **responses.version_id(version)}
    return xml(body, headers)


async def _parts(context: S3Context, version: ObjectVersion, key: bytes | None) -> Markup:
    if not version.part_count:
        return Markup("")
    limit = _header_number(context.request, "x-amz-max-parts", MAX_PAGE)
    after = _header_number(context.request, "x-amz-part-number-marker", 0)
    page = await context.store.parts_of(
        context.served.id, context.key, version.version_id, after=after, limit=limit, customer_key=key
    )
    parts = [
        element(
            "Part",
            element(f"Checksum{part.checksum.algorithm}", part.checksum.value)
            if part.checksum
            else Markup(""),
            element("PartNumber", part.number),
            element("Size", part.size),
        )
        for part in page.parts
    ]
    return element(
        "ObjectParts",
        element("PartsCount", version.part_count),
        element("PartNumberMarker", after),
        element("NextPartNumberMarker", page.next_number),
        element("MaxParts", limit),
        element("IsTruncated", page.is_truncated),
        joined(parts),
    )


def _header_number(request: S3Request, name: str, default: int) -> int:
    text = request.header(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise invalid(f"{name} must be a whole number.", name=name, value=text)
    return min(int(text), MAX_PART_NUMBER)


def _part_number(request: S3Request) -> int | None:
    text = request.query.get("partNumber")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_PART_NUMBER):
        raise invalid(f"partNumber must be from 1 to {MAX_PART_NUMBER}.", name="partNumber", value=text)
    if "range" in request.headers:
        raise S3Error("InvalidRequest", "A part number and a range cannot be combined.")
    return int(text)


def _overrides(context: S3Context) -> dict[str, str]:
    """Return what the query says of the headers of the response. Raises S3Error for anonymous callers: a
    link to a public object must not say what it is shown as."""
    query = context.request.query
    found = {name: query[parameter] for parameter, name in _OVERRIDES.items() if parameter in query}
    if found and context.caller.is_anonymous:
        raise S3Error("InvalidRequest", "Only signed requests may say which headers the response has.")
    for value in found.values():
        if any(ord(each) < 0x20 or ord(each) > 0xFF or ord(each) == 0x7F for each in value):
            raise invalid("A header has printable characters of Latin-1 only.")
    return found
