"""The ASGI application of the registry: who, may, do, answer and count, in this order."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from neocloud.core.logs import bind
from neocloud.data_plane.addresses import is_private, source_network
from neocloud.data_plane.rate_limits import Buckets, Rate
from neocloud.object_gateway.oci import blobs, lists, manifests, uploads
from neocloud.object_gateway.oci.authorizer import RegistryAuthorizer
from neocloud.object_gateway.oci.context import (
    JSON,
    Handler,
    RegistryContext,
    RegistryDependencies,
    RegistryRequest,
    read_request,
)
from neocloud.object_gateway.oci.errors import RegistryError, from_front, from_store, unsupported
from neocloud.object_gateway.oci.paths import Endpoint
from neocloud.object_gateway.s3.app import EGRESS_BYTES, new_request_id
from neocloud.object_gateway.s3.body import Body, ClientLeft
from neocloud.object_gateway.s3.context import Response
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.responses import Headers, encoded, send_response
from neocloud.object_store.errors import ObjectStoreError
from neocloud.object_store.types import Bucket, RequestClass

logger = logging.getLogger(__name__)
PREFIX = "/v2"
HANDLERS: Mapping[tuple[Endpoint, str], tuple[Handler, str]] = {
    (Endpoint.BLOB, "HEAD"): (blobs.head_blob, "pull"),
    (Endpoint.BLOB, "GET"): (blobs.get_blob, "pull"),
    (Endpoint.BLOB, "DELETE"): (blobs.delete_blob, "delete"),
    (Endpoint.UPLOADS, "POST"): (uploads.begin, "push"),
    (Endpoint.UPLOAD, "GET"): (uploads.status, "push"),
    (Endpoint.UPLOAD, "PATCH"): (uploads.append, "push"),
    (Endpoint.UPLOAD, "PUT"): (uploads.finish, "push"),
    (Endpoint.UPLOAD, "DELETE"): (uploads.cancel, "push"),
    (Endpoint.MANIFEST, "HEAD"): (manifests.head_manifest, "pull"),
    (Endpoint.MANIFEST, "GET"): (manifests.get_manifest, "pull"),
    (Endpoint.MANIFEST, "PUT"): (manifests.put_manifest, "push"),
    (Endpoint.MANIFEST, "DELETE"): (manifests.delete_manifest, "delete"),
    (Endpoint.TAGS, "GET"): (lists.list_tags, "pull"),
    (Endpoint.REFERRERS, "GET"): (lists.list_referrers, "pull"),
}
"""The handlers by method, with the action that a token needs and a role has to allow."""


@dataclass
class _Served:
    """Facts about a request, filled in while it is served."""

    request_id: str
    method: str
    client: str
    """Its address."""
    registry: Bucket | None = None
    status: int = 0
    uncounted_bytes: int = 0
    has_started: bool = False


class RegistryApp:
    def __init__(self, dependencies: RegistryDependencies) -> None:
        self._dependencies = dependencies
        self._authorizer = RegistryAuthorizer(dependencies)
        self._rates = Buckets(Rate(dependencies.requests_per_second), dependencies.clock.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: tuple[str, int] | None = scope.get("client")
        served = _Served(new_request_id(), scope["method"], client[0] if client else "")
        with bind(request_id=served.request_id):
            await self._serve(served, scope, receive, send)

    async def _serve(self, served: _Served, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(receive, {})
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            body = Body(receive, headers)
            response = await self._respond(served, read_request(scope), body)
            await self._send(send, served, body, response)
        except ClientLeft:
            return
        except (RegistryError, ObjectStoreError, S3Error) as error:
            await self._send_error(send, served, body, _as_registry(error))
        except Exception:
            logger.exception("internal error")
            message = f"The registry failed. Quote {served.request_id} to its operator."
            await self._send_error(send, served, body, RegistryError(500, "UNKNOWN", message))

    async def _respond(self, served: _Served, request: RegistryRequest, body: Body) -> Response:
        endpoint = request.path.endpoint
        if endpoint is Endpoint.TOKEN:
            self._limit(source_network(request.client))
            return await self._authorizer.give_token(request, body)
        handler, action = HANDLERS.get((endpoint, request.method), (None, "pull"))
        caller, token = await self._authorizer.caller(request, action)
        self._limit(caller.tenant_id)
        if endpoint is Endpoint.BASE and request.method in ("GET", "HEAD"):
            return Response(200, {"Content-Type": JSON}, b"{}" if request.method == "GET" else b"")
        if handler is None:
            raise unsupported(f"{request.method} is not served here.")
        registry = await self._authorizer.registry(request, caller, token, action)
        served.registry = registry
        context = RegistryContext(self._dependencies, request, body, caller, token, registry)
        response = await handler(context)
        if not response.is_counted:
            self._dependencies.store.count(registry.id, _class(endpoint))
        return response

    def _limit(self, payer: str) -> None:
        if self._rates.take(payer):
            raise RegistryError(
                429, "TOOMANYREQUESTS", "Please reduce your request rate.", headers={"Retry-After": "1"}
            )

    async def _send_error(self, send: Send, served: _Served, body: Body, error: RegistryError) -> None:
        if (
            served.has_started
        ):  # the server ends the connection, and the client sees that the body is not whole
            logger.error("the response was cut off: %s", error)
            return
        if error.status == 500:
            logger.error("%s", error)
        content = b"" if served.method == "HEAD" else error.body()
        response = Response(error.status, {"Content-Type": JSON, **error.headers}, content)
        try:
            await self._send(send, served, body, response)
        except ClientLeft:
            return

    async def _send(self, send: Send, served: _Served, body: Body, response: Response) -> None:
        served.status = response.status

        def head(is_last: bool) -> Headers:
            served.has_started = True
            return encoded(_headers(served, response, is_last=is_last))

        try:
            await send_response(send, body, response, head, lambda size: self._sent(served, size))
        finally:
            self._charge(served)

    def _sent(self, served: _Served, size: int) -> None:
        served.uncounted_bytes += size
        if served.uncounted_bytes >= EGRESS_BYTES:
            self._charge(served)

    def _charge(self, served: _Served) -> None:
        """Count bytes that were handed to the socket. Those of errors cost nothing."""
        size, served.uncounted_bytes = served.uncounted_bytes, 0
        if size and served.registry is not None and served.status < 400:
            is_near = is_private(served.client)
            self._dependencies.store.count(served.registry.id, None, egress_bytes=size, is_private=is_near)


def _class(endpoint: Endpoint) -> RequestClass:
    return RequestClass.LIST if endpoint in (Endpoint.TAGS, Endpoint.REFERRERS) else RequestClass.READ


def _headers(served: _Served, response: Response, *, is_last: bool) -> dict[str, str]:
    found = {
        "Docker-Distribution-Api-Version": "registry/2.0",
        "X-Content-Type-Options": "nosniff",
        "X-Request-Id": served.request_id,
        **response.headers,
    }
    if response.reader is not None:
        found["Content-Length"] = str(response.reader.length)
    elif response.length is not None:
        found["Content-Length"] = str(response.length)
    elif response.status != 204 and served.method != "HEAD":
        found["Content-Length"] = str(len(response.body))
    if is_last:
        found["Connection"] = "close"
    return found


def _as_registry(error: Exception) -> RegistryError:
    if isinstance(error, ObjectStoreError):
        return from_store(error)
    if isinstance(error, S3Error):
        return from_front(error)
    assert isinstance(error, RegistryError)
    return error
