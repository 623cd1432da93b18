"""S3's side of `data_plane.http.protocol`: errors in XML."""

from neocloud.data_plane.http.connections import Answer, ClientConnections, ConnectionLimits, Refusal
from neocloud.object_gateway.s3.app import HEALTH_PATH, new_request_id
from neocloud.object_gateway.s3.errors import S3Error

_CODES = {400: "InvalidRequest", 408: "RequestTimeout", 431: "InvalidRequest", 503: "SlowDown"}


def s3_connections(limits: ConnectionLimits) -> ClientConnections:
    return ClientConnections(limits, HEALTH_PATH, _answer)


def _answer(refusal: Refusal) -> Answer:
    """Return headers and body of a refusal that the application does not see."""
    request_id = new_request_id()
    error = S3Error(_CODES.get(refusal.status, "InvalidRequest"), refusal.message)
    headers = {"Content-Type": "application/xml", "x-amz-request-id": request_id}
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(refusal.retry_after)
    return headers, error.body("", request_id)
