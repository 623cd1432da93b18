"""The operations of S3: how a request names one, the right it needs, and how it is counted."""

from dataclasses import dataclass
from enum import Enum, auto

from neocloud.object_gateway.s3.errors import S3Error, not_served
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_store.types import RequestClass


class Level(Enum):
    SERVICE = auto()
    BUCKET = auto()
    OBJECT = auto()


class Scope(Enum):
    """The paths of a bucket policy within which an operation has to lie."""

    KEY = auto()
    PREFIX = auto()
    """The right to list: the prefix has to begin with the path."""
    ANY = auto()
    """About the bucket, and harmless: any path will do."""
    NONE = auto()
    """About the bucket: a policy rule counts only if it is for all keys."""
    OWN = auto()
    """The handler checks, or nobody needs a right."""


@dataclass(frozen=True)
class Operation:
    name: str
    level: Level
    method: str
    marks: tuple[str, ...]
    """Parameters of the query, or "header:NAME"; all have to be there."""
    permission: str
    """"" with OWN."""
    scope: Scope
    request: RequestClass
    is_change: bool = False


R, M, L, D = RequestClass.READ, RequestClass.MODIFY, RequestClass.LIST, RequestClass.DELETE
GET, CREATE, UPDATE, DELETE, LIST = (
    f"storage.objects.{verb}" for verb in ("get", "create", "update", "delete", "list")
)
BUCKET_GET, BUCKET_UPDATE = "storage.buckets.get", "storage.buckets.update"
BUCKET_CREATE, BUCKET_DELETE = "storage.buckets.create", "storage.buckets.delete"
BUCKET_LIST = "storage.buckets.list"
BYPASS = "storage.buckets.bypassRetention"


def _service(name: str, method: str, request: RequestClass, *marks: str) -> Operation:
    return Operation(name, Level.SERVICE, method, marks, "", Scope.OWN, request)


def _bucket(
    name: str,
    method: str,
    marks: str,
    permission: str,
    request: RequestClass = R,
    scope: Scope = Scope.NONE,
    *,
    is_change: bool = False,
) -> Operation:
    return Operation(name, Level.BUCKET, method, tuple(marks.split()), permission, scope, request, is_change)


def _config(name: str, mark: str, *, puts: bool = False, deletes: bool = False) -> list[Operation]:
    """Return the operations on a part of the configuration of a bucket."""
    found = [_bucket(f"GetBucket{name}", "GET", mark, BUCKET_GET)]
    if puts:
        found.append(_bucket(f"PutBucket{name}", "PUT", mark, BUCKET_UPDATE, M, is_change=True))
    if deletes:
        found.append(_bucket(f"DeleteBucket{name}", "DELETE", mark, BUCKET_UPDATE, D, is_change=True))
    return found


def _object(
    name: str,
    method: str,
    marks: str,
    permission: str,
    request: RequestClass = R,
    *,
    is_change: bool = False,
) -> Operation:
    return Operation(
        name, Level.OBJECT, method, tuple(marks.split()), permission, Scope.KEY, request, is_change
    )


TABLE: tuple[Operation, ...] = (
    _service("ListBuckets", "GET", L),
    *_config("Location", "location"),
    *_config("Versioning", "versioning", puts=True),
    *_config("Cors", "cors", puts=True, deletes=True),
    *_config("Lifecycle", "lifecycle", puts=True, deletes=True),
    *_config("Tagging", "tagging", puts=True, deletes=True),
    *_config("PolicyStatus", "policyStatus"),
    *_config("Policy", "policy", puts=True, deletes=True),
    *_config("Acl", "acl", puts=True),
    *_config("ObjectLock", "object-lock", puts=True),
    *_config("Encryption", "encryption", puts=True, deletes=True),
    *_config("PublicAccessBlock", "publicAccessBlock", puts=True, deletes=True),
    *_config("OwnershipControls", "ownershipControls", puts=True, deletes=True),
    *_config("Notification", "notification"),
    *_config("Logging", "logging"),
    *_config("Website", "website"),
    *_config("Replication", "replication"),
    *_config("RequestPayment", "requestPayment"),
    *_config("Accelerate", "accelerate"),
    _bucket("ListMultipartUploads", "GET", "uploads", LIST, L, Scope.PREFIX),
    _bucket("ListObjectVersions", "GET", "versions", LIST, L, Scope.PREFIX),
    _bucket("ListObjectsV2", "GET", "list-type", LIST, L, Scope.PREFIX),
    _bucket("ListObjects", "GET", "", LIST, L, Scope.PREFIX),
    _bucket("HeadBucket", "HEAD", "", LIST, R, Scope.ANY),
    _bucket("CreateBucket", "PUT", "", "", M, Scope.OWN, is_change=True),
    _bucket("DeleteBucket", "DELETE", "", BUCKET_DELETE, D, is_change=True),
    _bucket("DeleteObjects", "POST", "delete", "", D, Scope.OWN, is_change=True),
    _bucket("PostObject", "POST", "", "", M, Scope.OWN, is_change=True),
    _object("ListParts", "GET", "uploadId", CREATE, L),
    _object("GetObjectTagging", "GET", "tagging", GET),
    _object("GetObjectAcl", "GET", "acl", GET),
    _object("GetObjectRetention", "GET", "retention", GET),
    _object("GetObjectLegalHold", "GET", "legal-hold", GET),
    _object("GetObjectAttributes", "GET", "attributes", GET),
    _object("GetObject", "GET", "", GET),
    _object("HeadObject", "HEAD", "", GET),
    _object(
        "UploadPartCopy", "PUT", "partNumber uploadId header:x-amz-copy-source", CREATE, M, is_change=True
    ),
    _object("UploadPart", "PUT", "partNumber uploadId", CREATE, M, is_change=True),
    _object("PutObjectTagging", "PUT", "tagging", UPDATE, M, is_change=True),
    _object("PutObjectAcl", "PUT", "acl", UPDATE, M, is_change=True),
    _object("PutObjectRetention", "PUT", "retention", UPDATE, M, is_change=True),
    _object("PutObjectLegalHold", "PUT", "legal-hold", UPDATE, M, is_change=True),
    _object("CopyObject", "PUT", "header:x-amz-copy-source", CREATE, M, is_change=True),
    _object("PutObject", "PUT", "", CREATE, M, is_change=True),
    _object("CreateMultipartUpload", "POST", "uploads", CREATE, M, is_change=True),
    _object("CompleteMultipartUpload", "POST", "uploadId", CREATE, M, is_change=True),
    _object("AbortMultipartUpload", "DELETE", "uploadId", CREATE, D, is_change=True),
    _object("DeleteObjectTagging", "DELETE", "tagging", UPDATE, D, is_change=True),
    _object("DeleteObject", "DELETE", "", DELETE, D, is_change=True),
)
"""The first that matches counts."""
SUBRESOURCES = frozenset(
    (
        *{mark for each in TABLE for mark in each.marks if not mark.startswith("header:")},
        *("analytics", "append", "intelligent-tiering", "inventory", "metrics", "metadataConfiguration"),
        *("metadataInventoryTable", "metadataJournalTable", "metadataTable", "renameObject", "restore"),
        *("select", "session", "torrent", "abac", "encryption", "quota", "rename"),
    )
)
"""A request that names one which its operation does not have must not be taken for a plain one."""
_CANDIDATES = {
    (level, method): tuple(each for each in TABLE if each.level is level and each.method == method)
    for level in Level
    for method in {each.method for each in TABLE}
}
_PLAIN = {
    place: next((each for each in candidates if not each.marks), None)
    for place, candidates in _CANDIDATES.items()
}
"""Operations of requests that have neither a query nor the header of a copy."""
_COPY_SOURCE = "x-amz-copy-source"
_PART_READS = {"GetObject": ("partNumber",), "HeadObject": ("partNumber",)}


def recognize(request: S3Request) -> Operation:
    """Raises S3Error for what is not served."""
    level = Level.OBJECT if request.key else Level.BUCKET if request.bucket else Level.SERVICE
    if not request.query and _COPY_SOURCE not in request.headers:
        plain = _PLAIN.get((level, request.method))
        if plain is not None:
            return plain
    given = SUBRESOURCES & request.query.keys()
    candidates = _CANDIDATES.get((level, request.method), ())
    for each in candidates:
        if all(_has(request, mark) for mark in each.marks):
            if other := given - {*each.marks, *_PART_READS.get(each.name, ())}:
                raise not_served(f"{request.method} with {', '.join(sorted(other))}")
            return each
    if given and candidates:
        raise not_served(f"{request.method} with {', '.join(sorted(given))}")
    raise S3Error("MethodNotAllowed", f"{request.method} is not allowed here.")


def _has(request: S3Request, mark: str) -> bool:
    name = mark.removeprefix("header:")
    return name in (request.headers if name != mark else request.query)
