"""The gateway as an ASGI application: routing by path, and errors in one format.

Model requests go straight to the proxy. All other requests are rare and are served by Starlette.
"""

import itertools
import logging
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from neocloud.core.contract.json_codec import JsonObject
from neocloud.core.logs import bind
from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.api.fields import RESPONSES
from neocloud.model_gateway.api.lengths import INPUT_FIELD
from neocloud.model_gateway.api.request import RequestContext, parse_body, read_request
from neocloud.model_gateway.authentication import INVOKE, AllowedHosts, Authenticator, Caller
from neocloud.model_gateway.metering.limits import RequestLimits, RequestSlot
from neocloud.model_gateway.routing.proxy import Proxy
from neocloud.model_gateway.routing.relay import CLIENT_LEFT, Headers, RequestStopped, ResponseWriter
from neocloud.model_gateway.settings import GatewaySettings


class ClientLeft(Exception):
    """The client disconnected before its request was complete."""


_PROCESS = secrets.token_hex(10)
_NUMBERS = itertools.count(1)


def new_request_id() -> str:
    """Return a unique request id, also across processes. It is not a secret; random bytes for each cost
    20 microseconds."""
    return f"req_{_PROCESS}{next(_NUMBERS):012x}"


async def read_body(
    scope_headers: dict[bytes, bytes], receive: Receive, most_bytes: int, take: Callable[[int], None]
) -> bytes:
    """Return the body. `take` is called with the size of each piece, and may raise.

    Raises OpenAiError 413 as soon as the body is too large, without reading the rest.
    """
    length = scope_headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > most_bytes:
        raise too_large(most_bytes)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    body: bytes = message.get("body", b"")
    take(len(body))
    if not message.get("more_body"):
        return body
    pieces, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > most_bytes:
            raise too_large(most_bytes)
        take(len(pieces[-1]))
    return b"".join(pieces)


def too_large(most_bytes: int) -> OpenAiError:
    return OpenAiError(
        413,
        f"The request body is larger than the limit of {most_bytes} bytes. Send less data per request.",
        code="request_too_large",
    )


class HttpResponseWriter:
    """Sends a response to an HTTP client."""

    __slots__ = ("_send", "_request_id", "has_started")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.has_started = False

    async def whole(self, status: int, headers: Headers, data: bytes) -> None:
        await self.start(status, (*headers, (b"content-length", b"%d" % len(data))))
        await self._send({"type": "http.response.body", "body": data})

    async def start(self, status: int, headers: Headers) -> None:
        self.has_started = True
        all_headers = [*headers, (b"x-request-id", self._request_id)]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def error(self, error: OpenAiError) -> None:
        headers = [(b"content-type", b"application/json")]
        headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        if error.status == 413:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self.whole(error.status, headers, orjson.dumps(error.body()))


LeaveCallbacks = set[Callable[[], None]]
LEAVE_CALLBACKS = "neocloud.leave_callbacks"
"""Key in the state of a request: functions that the server calls when the client disconnects. ASGI's own way,
a task that waits for a message, costs a tenth of a short request."""


logger = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 300.0
MAX_COUNTED_BYTES = 2 * 1024 * 1024
"""Most bytes that the body of another request counts for; uploads are written to disk in pieces."""


class ResponseSteps(Protocol):
    """Steps of the gateway itself for some requests to /v1/responses."""

    def is_wanted(self, body: JsonObject) -> bool: ...

    async def prepare(
        self,
        caller: Caller,
        project_id: str,
        body: JsonObject,
        wait_seconds: float,
        client: ResponseWriter,
    ) -> tuple[JsonObject, ResponseWriter]:
        """Return the body for the model server, and the writer that passes its response to the client. Raises
        OpenAiError."""
        ...


@contextmanager
def _leaving(scope: Scope) -> Generator[Callable[[], bool]]:
    """Yield a function that returns whether the client has disconnected within the block."""
    callbacks: LeaveCallbacks = scope["state"][LEAVE_CALLBACKS]
    left: list[bool] = []
    note = partial(left.append, True)
    callbacks.add(note)
    try:
        yield lambda: bool(left)
    finally:
        callbacks.discard(note)


class GatewayApp:
    def __init__(
        self,
        authenticator: Authenticator,
        proxy: Proxy,
        settings: GatewaySettings,
        routes: Sequence[BaseRoute],
        responses: ResponseSteps | None = None,
    ) -> None:
        self._responses = responses
        self._authenticator = authenticator
        self._proxy = proxy
        self._settings = settings
        self._limits = RequestLimits(settings)
        self._hosts = AllowedHosts((settings.host, *settings.hosts))
        self.routes = tuple(routes)
        """All routes except those of models."""
        self._starlette = Starlette(
            routes=list(routes),
            exception_handlers={
                HTTPException: _http_error,
                OpenAiError: _openai_error,
                Exception: _unexpected_error,
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._starlette(scope, receive, send)
        elif scope["path"] in INPUT_FIELD and scope["method"] == "POST":
            await self._serve_model_request(scope, receive, send)
        else:
            scope.setdefault("state", {})["request_id"] = new_request_id()
            await self._serve_other(scope, receive, _with_request_id(scope, send))

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that is not to a model. Requests with a known key count towards the limits."""
        slot = RequestSlot(self._limits)
        try:
            self._hosts.check(scope)
            subject_id = await self._known_subject(scope)
            if subject_id:
                slot.acquire(subject_id)
                receive = _counted(receive, slot)
            await self._starlette(scope, receive, send)
        except OpenAiError as error:
            await _error_response(error)(scope, receive, send)
        finally:
            slot.release()

    async def _known_subject(self, scope: Scope) -> str:
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if not authorization or not scope["path"].startswith("/v1/"):
            return ""
        with suppress(OpenAiError):
            return (await self._authenticator.authenticate(authorization.decode("latin-1"))).subject_id
        return ""

    async def _serve_model_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        with bind(request_id=request_id):
            await self._serve_model_request_as(request_id, scope, receive, send)

    async def _serve_model_request_as(
        self, request_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        writer = HttpResponseWriter(send, request_id)
        callbacks: LeaveCallbacks = scope["state"][LEAVE_CALLBACKS]
        stop: Callable[[], None] | None = None
        slot = RequestSlot(self._limits)
        try:
            self._hosts.check(scope)
            context, answer = await self._context(scope, receive, request_id, slot, writer)
            relay = self._proxy.new_relay(context, answer)
            stop = partial(relay.stop, CLIENT_LEFT)
            callbacks.add(stop)  # nothing was awaited since the body ended, so no leave was missed
            await self._proxy.answer(relay)
        except OpenAiError as error:
            logger.debug("refused: %d %s", error.status, error.code)
            await writer.error(error)
        except (ClientLeft, RequestStopped):
            pass  # the client has gone
        except Exception:
            logger.exception("internal error")
            if writer.has_started:
                raise
            await writer.error(_internal_error())
        finally:
            slot.release()
            if stop is not None:
                callbacks.discard(stop)

    async def _context(
        self, scope: Scope, receive: Receive, request_id: str, slot: RequestSlot, writer: ResponseWriter
    ) -> tuple[RequestContext, ResponseWriter]:
        """Return the request, and where its response goes."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        caller = await self._authenticator.authenticate(authorization)
        project_id = caller.project(headers.get(b"openai-project", b"").decode("latin-1"), INVOKE)
        slot.acquire(caller.subject_id)
        raw = await read_body(headers, receive, self._settings.max_body_bytes, slot.add_bytes)
        wait_seconds = _wait_seconds(headers.get(b"x-neocloud-wait", b""))
        body = parse_body(raw)
        if self._responses is not None and scope["path"] == RESPONSES and self._responses.is_wanted(body):
            with _leaving(scope) as has_left:
                body, writer = await self._responses.prepare(caller, project_id, body, wait_seconds, writer)
            if has_left():
                raise ClientLeft
        context = RequestContext(
            request_id=request_id,
            caller=caller,
            project_id=project_id,
            request=read_request(scope["path"], body, self._settings.media_domains),
            wait_seconds=wait_seconds,
            refresh_caller=partial(self._authenticator.authenticate, authorization),
        )
        return context, writer


def _counted(receive: Receive, slot: RequestSlot) -> Receive:
    async def receive_counted() -> Message:
        message = await receive()
        size = min(len(message.get("body", b"")), MAX_COUNTED_BYTES - slot.size)
        slot.add_bytes(size)
        return message

    return receive_counted


def _wait_seconds(header: bytes) -> float:
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise bad_request(
            f"x-neocloud-wait must be a number of seconds from 0 to {MAX_WAIT_SECONDS:.0f}.",
            param="x-neocloud-wait",
        )
    return seconds


def _with_request_id(scope: Scope, send: Send) -> Send:
    header = (b"x-request-id", scope["state"]["request_id"].encode())

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not any(
                name == header[0] for name, _ in headers
            ):  # responses through the page have one already
                headers.append(header)
            message["headers"] = headers
        await send(message)

    return send_with_id


async def _http_error(request: Request, error: Exception) -> Response:
    """Translate errors of Starlette: an unknown path or a method that is not allowed."""
    assert isinstance(error, HTTPException), "Starlette selects the handler by the class of the error."
    if error.status_code == 405 or (error.status_code == 404 and request.url.path in INPUT_FIELD):
        allowed = (error.headers or {}).get("Allow", "POST")
        refused = OpenAiError(
            405,
            f"{request.url.path} does not accept {request.method}. Use {allowed}.",
            code="method_not_allowed",
            headers={"Allow": allowed},
        )
    elif error.status_code == 404:
        refused = OpenAiError(404, f"Unknown URL: {request.method} {request.url.path}.", code="unknown_url")
    else:
        refused = OpenAiError(error.status_code, str(error.detail))
    return _error_response(refused)


async def _openai_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OpenAiError), "Starlette selects the handler by the class of the error."
    return _error_response(error)


def _error_response(error: OpenAiError) -> Response:
    return JSONResponse(error.body(), error.status, headers=dict(error.headers))


async def _unexpected_error(request: Request, error: Exception) -> Response:
    return _error_response(_internal_error())


def _internal_error() -> OpenAiError:
    return OpenAiError(
        500,
        "The gateway failed to process this request. Quote this x-request-id to your administrator.",
        type="server_error",
        code="internal_error",
    )
