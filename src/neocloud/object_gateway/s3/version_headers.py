# pyright: strict
"""Headers of responses about a version of an object."""

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
