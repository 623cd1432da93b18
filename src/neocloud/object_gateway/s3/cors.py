# pyright: strict
"""Cross-origin requests of browsers: preflights, and headers of responses, by the rules of the bucket."""

from collections.abc import Mapping

from neocloud.messages.nebius.storage.v1 import CORSRule
from neocloud.object_gateway.s3.bucket_view import view
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_store.types import Bucket

_METHOD, _HEADERS = "access-control-request-method", "access-control-request-headers"
_VARY = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"


def preflight(request: S3Request, bucket: Bucket | None) -> Mapping[str, str]:
    """Return the headers of the response to OPTIONS. Raises S3Error where no rule allows the request."""
    origin, method = request.header("origin"), request.header(_METHOD)
    if not origin or not method:
        raise S3Error("InvalidRequest", "A preflight needs Origin and Access-Control-Request-Method.")
    wanted = [each.strip().lower() for each in request.header(_HEADERS).split(",") if each.strip()]
    rule = _find(bucket, origin, method, wanted)
    if rule is None:
        raise S3Error("AccessForbidden", "No CORS rule of the bucket allows this request.")
    found = {**_allowed(rule, origin), "Vary": _VARY}
    if wanted:
        found["Access-Control-Allow-Headers"] = ", ".join(wanted)
    if rule.HasField("max_age_seconds"):
        found["Access-Control-Max-Age"] = str(rule.max_age_seconds)
    return found


def response_headers(request: S3Request, bucket: Bucket | None) -> Mapping[str, str]:
    """Return what lets a page of another origin read the response."""
    origin = request.header("origin")
    rule = _find(bucket, origin, request.method, ()) if origin else None
    if rule is None:
        return {}
    found = {**_allowed(rule, origin), "Vary": _VARY}
    if rule.expose_headers:
        found["Access-Control-Expose-Headers"] = ", ".join(rule.expose_headers)
    return found


def _find(
    bucket: Bucket | None, origin: str, method: str, headers: list[str] | tuple[str, ...]
) -> CORSRule | None:
    if bucket is None:
        return None
    for rule in view(bucket).spec.cors.rules:
        if (
            method in rule.allowed_methods
            and any(matches(each, origin) for each in rule.allowed_origins)
            and all(any(matches(each.lower(), name) for each in rule.allowed_headers) for name in headers)
        ):
            return rule
    return None


def _allowed(rule: CORSRule, origin: str) -> dict[str, str]:
    found = {"Access-Control-Allow-Methods": ", ".join(rule.allowed_methods)}
    if "*" in rule.allowed_origins:
        return {**found, "Access-Control-Allow-Origin": "*"}
    return {
        **found,
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
    }


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern with one "*" at most."""
    start, star, end = pattern.partition("*")
    if not star:
        return pattern == text
    return len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end)
