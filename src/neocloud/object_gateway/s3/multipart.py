"""Multipart uploads: create, parts, complete, abort, and what is listed of them."""

from contextlib import suppress
from dataclasses import replace

from neocloud.core.untrusted.xml_elements import Element, malformed
from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3 import responses
from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error, invalid
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_gateway.s3.writes import checked_attributes, parsed, readable_source
from neocloud.object_gateway.s3.xml_out import Markup, document, element, encoded, joined, optional, time
from neocloud.object_store import checksums
from neocloud.object_store.bodies.writer import MAX_BODY_BYTES, key_md5
from neocloud.object_store.errors import NoSuchUpload
from neocloud.object_store.last_access import AccessMethod
from neocloud.object_store.types import (
    MAX_PAGE,
    MAX_PART_NUMBER,
    Checksum,
    ChecksumAlgorithm,
    CompletedPart,
    Expected,
    Part,
    Upload,
)


async def create_upload(context: S3Context) -> Response:
    request = context.request
    algorithm = fields.algorithm(request.header("x-amz-checksum-algorithm"), "x-amz-checksum-algorithm")
    upload = await context.store.create_upload(
        context.served.id,
        context.key,
        await checked_attributes(context),
        algorithm=algorithm,
        checksum_type=fields.checksum_type(request),
        customer_key=fields.customer_key(request),
    )
    headers = responses.encryption(upload.customer_key_md5)
    if upload.checksum_algorithm is not None:
        headers["x-amz-checksum-algorithm"] = upload.checksum_algorithm
        headers["x-amz-checksum-type"] = upload.checksum_type
    body = document(
        "InitiateMultipartUploadResult",
        element("Bucket", context.served.name),
        element("Key", context.key),
        element("UploadId", upload.upload_id),
    )
    return replace(xml(body, headers), is_counted=True)


async def upload_part(context: S3Context) -> Response:
    request, body, bucket = context.request, context.body, context.served
    number, upload_id = _part_number(request), request.get("uploadId")
    upload = await context.store.upload(bucket.id, context.key, upload_id)
    length = body.required_length()
    fields.content_md5(request)
    algorithms = {*body.algorithms()}
    if upload.checksum_algorithm is not None:
        algorithms.add(upload.checksum_algorithm)
    async with await context.store.open_write(
        bucket.id, length, algorithms=algorithms, customer_key=fields.customer_key(request)
    ) as writer:
        async for chunk in body.chunks():
            await writer.write(chunk)
        part = await writer.commit_part(context.key, upload_id, number, expected=body.expected())
    headers = {"ETag": f'"{part.etag}"', **responses.encryption(upload.customer_key_md5)}
    if part.checksum is not None:
        headers[f"x-amz-checksum-{part.checksum.algorithm.lower()}"] = part.checksum.value
    return Response(200, headers, is_counted=True)


async def upload_part_copy(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    number, upload_id = _part_number(request), request.get("uploadId")
    source, key, version_id = await readable_source(context)
    customer_key = fields.customer_key(request)
    wanted = fields.copy_range(request.header("x-amz-copy-source-range"))
    found = await context.store.find_version(source.id, key, version_id)
    if wanted is None and found.size > MAX_BODY_BYTES:
        raise S3Error("InvalidRequest", "A part may have 5 GiB. Copy a range.")
    if wanted is not None and (wanted.last or 0) - (wanted.first or 0) >= MAX_BODY_BYTES:
        raise S3Error("InvalidRequest", "A part may have 5 GiB. Copy a smaller range.")
    part = await context.store.copy_part(
        fields.source_of(request, source.id, key, version_id),
        bucket.id,
        context.key,
        upload_id,
        number,
        range=wanted,
        source_conditions=fields.read_conditions(request, "x-amz-copy-source-"),
        customer_key=customer_key,
    )
    context.note_access(found, AccessMethod.UPLOAD_PART_COPY, source)
    headers = responses.encryption(key_md5(customer_key))
    if found.is_versioned:
        headers["x-amz-copy-source-version-id"] = found.version_id
    body = document(
        "CopyPartResult",
        element("LastModified", time(part.modified_at)),
        element("ETag", f'"{part.etag}"'),
        _part_checksum(part),
    )
    return replace(xml(body, headers), is_counted=True)


async def complete_upload(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    upload_id = request.get("uploadId")
    conditions = fields.write_conditions(request)
    expected = _expected(request)
    # Its checksum headers are of the object, not of this document.
    body = await context.body.document(has_checksum=False)
    root = await parsed(body, "CompleteMultipartUpload")
    algorithm = checksums.DEFAULT
    with suppress(NoSuchUpload):  # completed already: the store knows what it became
        upload = await context.store.upload(bucket.id, context.key, upload_id)
        algorithm = upload.checksum_algorithm or algorithm
    parts = [_completed(each, algorithm) for each in root.all("Part")]
    if not 1 <= len(parts) <= MAX_PART_NUMBER:
        raise malformed(f"The upload needs 1 to {MAX_PART_NUMBER} parts.")
    version = await context.store.complete_upload(
        bucket.id, context.key, upload_id, parts, expected=expected, conditions=conditions
    )
    headers = {**responses.written_id(version), **responses.encryption(version.customer_key_md5)}
    body = document(
        "CompleteMultipartUploadResult",
        element("Location", f"/{bucket.name}/{encoded(context.key, 'url')}"),
        element("Bucket", bucket.name),
        element("Key", context.key),
        element("ETag", f'"{version.etag}"'),
        responses.checksum_elements(version.checksum),
    )
    return replace(xml(body, headers), is_counted=True)


def _expected(request: S3Request) -> Expected:
    """Return what the headers say of the whole object: its checksum, with the number of parts or without."""
    found = [each for each in ChecksumAlgorithm if f"x-amz-checksum-{each.lower()}" in request.headers]
    size = request.header("x-amz-mp-object-size")
    if size and not (size.isascii() and size.isdigit() and len(size) <= 18):
        raise invalid("x-amz-mp-object-size must be a number of bytes.")
    if len(found) > 1:
        raise S3Error("InvalidRequest", "Only one checksum may be given.")
    checksum = None
    if found:
        value = request.header(f"x-amz-checksum-{found[0].lower()}")
        kind = fields.checksum_type(request)
        checksum = Checksum(found[0], value) if kind is None else Checksum(found[0], value, kind)
    return Expected(checksum=checksum, size=int(size) if size else None)


def _completed(part: Element, algorithm: ChecksumAlgorithm) -> CompletedPart:
    number = part.number("PartNumber")
    if number is None or not 1 <= number <= MAX_PART_NUMBER:
        raise invalid(f"PartNumber must be from 1 to {MAX_PART_NUMBER}.")
    checksum = part.get(f"Checksum{algorithm}").strip()
    return CompletedPart(number, fields.etag(part.require("ETag")), checksum)


async def abort_upload(context: S3Context) -> Response:
    await context.store.abort_upload(context.served.id, context.key, context.request.get("uploadId"))
    return Response(204, is_counted=True)


async def list_parts(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    limit = request.number("max-parts", MAX_PAGE, MAX_PAGE)
    after = request.number("part-number-marker", 0, MAX_PART_NUMBER)
    upload = await context.store.upload(bucket.id, context.key, request.get("uploadId"))
    page = await context.store.list_parts(bucket.id, context.key, upload.upload_id, after=after, limit=limit)
    body = document(
        "ListPartsResult",
        element("Bucket", bucket.name),
        element("Key", context.key),
        element("UploadId", upload.upload_id),
        _owner("Initiator", bucket.project_id),
        _owner("Owner", bucket.project_id),
        element("StorageClass", upload.storage_class),
        _upload_checksum(upload),
        element("PartNumberMarker", after),
        element("NextPartNumberMarker", page.next_number),
        element("MaxParts", limit),
        element("IsTruncated", page.is_truncated),
        joined(_part(part) for part in page.parts),
    )
    return xml(body)


async def list_uploads(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    kind = encoding_type(request)
    limit = request.number("max-uploads", MAX_PAGE, MAX_PAGE)
    prefix, delimiter = request.get("prefix"), request.get("delimiter")
    key_marker = request.get("key-marker")
    upload_marker = request.get("upload-id-marker") if key_marker else ""
    page = await context.store.list_uploads(
        bucket.id,
        prefix=prefix,
        delimiter=delimiter,
        key_marker=key_marker,
        upload_marker=upload_marker,
        limit=limit,
    )
    body = document(
        "ListMultipartUploadsResult",
        element("Bucket", bucket.name),
        element("KeyMarker", encoded(key_marker, kind)),
        element("UploadIdMarker", upload_marker),
        element("Prefix", encoded(prefix, kind)),
        optional("Delimiter", encoded(delimiter, kind)),
        optional("EncodingType", kind),
        element("NextKeyMarker", encoded(page.next_key_marker, kind)),
        element("NextUploadIdMarker", page.next_upload_marker),
        element("MaxUploads", limit),
        element("IsTruncated", page.is_truncated),
        joined(_upload(each, bucket.project_id, kind) for each in page.uploads),
        joined(element("CommonPrefixes", element("Prefix", encoded(each, kind))) for each in page.prefixes),
    )
    return xml(body)


def encoding_type(request: S3Request) -> str:
    found = request.get("encoding-type")
    if found not in ("", "url"):
        raise invalid("encoding-type is url.", name="encoding-type", value=found)
    return found


def _part(part: Part) -> Markup:
    return element(
        "Part",
        element("PartNumber", part.number),
        element("LastModified", time(part.modified_at)),
        element("ETag", f'"{part.etag}"'),
        element("Size", part.size),
        _part_checksum(part),
    )


def _part_checksum(part: Part) -> Markup:
    found = part.checksum
    return element(f"Checksum{found.algorithm}", found.value) if found else Markup("")


def _upload(upload: Upload, owner: str, kind: str) -> Markup:
    return element(
        "Upload",
        element("Key", encoded(upload.key, kind)),
        element("UploadId", upload.upload_id),
        _owner("Initiator", owner),
        _owner("Owner", owner),
        element("StorageClass", upload.storage_class),
        element("Initiated", time(upload.created_at)),
        _upload_checksum(upload),
    )


def _upload_checksum(upload: Upload) -> Markup:
    if upload.checksum_algorithm is None:
        return Markup("")
    return joined(
        (
            element("ChecksumAlgorithm", upload.checksum_algorithm),
            element("ChecksumType", upload.checksum_type),
        )
    )


def _owner(name: str, project_id: str) -> Markup:
    return element(name, element("ID", project_id), element("DisplayName", project_id))


def _part_number(request: S3Request) -> int:
    text = request.get("partNumber")
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_PART_NUMBER):
        raise invalid(
            f"Part number must be an integer between 1 and {MAX_PART_NUMBER}, inclusive.",
            name="partNumber",
            value=text,
        )
    return int(text)
