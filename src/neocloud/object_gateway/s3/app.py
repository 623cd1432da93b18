"""The ASGI application: who, may, do, answer, count and audit, in this order."""

import itertools
import logging
import secrets
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Receive, Scope, Send

from neocloud.core import contract
from neocloud.core.logs import bind
from neocloud.core.untrusted.xml_elements import MalformedXml
from neocloud.data_plane.addresses import is_private, source_network
from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.data_plane.rate_limits import Buckets, Rate
from neocloud.messages.neocloud.storage.v1 import ObjectEvent
from neocloud.object_gateway.access import Refused, UnknownAccessKey
from neocloud.object_gateway.s3 import responses
from neocloud.object_gateway.s3.authorizer import ANONYMOUS, Caller
from neocloud.object_gateway.s3.body import Body, ClientLeft, declared_length
from neocloud.object_gateway.s3.bucket_view import cors_headers, cors_preflight, is_audited, view
from neocloud.object_gateway.s3.context import XML, Response, S3Context, S3Dependencies, no_such_bucket
from neocloud.object_gateway.s3.errors import (
    S3Error,
    denied,
    from_away,
    from_refusal,
    from_store,
)
from neocloud.object_gateway.s3.handlers import HANDLERS
from neocloud.object_gateway.s3.headers import check_owner, http_date
from neocloud.object_gateway.s3.operations import LIST, Level, Operation, recognize
from neocloud.object_gateway.s3.operations import Scope as PolicyScope
from neocloud.object_gateway.s3.request import S3Request, read_request
from neocloud.object_gateway.s3.responses import Headers, encoded, send_response
from neocloud.object_store.errors import NoSuchBucket, NotModified, ObjectStoreError
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket

HEALTH_PATH = "/-/health"
"""No bucket can have this name."""
EGRESS_BYTES = 64 * 1024 * 1024
"""Bytes of a long answer are counted at least this often."""
logger = logging.getLogger(__name__)
_MAX_AUDITED_CHARACTERS = 1024
_PROCESS = secrets.token_hex(6).upper()
_NUMBERS = itertools.count(1)


def new_request_id() -> str:
    """Return a unique request id, also across processes. It is not a secret."""
    return f"{_PROCESS}{next(_NUMBERS):010X}"


def bounded(text: str) -> str:
    """Return what a client wrote as an audit event has it."""
    return text[:_MAX_AUDITED_CHARACTERS]


class Audit(Protocol):
    def record(self, event: ObjectEvent) -> None: ...


@dataclass
class _Served:
    """Facts about a request, filled in while it is served."""

    request_id: str
    request: S3Request | None = None
    operation: Operation | None = None
    caller: Caller = ANONYMOUS
    bucket: Bucket | None = None
    status: int = 0
    error: str = ""
    sent_bytes: int = 0
    uncounted_bytes: int = 0
    key: str = ""
    has_started: bool = False


_EXPECTED = (S3Error, ObjectStoreError, MalformedXml, Refused, ControlPlaneUnavailable, UnknownAccessKey)


class S3App:
    def __init__(self, dependencies: S3Dependencies, audit: Audit) -> None:
        self._dependencies = dependencies
        self.audit = audit
        self._rates = Buckets(Rate(dependencies.settings.requests_per_second), dependencies.clock.monotonic)

    @property
    def store(self) -> ObjectStore:
        return self._dependencies.store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == HEALTH_PATH:
            await _send_plain(send, b"ok\n")
            return
        served = _Served(new_request_id())
        with bind(request_id=served.request_id):
            await self._serve(served, scope, receive, send)

    async def _serve(self, served: _Served, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(receive, {})
        try:
            served.request = request = read_request(
                scope, served.request_id, self._dependencies.settings.domains
            )
            body = Body(receive, request.headers)
            served.bucket = self._bucket(request.bucket)
            response = await self._respond(served, request, body)
            await self._send(send, served, body, response)
        except ClientLeft:
            served.error = "ClientLeft"
        except _EXPECTED as error:
            await self._send_error(send, served, body, error)
        except Exception:
            logger.exception("internal error")
            error = S3Error("InternalError", "The server failed. Quote the request id to its operator.")
            await self._send_error(send, served, body, error)
        finally:
            self._record(served)

    def _bucket(self, name: str) -> Bucket | None:
        if not name:
            return None
        try:
            return self._dependencies.store.bucket(name)
        except NoSuchBucket:
            return None

    async def _respond(self, served: _Served, request: S3Request, body: Body) -> Response:
        if request.method == "OPTIONS":
            return Response(200, dict(cors_preflight(request, served.bucket)))
        served.operation = operation = recognize(request)
        served.key = request.key
        served.caller = caller = await self._dependencies.authorizer.authenticate(request, body)
        payer = caller.tenant_id or source_network(request.client)
        if self._rates.take(payer):
            raise S3Error("SlowDown", "Please reduce your request rate.", headers={"Retry-After": "1"})
        handler = HANDLERS.get(operation.name)
        if handler is None:
            raise S3Error("NotImplemented", f"{operation.name} is not served here.")
        context = S3Context(self._dependencies, request, operation, caller, body, served.bucket)
        await self._check_right(context)
        try:
            response = await handler(context)
        except ObjectStoreError as error:
            raise await self._shown(context, error) from error
        finally:
            served.caller, served.key = context.caller, context.key
        self._count(served, response)
        return response

    async def _check_right(self, context: S3Context) -> None:
        """Raises S3Error. Operations that check themselves do so before they do anything."""
        operation, request = context.operation, context.request
        if operation.level is Level.SERVICE or operation.name == "CreateBucket":
            return
        if context.bucket is None:
            raise no_such_bucket(request.bucket)
        check_owner(request.header("x-amz-expected-bucket-owner"), context.bucket)
        if operation.scope is PolicyScope.OWN:
            return
        path = request.get("prefix") if operation.scope is PolicyScope.PREFIX else request.key
        await context.dependencies.authorizer.require(
            context.caller, context.bucket, operation.permission, path, operation.scope
        )

    async def _shown(self, context: S3Context, error: ObjectStoreError) -> Exception:
        """Return an error as this caller may see it: who may not list does not learn which keys there are."""
        if isinstance(error, NotModified):
            return error
        found = from_store(error)
        if found.code in ("NoSuchKey", "NoSuchVersion") and context.bucket is not None:
            authorizer, bucket = context.dependencies.authorizer, context.bucket
            if not await authorizer.is_allowed(context.caller, bucket, LIST, context.key, PolicyScope.PREFIX):
                return denied()
        if found.status == 500:
            logger.error("%s", error)
        return found

    def _count(self, served: _Served, response: Response) -> None:
        if served.bucket is not None and served.operation is not None and not response.is_counted:
            self._dependencies.store.count(served.bucket.id, served.operation.request)

    async def _send_error(self, send: Send, served: _Served, body: Body, error: Exception) -> None:
        found = _as_s3(error)
        served.error = found.code
        if (
            served.has_started
        ):  # the server ends the connection, and the client sees that the body is not whole
            logger.error("the response was cut off: %s", error)
            return
        request = served.request
        response = Response(found.status, dict(found.headers))
        if isinstance(error, NotModified):
            response.headers.update(
                {"ETag": f'"{error.version.etag}"', "Last-Modified": http_date(error.version.modified_at)}
            )
            response.headers.update(responses.version_id(error.version))
        elif request is None or request.method != "HEAD":
            response.headers["Content-Type"] = XML
            response.body = found.body(request.resource if request else "", served.request_id)
        await self._send(send, served, body, response)

    async def _send(self, send: Send, served: _Served, body: Body, response: Response) -> None:
        """Send a response, and count its bytes."""
        served.status = response.status

        def head(is_last: bool) -> Headers:
            served.has_started = True
            return self._headers(served, response, is_last=is_last)

        try:
            await send_response(send, body, response, head, lambda size: self._sent(served, size))
        finally:
            self._charge(served)

    def _headers(self, served: _Served, response: Response, *, is_last: bool) -> Headers:
        found: dict[str, str] = {"x-amz-request-id": served.request_id, **response.headers}
        if served.request is not None and served.request.method != "OPTIONS":
            found.update(cors_headers(served.request, served.bucket))
        if response.reader is not None:
            found["Content-Length"] = str(response.reader.length)
        elif response.length is not None:
            found["Content-Length"] = str(response.length)
        elif response.status not in (204, 304):
            found["Content-Length"] = str(len(response.body))
        if is_last:
            found["Connection"] = "close"
        return encoded(found)

    def _sent(self, served: _Served, size: int) -> None:
        served.sent_bytes += size
        served.uncounted_bytes += size
        if served.uncounted_bytes >= EGRESS_BYTES:
            self._charge(served)

    def _charge(self, served: _Served) -> None:
        """Count bytes that were handed to the socket. Those of errors cost nothing."""
        size, served.uncounted_bytes = served.uncounted_bytes, 0
        if size and served.bucket is not None and served.status < 400:
            client = served.request.client if served.request is not None else ""
            self._dependencies.store.count(
                served.bucket.id, None, egress_bytes=size, is_private=is_private(client)
            )

    def _record(self, served: _Served) -> None:
        request, operation, bucket = served.request, served.operation, served.bucket
        if request is None or operation is None or bucket is None:
            return
        if not is_audited(bucket, is_change=operation.is_change):
            return
        caller = served.caller
        event = ObjectEvent(
            id=f"auditevent-{served.request_id.lower()}",
            at=contract.timestamp(self._dependencies.clock.now()),
            request_id=served.request_id,
            operation=operation.name,
            bucket_id=bucket.id,
            bucket=bucket.name,
            tenant_id=view(bucket).tenant_id,
            key=bounded(served.key),
            version_id=bounded(request.get("versionId")),
            subject_id=caller.subject_id,
            access_key_id=caller.aws_access_key_id,
            is_presigned=caller.is_presigned,
            client=request.client,
            user_agent=bounded(request.header("user-agent")),
            status=served.status,
            error=served.error,
            received_bytes=declared_length(request.headers) or 0,
            sent_bytes=served.sent_bytes,
        )
        self.audit.record(event)


def _as_s3(error: Exception) -> S3Error:
    if isinstance(error, S3Error):
        return error
    if isinstance(error, NotModified):
        return S3Error("NotModified", str(error))
    if isinstance(error, ObjectStoreError):
        return from_store(error)
    if isinstance(error, MalformedXml):
        return S3Error("MalformedXML", str(error))
    if isinstance(error, Refused):
        return from_refusal(error)
    if isinstance(error, ControlPlaneUnavailable):
        logger.warning("The control plane did not answer: %s", error)
        return from_away(error)
    if isinstance(error, UnknownAccessKey):
        return S3Error("InvalidAccessKeyId", "The access key does not exist, or may not be used.")
    raise AssertionError("_EXPECTED has no others.")


async def _send_plain(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
