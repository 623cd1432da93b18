"""S3's errors, with the codes and statuses of its published list; what fails elsewhere, as S3 has it."""

from collections.abc import Mapping

from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.object_gateway.access import RefusalCode, Refused
from neocloud.object_gateway.s3.xml_out import document, element
from neocloud.object_store import errors as store
from neocloud.object_store.types import ObjectVersion

STATUS = {
    "AccessControlListNotSupported": 400,
    "AccessDenied": 403,
    "AccessForbidden": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyExists": 409,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "ConditionalRequestConflict": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "ExpiredToken": 400,
    "IllegalLocationConstraintException": 400,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketAclWithObjectOwnership": 400,
    "InvalidBucketName": 400,
    "InvalidBucketState": 409,
    "InvalidChunkSizeError": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidPolicyDocument": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidRetentionPeriod": 400,
    "InvalidStorageClass": 400,
    "InvalidTag": 400,
    "InvalidToken": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedPOSTRequest": 400,
    "MalformedPolicy": 400,
    "MalformedTrailerError": 400,
    "MalformedXML": 400,
    "MaxPostPreDataLengthExceededError": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "MissingRequestBodyError": 400,
    "NoSuchBucket": 404,
    "NoSuchBucketPolicy": 404,
    "NoSuchCORSConfiguration": 404,
    "NoSuchKey": 404,
    "NoSuchLifecycleConfiguration": 404,
    "NoSuchObjectLockConfiguration": 404,
    "NoSuchPublicAccessBlockConfiguration": 404,
    "NoSuchTagSet": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NoSuchWebsiteConfiguration": 404,
    "NotImplemented": 501,
    "NotModified": 304,
    "ObjectLockConfigurationNotFoundError": 404,
    "OperationAborted": 409,
    "OwnershipControlsNotFoundError": 404,
    "PreconditionFailed": 412,
    "QuotaExceeded": 403,
    "ReplicationConfigurationNotFoundError": 404,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "TooManyBuckets": 400,
    "XAmzContentSHA256Mismatch": 400,
}


class S3Error(Exception):
    """The message says what happened and what to do next. `headers` are those of the response, `details`
    elements of its body."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code]
        self.message = message
        self.headers = dict(headers or {})
        self.details = dict(details or {})

    def body(self, resource: str, request_id: str) -> bytes:
        content = [element("Code", self.code), element("Message", self.message)]
        content += [element(name, value) for name, value in self.details.items()]
        content += [element("Resource", resource), element("RequestId", request_id)]
        return document("Error", *content, namespace="")


def invalid(message: str, *, name: str = "", value: str = "") -> S3Error:
    """Return the error of an argument that cannot be used."""
    details = {"ArgumentName": name, "ArgumentValue": value[:200]} if name else {}
    return S3Error("InvalidArgument", message, details=details)


def denied(message: str = "Access denied.") -> S3Error:
    return S3Error("AccessDenied", message)


def no_acls() -> S3Error:
    return S3Error(
        "AccessControlListNotSupported",
        "The bucket does not allow ACLs. Give roles on paths by the bucket policy of the storage API.",
    )


def not_served(what: str) -> S3Error:
    return S3Error("NotImplemented", f"{what} is not served here.")


_CODES: tuple[tuple[type[Exception], str], ...] = (
    (store.NoSuchBucket, "NoSuchBucket"),
    (store.BucketNotEmpty, "BucketNotEmpty"),
    (store.NoSuchUpload, "NoSuchUpload"),
    (store.NoSuchVersion, "NoSuchVersion"),
    (store.InvalidPart, "InvalidPart"),
    (store.InvalidPartOrder, "InvalidPartOrder"),
    (store.InvalidPartNumber, "InvalidPartNumber"),
    (store.PartTooSmall, "EntityTooSmall"),
    (store.KeyTooLong, "KeyTooLongError"),
    (store.InvalidKey, "InvalidURI"),
    (store.InvalidRequest, "InvalidRequest"),
    (store.QuotaExceeded, "QuotaExceeded"),
    (store.TooLarge, "EntityTooLarge"),
    (store.IncompleteBody, "IncompleteBody"),
    (store.DigestMismatch, "BadDigest"),
    (store.ContentHashMismatch, "XAmzContentSHA256Mismatch"),
    (store.ChecksumMismatch, "BadDigest"),
    (store.ObjectLocked, "AccessDenied"),
    (store.WrongCustomerKey, "InvalidRequest"),
    (store.StoreFull, "ServiceUnavailable"),
    (store.StoreBusy, "SlowDown"),
    (store.StoreUnavailable, "ServiceUnavailable"),
    (store.Damaged, "InternalError"),
)
_REFUSALS = {
    RefusalCode.DENIED: "AccessDenied",
    RefusalCode.INVALID: "InvalidArgument",
    RefusalCode.NOT_FOUND: "NoSuchBucket",
    RefusalCode.NAME_TAKEN: "BucketAlreadyExists",
    RefusalCode.CONFLICT: "OperationAborted",
    RefusalCode.QUOTA: "TooManyBuckets",
    RefusalCode.NOT_SERVED: "NotImplemented",
}
RETRY_SECONDS = "5"


def marker_headers(marker: ObjectVersion) -> dict[str, str]:
    return {"x-amz-delete-marker": "true", "x-amz-version-id": marker.version_id}


def from_store(error: store.ObjectStoreError) -> S3Error:
    message = str(error)
    if isinstance(error, store.NoSuchKey):
        headers = marker_headers(error.marker) if error.marker else {}
        return S3Error("NoSuchKey", message or "The object does not exist.", headers=headers)
    if isinstance(error, store.IsDeleteMarker):
        headers = {**marker_headers(error.marker), "Allow": "DELETE"}
        return S3Error("MethodNotAllowed", message, headers=headers)
    if isinstance(error, store.ConditionFailed):
        return S3Error("PreconditionFailed", message, details={"Condition": error.condition})
    if isinstance(error, store.RangeNotSatisfiable):
        headers = {"Content-Range": f"bytes */{error.size}"}
        return S3Error(
            "InvalidRange", message, headers=headers, details={"ActualObjectSize": str(error.size)}
        )
    for kind, code in _CODES:
        if isinstance(error, kind):
            headers = {"Retry-After": RETRY_SECONDS} if STATUS[code] == 503 else {}
            return S3Error(code, message, headers=headers)
    return S3Error("InternalError", "The object store failed to process this request.")


def from_refusal(error: Refused) -> S3Error:
    return S3Error(_REFUSALS[error.code], str(error))


def from_away(error: ControlPlaneUnavailable) -> S3Error:
    """The reason is in the log: callers are not told addresses."""
    message = "The control plane is not reachable at the moment. Try again."
    return S3Error("ServiceUnavailable", message, headers={"Retry-After": RETRY_SECONDS})
