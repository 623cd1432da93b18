"""Errors as clients of registries read them: a status, and a code of the OCI specification in JSON."""

from typing import Any

import orjson

from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_store import errors as store


class RegistryError(Exception):
    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: dict[str, str] | None = None,
        detail: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        self.detail = detail

    def body(self) -> bytes:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.detail is not None:
            error["detail"] = self.detail
        return orjson.dumps({"errors": [error]})


def denied() -> RegistryError:
    """The same for what does not exist and for what the caller may not see."""
    return RegistryError(
        403,
        "DENIED",
        "The registry does not exist, or your roles do not allow this. Ask an admin of the tenant.",
    )


def unsupported(message: str) -> RegistryError:
    return RegistryError(405, "UNSUPPORTED", message)


_CODES: tuple[tuple[type[Exception], int, str], ...] = (
    (store.NoSuchBucket, 403, "DENIED"),
    (store.BlobUnknown, 404, "BLOB_UNKNOWN"),
    (store.ManifestUnknown, 404, "MANIFEST_UNKNOWN"),
    (store.NoSuchKey, 404, "BLOB_UNKNOWN"),
    (store.NoSuchUpload, 404, "BLOB_UPLOAD_UNKNOWN"),
    (store.ContentHashMismatch, 400, "DIGEST_INVALID"),
    (store.ReferenceDiffers, 400, "MANIFEST_INVALID"),
    (store.ContentInUse, 405, "UNSUPPORTED"),
    (store.IncompleteBody, 400, "SIZE_INVALID"),
    (store.TooLarge, 413, "SIZE_INVALID"),
    (store.InvalidRequest, 400, "BLOB_UPLOAD_INVALID"),
    (store.QuotaExceeded, 403, "DENIED"),
    (store.StoreFull, 507, "UNAVAILABLE"),
    (store.StoreUnavailable, 503, "UNAVAILABLE"),
    (store.Damaged, 500, "UNKNOWN"),
)


def from_store(error: store.ObjectStoreError) -> RegistryError:
    if isinstance(error, store.ReferenceMissing):
        return RegistryError(404, "MANIFEST_BLOB_UNKNOWN", str(error), detail={"digests": error.digests})
    if isinstance(error, store.RangeNotSatisfiable):
        headers = {"Content-Range": f"bytes */{error.size}"}
        return RegistryError(416, "RANGE_INVALID", str(error), headers=headers)
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            headers = {"Retry-After": "5"} if status == 503 else {}
            return RegistryError(status, code, str(error), headers=headers)
    return RegistryError(500, "UNKNOWN", "The registry failed to process this request.")


def from_front(error: S3Error) -> RegistryError:
    """Return an error of the authorizer, which it names as S3 does."""
    code = "TOOMANYREQUESTS" if error.code == "SlowDown" else "UNAVAILABLE"
    status = 429 if error.code == "SlowDown" else 503
    return RegistryError(status, code, error.message, headers={"Retry-After": "5", **error.headers})
