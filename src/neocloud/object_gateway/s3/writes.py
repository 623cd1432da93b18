"""PutObject, CopyObject, DeleteObject and DeleteObjects."""

import asyncio
from dataclasses import replace

from neocloud.core.untrusted import xml_elements
from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3 import operations, responses
from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error, from_store, invalid
from neocloud.object_gateway.s3.operations import Scope
from neocloud.object_gateway.s3.xml_out import Markup, document, element, joined, optional, time
from neocloud.object_store.bodies.writer import MAX_BODY_BYTES, key_md5, too_large
from neocloud.object_store.errors import ObjectStoreError
from neocloud.object_store.last_access import AccessMethod
from neocloud.object_store.types import (
    ALWAYS,
    Attributes,
    Bucket,
    Deleted,
    DeleteItem,
    ObjectVersion,
    WriteConditions,
)

MAX_DELETES = 1000
_SHORT_DOCUMENT = 64 * 1024
"""Longer ones are parsed in a thread."""


async def put_object(context: S3Context) -> Response:
    request, bucket, body = context.request, context.served, context.body
    attributes = await checked_attributes(context)
    conditions = fields.write_conditions(request)
    length = body.required_length()
    fields.content_md5(request)
    async with await context.store.open_write(
        bucket.id,
        length,
        key=context.key,
        algorithms=body.algorithms(),
        customer_key=fields.customer_key(request),
    ) as writer:
        async for chunk in body.chunks():
            await writer.write(chunk)
        version = await writer.commit(
            context.key, attributes, expected=body.expected(), conditions=conditions
        )
    return Response(200, responses.written(version), is_counted=True)


async def checked_attributes(context: S3Context) -> Attributes:
    """Return what the headers say of an object. Raises S3Error where the caller may not protect it."""
    fields.check_acl(context.request, context.served)
    attributes = fields.attributes(context.request)
    if attributes.retention is not None or attributes.has_legal_hold:
        await context.require(operations.UPDATE, context.key)
    return attributes


async def readable_source(context: S3Context) -> tuple[Bucket, str, str | None]:
    """Return what is copied. Raises S3Error unless the caller may read it."""
    name, key, version_id = fields.copy_source(context.request)
    source = context.bucket_named(name)
    fields.check_owner(context.request.header("x-amz-source-expected-bucket-owner"), source)
    await context.require(operations.GET, key, source)
    return source, key, version_id


async def copy_object(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    source, key, version_id = await readable_source(context)
    given = await checked_attributes(context)
    directive = _directive(context, "x-amz-metadata-directive")
    tagging = _directive(context, "x-amz-tagging-directive")
    is_same = (source.id, key) == (bucket.id, context.key) and version_id is None
    customer_key = fields.customer_key(request)
    if is_same and directive == "COPY" and not _changes(context, given):
        raise S3Error(
            "InvalidRequest",
            "An object cannot be copied to itself without a change of metadata, storage class or encryption.",
        )
    origin = fields.source_of(request, source.id, key, version_id)
    found = await context.store.find_version(source.id, key, version_id)
    if found.size > MAX_BODY_BYTES:
        raise from_store(too_large())
    kept = found.attributes
    attributes = (
        given if directive == "REPLACE" else replace(given, headers=kept.headers, metadata=kept.metadata)
    )
    version = await context.store.copy(
        origin,
        bucket.id,
        context.key,
        attributes=attributes,
        tags=given.tags if tagging == "REPLACE" else None,
        algorithm=fields.algorithm(request.header("x-amz-checksum-algorithm"), "x-amz-checksum-algorithm"),
        source_conditions=fields.read_conditions(request, "x-amz-copy-source-"),
        conditions=fields.write_conditions(request),
        customer_key=customer_key,
    )
    context.note_access(found, AccessMethod.COPY_OBJECT, source)
    headers = {**responses.written_id(version), **responses.encryption(key_md5(customer_key))}
    if found.is_versioned:
        headers["x-amz-copy-source-version-id"] = found.version_id
    return replace(xml(_copy_result(version), headers), is_counted=True)


def _copy_result(version: ObjectVersion) -> bytes:
    return document(
        "CopyObjectResult",
        element("LastModified", time(version.modified_at)),
        element("ETag", f'"{version.etag}"'),
        responses.checksum_elements(version.checksum),
    )


def _directive(context: S3Context, name: str) -> str:
    found = context.request.header(name, "COPY")
    if found not in ("COPY", "REPLACE"):
        raise invalid(f"{name} is COPY or REPLACE.", name=name, value=found)
    return found


def _changes(context: S3Context, given: Attributes) -> bool:
    headers = context.request.headers
    return (
        given.storage_class is not None
        or given.retention is not None
        or given.has_legal_hold
        or any(name.startswith("x-amz-server-side-encryption") for name in headers)
        or headers.get("x-amz-tagging-directive") == "REPLACE"
        or "x-amz-checksum-algorithm" in headers
    )


async def delete_object(context: S3Context) -> Response:
    result = await context.store.delete(
        context.served.id,
        context.key,
        context.version_id,
        conditions=fields.delete_conditions(context.request),
        bypass_governance=await bypasses(context, context.key),
    )
    headers = {"x-amz-version-id": result.version_id} if result.version_id else {}
    if result.is_delete_marker:
        headers["x-amz-delete-marker"] = "true"
    return Response(204, headers, is_counted=True)


async def bypasses(context: S3Context, key: str) -> bool:
    """Return whether the request may go past a retention period of the mode GOVERNANCE. Raises S3Error where
    it wants to and may not."""
    if context.request.header("x-amz-bypass-governance-retention").lower() != "true":
        return False
    await context.require(operations.BYPASS, key)
    return True


async def delete_objects(context: S3Context) -> Response:
    bucket = context.served
    # Bytes of somebody who may delete nothing here at all are not read.
    await context.require(operations.DELETE, "", bucket, Scope.ANY)
    root = await read_xml(context, "Delete")
    is_quiet = root.get("Quiet").strip().lower() == "true"
    given = root.all("Object")
    if not 1 <= len(given) <= MAX_DELETES:
        raise xml_elements.malformed(f"Delete needs 1 to {MAX_DELETES} objects.")
    wanted = [_item(each) for each in given]
    outcomes: list[Deleted | S3Error | None] = [None] * len(wanted)
    allowed: list[tuple[int, DeleteItem]] = []
    bypass = False
    for number, item in enumerate(wanted):
        try:
            await context.require(operations.DELETE, item.key)
            bypass = await bypasses(context, item.key) or bypass
            allowed.append((number, item))
        except S3Error as error:
            outcomes[number] = error
    results = await context.store.delete_many(
        bucket.id, [item for _, item in allowed], bypass_governance=bypass
    )
    for (number, _), result in zip(allowed, results, strict=True):
        outcomes[number] = from_store(result) if isinstance(result, ObjectStoreError) else result
    parts = [_outcome(item, found, is_quiet) for item, found in zip(wanted, outcomes, strict=True)]
    return replace(xml(document("DeleteResult", joined(parts))), is_counted=True)


def _item(given: xml_elements.Element) -> DeleteItem:
    etag, at = given.get("ETag"), given.get("LastModifiedTime")
    conditions = ALWAYS
    if etag or at or given.find("Size"):
        conditions = WriteConditions(
            if_match=fields.etag(etag) if etag else None,
            if_modified_at=(fields.http_time(at) or fields.iso_time(at)) if at else None,
            if_size=given.number("Size"),
        )
    return DeleteItem(given.require("Key"), given.get("VersionId") or None, conditions)


def _outcome(item: DeleteItem, found: Deleted | S3Error | None, is_quiet: bool) -> Markup:
    if isinstance(found, Deleted):
        if is_quiet:
            return Markup("")
        content = [element("Key", item.key), optional("VersionId", item.version_id)]
        if found.is_delete_marker:
            content.append(element("DeleteMarker", True))
            content.append(optional("DeleteMarkerVersionId", found.version_id))
        return element("Deleted", *content)
    code, message = (found.code, found.message) if found else ("InternalError", "It was not deleted.")
    return element(
        "Error",
        *(element("Key", item.key), optional("VersionId", item.version_id)),
        *(element("Code", code), element("Message", message)),
    )


async def read_xml(context: S3Context, root: str) -> xml_elements.Element:
    """Return the body as XML with this root. Raises S3Error, MalformedXml."""
    body = await context.body.document()
    if not body:
        raise S3Error("MissingRequestBodyError", f"The request needs a body: {root}.")
    return await parsed(body, root)


async def parsed(body: bytes, root: str) -> xml_elements.Element:
    """Raises MalformedXml unless this is XML with this root."""
    if len(body) <= _SHORT_DOCUMENT:
        return xml_elements.parse(body, root)
    return await asyncio.to_thread(xml_elements.parse, body, root)
