"""JSON over HTTP: `POST /<package.Service>/<Method>`, in the shape of Connect's unary calls.

The same pipeline as gRPC. Besides it: health, metrics for operators, the status page for signed-in callers,
and the token exchange as an HTML form (RFC 8693).
"""

import base64
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs

from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from neocloud import __version__
from neocloud.core import contract, releases
from neocloud.core.readers import Subject
from neocloud.core.service import HttpRoute
from neocloud.data_plane.http.server import HostNames
from neocloud.server.listening import HEALTH_PATH
from neocloud.server.metrics_page import MEDIA_TYPE, MetricsPage
from neocloud.server.pipeline import Answer, Pipeline
from neocloud.server.request import SOURCE_HEADER
from neocloud.server.validation import check_size, check_tree

HTTP_STATUS: Mapping[contract.Code, int] = {
    contract.Code.CANCELLED: 499,
    contract.Code.UNKNOWN: 500,
    contract.Code.INVALID_ARGUMENT: 400,
    contract.Code.DEADLINE_EXCEEDED: 504,
    contract.Code.NOT_FOUND: 404,
    contract.Code.ALREADY_EXISTS: 409,
    contract.Code.PERMISSION_DENIED: 403,
    contract.Code.RESOURCE_EXHAUSTED: 429,
    contract.Code.FAILED_PRECONDITION: 400,
    contract.Code.ABORTED: 409,
    contract.Code.OUT_OF_RANGE: 400,
    contract.Code.UNIMPLEMENTED: 501,
    contract.Code.INTERNAL: 500,
    contract.Code.UNAVAILABLE: 503,
    contract.Code.DATA_LOSS: 500,
    contract.Code.UNAUTHENTICATED: 401,
}

StatusReport = Callable[[Subject], Awaitable[Mapping[str, object]]]
"""The part of the cloud's state that this caller may know."""


DISCOVERY_PATH = "/.well-known/neocloud"


@dataclass(frozen=True)
class Discovery:
    """The data that a client on another machine needs before it signs in."""

    authority: bytes
    """The certificate to trust, in PEM form; the client compares its fingerprint with the operator's."""
    grpc_port: int
    gateway_port: int


class JsonFront:
    def __init__(
        self,
        pipeline: Pipeline,
        status: StatusReport | None,
        host_names: Iterable[str],
        routes: Iterable[HttpRoute] = (),
        metrics: MetricsPage | None = None,
    ) -> None:
        """`routes` are APIs of other programs that services offer."""
        self._metrics = metrics
        self._pipeline = pipeline
        self._routes = [
            Route(route.pattern, ForwardedCalls(pipeline, route), methods=list(route.methods))
            for route in routes
        ]
        self._status = status
        self._names = HostNames(host_names)
        self.is_ready = False

    def application(self, discovery: Callable[[], Discovery] | None = None) -> Starlette:
        """Return the application; `discovery` is for the side that other machines reach."""

        async def discover(request: Request) -> Response:
            assert discovery is not None, "Else there is no such route."
            found = discovery()
            document = {**asdict(found), "authority": found.authority.decode(), "version": __version__}
            return JSONResponse(document, headers={"cache-control": "no-store"})

        routes = [
            *([Route(DISCOVERY_PATH, discover, methods=["GET"])] if discovery else []),
            Route(HEALTH_PATH, self._health, methods=["GET"]),
            Route("/status", self._report, methods=["GET"]),
            *([Route("/metrics", self._read_metrics, methods=["GET"])] if self._metrics else []),
            Route(TOKEN_EXCHANGE_PATH, TokenExchangeForm(self._pipeline), methods=["POST"]),
            Route("/{service}/{method}", self._call, methods=["POST"]),
            *self._routes,
        ]
        return Starlette(routes=routes, middleware=[Middleware(KnownHostsOnly, names=self._names)])

    def collectors_application(self) -> Starlette:
        """Return what collectors of metrics reach, and nothing else."""
        routes = [Route("/metrics", self._read_metrics, methods=["GET"])] if self._metrics else []
        return Starlette(routes=routes, middleware=[Middleware(KnownHostsOnly, names=self._names)])

    async def _health(self, request: Request) -> Response:
        state = "ready" if self.is_ready else "starting"
        return JSONResponse(
            {"status": state, "version": __version__}, status_code=200 if self.is_ready else 503
        )

    async def _report(self, request: Request) -> Response:
        try:
            subject = await self._pipeline.known_caller(headers_of(request))
        except contract.ApiError as error:
            return _error_response(Answer("", error=error))
        if self._status is None:
            return _error_response(Answer("", error=contract.unimplemented("/status")))
        return JSONResponse(dict(await self._status(subject)))

    async def _read_metrics(self, request: Request) -> Response:
        assert self._metrics is not None, "Else there is no such route."
        try:
            await self._metrics.authorize(headers_of(request), self._pipeline.known_caller)
        except contract.ApiError as error:
            return _error_response(Answer("", error=error))
        return Response(
            await self._metrics.text(), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"}
        )

    async def _call(self, request: Request) -> Response:
        path = f"{request.path_params['service']}/{request.path_params['method']}"
        try:
            _require_json(request)
            body = await read_body(request, self._pipeline.max_bytes(path))
        except contract.ApiError as error:
            return _error_response(Answer("", error=error))
        answer = await self._pipeline.answer(
            path,
            lambda cls: contract.from_json(cls, body, check=check_tree),
            headers_of(request),
            size=len(body),
        )
        if answer.error is not None:
            return _error_response(answer)
        text = contract.to_json(answer.message, proto_names=False)
        return Response(text, media_type="application/json", headers=_identity(answer))


class KnownHostsOnly:
    """Refuses requests under a name that is not this server's."""

    def __init__(self, app: ASGIApp, names: HostNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._names.unknown(scope) if scope["type"] == "http" else None
        if name is None:
            await self._app(scope, receive, send)
            return
        message = (
            f"Unknown host name {name[:80]!r}. `neo status` shows the names and addresses of this cloud."
        )
        answer = JSONResponse({"code": "permission_denied", "message": message}, status_code=421)
        await answer(scope, receive, send)


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers, with the address that the request came from."""
    return {**request.headers, SOURCE_HEADER: request.client.host if request.client else ""}


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body. Raises ApiError when it is longer than `limit` bytes, without reading the rest."""
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            check_size(size, limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise contract.bad_request([], "The body ended too early.") from None
    return b"".join(chunks)


def _require_json(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise contract.bad_request([], "The body must be JSON: send 'Content-Type: application/json'.")


def _identity(answer: Answer) -> dict[str, str]:
    version = {releases.HEADER: answer.version} if answer.version else {}
    return {"x-request-id": answer.request_id, "x-trace-id": answer.request_id, **version}


def _error_response(answer: Answer) -> Response:
    error = answer.error
    assert error is not None
    content: dict[str, object] = {"code": error.code.name.lower(), "message": error.message}
    if error.code is contract.Code.CANCELLED:
        content["code"] = "canceled"
    details = error.status(answer.service).details
    if details:
        content["details"] = [_detail(packed) for packed in details]
    headers = _identity(answer)
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_seconds))
    return JSONResponse(content, status_code=HTTP_STATUS[error.code], headers=headers)


def _detail(packed: Any) -> dict[str, object]:
    return {
        "type": packed.type_url.rpartition("/")[2],
        "value": base64.b64encode(packed.value).decode().rstrip("="),
        "debug": contract.to_dict(contract.unpack(packed), proto_names=False),
    }


class ForwardedCalls:
    """An API of another program (`HttpRoute`): each call goes through the pipeline as a method's request."""

    def __init__(self, pipeline: Pipeline, route: HttpRoute) -> None:
        self._pipeline = pipeline
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await (await self._respond(request))(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = self._route.methods.get(request.method)
        if path is None:  # HEAD, which comes with GET
            return Response(status_code=405)
        try:
            body = await read_body(request, self._pipeline.max_bytes(path))
        except contract.ApiError as error:
            return _error_response(Answer("", error=error))
        fields = {**request.path_params, "query": request.url.query, "body": body}
        size = sum(len(value) for value in fields.values())

        def decode(cls: type[Any]) -> Message:
            return cls(**{name: fields[name] for name in cls.DESCRIPTOR.fields_by_name})

        answer = await self._pipeline.answer(path, decode, self._headers(request), size=size)
        if answer.error is not None:
            return _error_response(answer)
        return Response(
            answer.message.body,
            status_code=answer.message.status,
            media_type="application/json",
            headers={**_identity(answer), "cache-control": "no-store"},
        )

    def _headers(self, request: Request) -> dict[str, str]:
        headers = headers_of(request)
        token = headers.get(self._route.token_header, "")
        if token and "authorization" not in headers:
            headers["authorization"] = f"Bearer {token}"
        return headers


TOKEN_EXCHANGE_PATH = "/oauth2/token/exchange"
_RPC = "nebius.iam.v1.TokenExchangeService/Exchange"
_MAX_FORM_BYTES = 64 * 1024
_MAX_FIELDS = 32


class TokenExchangeForm:
    """The token exchange as OAuth libraries call it (RFC 8693): an HTML form in, JSON out."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await (await self._exchange(request))(scope, receive, send)

    async def _exchange(self, request: Request) -> JSONResponse:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                return _refusal("invalid_request", f"The form is larger than {_MAX_FORM_BYTES} bytes.")
        try:
            form = parse_qs(body.decode(), strict_parsing=True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            form = {}
        if not form:
            return _refusal("invalid_request", "The body is not a form (application/x-www-form-urlencoded).")
        content = {name: values if name in _REPEATED else values[0] for name, values in form.items()}
        answer = await self._pipeline.answer(
            _RPC,
            lambda cls: contract.from_dict(cls, _known(cls, content)),
            {**request.headers, SOURCE_HEADER: request.client.host if request.client else ""},
            size=len(body),
        )
        if answer.error is not None:
            return _refusal(_ERRORS.get(answer.error.code, "server_error"), answer.error.message)
        granted = contract.to_dict(answer.message)
        granted["expires_in"] = answer.message.expires_in
        return JSONResponse(granted, headers={"cache-control": "no-store"})


_REPEATED = frozenset({"scopes"})
_ERRORS = {
    contract.Code.INVALID_ARGUMENT: "invalid_request",
    contract.Code.FAILED_PRECONDITION: "invalid_request",
    contract.Code.UNAUTHENTICATED: "invalid_grant",
    contract.Code.PERMISSION_DENIED: "unauthorized_client",
}


def _known(message_class: type, content: Mapping[str, object]) -> dict[str, object]:
    """OAuth servers ignore parameters they do not know (RFC 6749 section 3.2)."""
    names = message_class.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    return {name: value for name, value in content.items() if name in names}


def _refusal(error: str, description: str) -> JSONResponse:
    status = 500 if error == "server_error" else 400
    return JSONResponse({"error": error, "error_description": description}, status_code=status)
