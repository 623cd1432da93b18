"""ListObjects, ListObjectsV2, ListObjectVersions and ListBuckets."""

import base64
import binascii
from collections.abc import Iterable

from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import denied, invalid
from neocloud.object_gateway.s3.multipart import encoding_type
from neocloud.object_gateway.s3.operations import BUCKET_LIST
from neocloud.object_gateway.s3.xml_out import (
    Markup,
    document,
    element,
    encoded,
    escaped,
    has_escape,
    joined,
    optional,
    time,
)
from neocloud.object_store.types import MAX_PAGE, BucketKind, BucketState, ObjectVersion


async def list_objects(context: S3Context) -> Response:
    """Answer in version 1, whose clients do not decode the prefix: it is encoded only where XML needs it."""
    request, bucket = context.request, context.served
    kind = encoding_type(request)
    limit = request.number("max-keys", MAX_PAGE, MAX_PAGE)
    prefix, delimiter, marker = request.get("prefix"), request.get("delimiter"), request.get("marker")
    page = await context.store.list_objects(
        bucket.id, prefix=prefix, delimiter=delimiter, start_after=marker, limit=limit
    )
    # Without a delimiter clients continue after the last key, which is not where such a page ends.
    ends_early = page.is_truncated and (not page.objects or page.objects[-1].key != page.next_marker)
    body = document(
        "ListBucketResult",
        element("Name", bucket.name),
        element("Prefix", encoded(prefix, kind if has_escape(prefix) else "")),
        element("Marker", encoded(marker, kind)),
        optional("NextMarker", encoded(page.next_marker, kind) if delimiter or ends_early else ""),
        element("MaxKeys", limit),
        optional("Delimiter", encoded(delimiter, kind)),
        optional("EncodingType", kind),
        element("IsTruncated", page.is_truncated),
        joined(_content(each, kind, bucket.project_id) for each in page.objects),
        _prefixes(page.prefixes, kind),
    )
    return xml(body)


async def list_objects_v2(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    kind = encoding_type(request)
    limit = request.number("max-keys", MAX_PAGE, MAX_PAGE)
    prefix, delimiter, start_after = (
        request.get("prefix"),
        request.get("delimiter"),
        request.get("start-after"),
    )
    token = request.query.get("continuation-token")
    after = start_after if token is None else _decode(token)
    page = await context.store.list_objects(
        bucket.id, prefix=prefix, delimiter=delimiter, start_after=after, limit=limit
    )
    owner = bucket.project_id if request.get("fetch-owner") == "true" else ""
    body = document(
        "ListBucketResult",
        element("Name", bucket.name),
        element("Prefix", encoded(prefix, kind)),
        optional("StartAfter", encoded(start_after, kind)),
        Markup("") if token is None else element("ContinuationToken", token),
        optional("NextContinuationToken", _encode(page.next_marker) if page.is_truncated else ""),
        element("KeyCount", len(page.objects) + len(page.prefixes)),
        element("MaxKeys", limit),
        optional("Delimiter", encoded(delimiter, kind)),
        optional("EncodingType", kind),
        element("IsTruncated", page.is_truncated),
        joined(_content(each, kind, owner) for each in page.objects),
        _prefixes(page.prefixes, kind),
    )
    return xml(body)


async def list_versions(context: S3Context) -> Response:
    request, bucket = context.request, context.served
    kind = encoding_type(request)
    limit = request.number("max-keys", MAX_PAGE, MAX_PAGE)
    prefix, delimiter = request.get("prefix"), request.get("delimiter")
    key_marker, version_marker = request.get("key-marker"), request.get("version-id-marker")
    if version_marker and not key_marker:
        raise invalid("A version-id marker cannot be specified without a key marker.")
    page = await context.store.list_versions(
        bucket.id,
        prefix=prefix,
        delimiter=delimiter,
        key_marker=key_marker,
        version_marker=version_marker,
        limit=limit,
    )
    body = document(
        "ListVersionsResult",
        element("Name", bucket.name),
        element("Prefix", encoded(prefix, kind)),
        element("KeyMarker", encoded(key_marker, kind)),
        element("VersionIdMarker", version_marker),
        optional("NextKeyMarker", encoded(page.next_key_marker, kind)),
        optional("NextVersionIdMarker", page.next_version_marker),
        element("MaxKeys", limit),
        optional("Delimiter", encoded(delimiter, kind)),
        optional("EncodingType", kind),
        element("IsTruncated", page.is_truncated),
        joined(_version(each, kind, bucket.project_id) for each in page.versions),
        _prefixes(page.prefixes, kind),
    )
    return xml(body)


async def list_buckets(context: S3Context) -> Response:
    request, caller = context.request, context.caller
    if caller.is_anonymous:
        raise denied()
    if BUCKET_LIST not in await context.dependencies.authorizer.permissions(caller, caller.project_id):
        raise denied()
    prefix, limit = request.get("prefix"), request.number("max-buckets", 10_000, 10_000, least=1)
    token = request.query.get("continuation-token")
    after = "" if token is None else _decode(token)
    found = [
        each
        for each in context.store.buckets()
        if each.project_id == caller.project_id
        and each.kind is BucketKind.S3
        and each.state is BucketState.ACTIVE
        and each.name.startswith(prefix)
        and each.name > after
    ]
    page = found[:limit]
    buckets = [
        element(
            "Bucket",
            element("Name", each.name),
            element("CreationDate", time(each.created_at)),
            element("BucketRegion", context.dependencies.settings.region),
        )
        for each in page
    ]
    body = document(
        "ListAllMyBucketsResult",
        owner(caller.project_id),
        element("Buckets", joined(buckets)),
        optional("Prefix", prefix),
        optional("ContinuationToken", _encode(page[-1].name) if len(found) > len(page) else ""),
    )
    return xml(body)


def owner(project_id: str) -> Markup:
    return element("Owner", element("ID", project_id), element("DisplayName", project_id))


def _content(version: ObjectVersion, kind: str, owner_id: str) -> Markup:
    """Written as one text: it is most of what a page of 1,000 keys costs."""
    return Markup(
        f"<Contents><Key>{escaped(encoded(version.key, kind))}</Key>{_properties(version)}"
        f"{owner(owner_id) if owner_id else ''}"
        f"<StorageClass>{version.storage_class}</StorageClass></Contents>"
    )


def _version(version: ObjectVersion, kind: str, owner_id: str) -> Markup:
    identity = (
        f"<Key>{escaped(encoded(version.key, kind))}</Key><VersionId>{version.version_id}</VersionId>"
        f"<IsLatest>{'true' if version.is_latest else 'false'}</IsLatest>"
    )
    if version.is_delete_marker:
        modified = element("LastModified", time(version.modified_at))
        return Markup(f"<DeleteMarker>{identity}{modified}{owner(owner_id)}</DeleteMarker>")
    return Markup(
        f"<Version>{identity}{_properties(version)}{owner(owner_id)}"
        f"<StorageClass>{version.storage_class}</StorageClass></Version>"
    )


def _properties(version: ObjectVersion) -> str:
    checksum = version.checksum
    algorithm = (
        f"<ChecksumAlgorithm>{checksum.algorithm}</ChecksumAlgorithm><ChecksumType>{checksum.type}</ChecksumType>"
        if checksum
        else ""
    )
    return (
        f"<LastModified>{time(version.modified_at)}</LastModified><ETag>&quot;{version.etag}&quot;</ETag>"
        f"{algorithm}<Size>{version.size}</Size>"
    )


def _prefixes(prefixes: Iterable[str], kind: str) -> Markup:
    return joined(element("CommonPrefixes", element("Prefix", encoded(each, kind))) for each in prefixes)


def _encode(marker: str) -> str:
    return base64.urlsafe_b64encode(marker.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("The continuation token is not one of this server.") from None
