"""The gateway as an ASGI application: which path is whose, and errors in one shape.

Requests to models go straight to the proxy. Everything else is rare and goes through Starlette.
"""

import asyncio
import logging
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from neocloud.gateway import asked
from neocloud.gateway.admission import Admission
from neocloud.gateway.callers import INVOKE
from neocloud.gateway.capacity import Capacity, Held
from neocloud.gateway.errors import OpenAiError, bad_request
from neocloud.gateway.exchange import Exchange, Stopped
from neocloud.gateway.hosts import Hosts
from neocloud.gateway.http import (
    ClientLeft,
    HttpSink,
    Receive,
    Scope,
    Send,
    new_request_id,
    read_body,
    watch_client,
)
from neocloud.gateway.proxy import Proxy
from neocloud.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

MOST_WAIT_SECONDS = 300.0
MOST_HELD_BYTES = 2 * 1024 * 1024
"""Most bytes that the body of another request counts for; uploads are written to disk in pieces."""


class GatewayApp:
    def __init__(
        self, admission: Admission, proxy: Proxy, settings: GatewaySettings, routes: Sequence[BaseRoute]
    ) -> None:
        self._admission = admission
        self._proxy = proxy
        self._settings = settings
        self._capacity = Capacity(settings)
        self._hosts = Hosts((settings.host, *settings.hosts))
        self.routes = tuple(routes)
        """All but those to models."""
        self._rest = Starlette(
            routes=list(routes),
            exception_handlers={HTTPException: _http_error, OpenAiError: _openai_error, Exception: _broken},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
        elif scope["path"] in asked.INPUT_FIELD and scope["method"] == "POST":
            await self._answer_model_request(scope, receive, send)
        else:
            scope.setdefault("state", {})["request_id"] = new_request_id()
            await self._answer_rest(scope, receive, _with_request_id(scope, send))

    async def _answer_rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Requests with a key that is known are counted; what they ask for refuses the others."""
        held = Held(self._capacity)
        try:
            self._hosts.check(scope)
            subject_id = await self._known_subject(scope)
            if subject_id:
                held.enter(subject_id)
                receive = _counted(receive, held)
            await self._rest(scope, receive, send)
        except OpenAiError as error:
            await _refusal(error)(scope, receive, send)
        finally:
            held.leave()

    async def _known_subject(self, scope: Scope) -> str:
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if not authorization or not scope["path"].startswith("/v1/"):
            return ""
        with suppress(OpenAiError):
            return (await self._admission.caller(authorization.decode("latin-1"))).subject_id
        return ""

    async def _answer_model_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        sink = HttpSink(send, request_id)
        watching: asyncio.Task[None] | None = None
        held = Held(self._capacity)
        try:
            self._hosts.check(scope)
            exchange = await self._exchange(scope, receive, request_id, held)
            watching = asyncio.create_task(watch_client(receive, lambda: exchange.stop("client_left")))
            await self._proxy.answer(exchange, sink)
        except OpenAiError as error:
            await sink.error(error)
        except (ClientLeft, Stopped):
            pass  # nobody is there to be told
        except Exception:
            logger.exception("Request %s broke the gateway", request_id)
            if sink.has_started:
                raise
            await sink.error(_internal())
        finally:
            held.leave()
            if watching is not None:
                watching.cancel()

    async def _exchange(self, scope: Scope, receive: Receive, request_id: str, held: Held) -> Exchange:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        caller = await self._admission.caller(authorization)
        project_id = caller.project(headers.get(b"openai-project", b"").decode("latin-1"), INVOKE)
        held.enter(caller.subject_id)
        raw = await read_body(headers, receive, self._settings.max_body_bytes, held.take)
        return Exchange(
            request_id=request_id,
            caller=caller,
            project_id=project_id,
            asked=asked.parse(scope["path"], raw, self._settings.media_domains),
            wait_seconds=_wait_seconds(headers.get(b"x-neocloud-wait", b"")),
            renew=partial(self._admission.caller, authorization),
        )


def _counted(receive: Receive, held: Held) -> Receive:
    async def receive_counted() -> MutableMapping[str, Any]:
        message = await receive()
        size = min(len(message.get("body", b"")), MOST_HELD_BYTES - held.size)
        held.take(size)
        return message

    return receive_counted


def _wait_seconds(header: bytes) -> float:
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_WAIT_SECONDS:
        raise bad_request(
            f"x-neocloud-wait must be a number of seconds from 0 to {MOST_WAIT_SECONDS:.0f}.",
            param="x-neocloud-wait",
        )
    return seconds


def _with_request_id(scope: Scope, send: Send) -> Send:
    header = (b"x-request-id", scope["state"]["request_id"].encode())

    async def send_with_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not any(name == header[0] for name, _ in headers):  # the page's answers have one already
                headers.append(header)
            message["headers"] = headers
        await send(message)

    return send_with_id


async def _http_error(request: Request, error: Any) -> Response:
    """What Starlette itself refuses: a path or a method that is not there."""
    if error.status_code == 405 or (error.status_code == 404 and request.url.path in asked.INPUT_FIELD):
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
    return await _openai_error(request, refused)


async def _openai_error(request: Request, error: Any) -> Response:
    return _refusal(error)


def _refusal(error: OpenAiError) -> Response:
    return JSONResponse(error.body(), error.status, headers=dict(error.headers))


async def _broken(request: Request, error: Exception) -> Response:
    return await _openai_error(request, _internal())


def _internal() -> OpenAiError:
    return OpenAiError(
        500,
        "The gateway failed to process this request. Quote this x-request-id to your administrator.",
        type="server_error",
        code="internal_error",
    )
