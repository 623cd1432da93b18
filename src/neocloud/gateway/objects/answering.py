"""Turns handlers into routes: who calls is asked first, and every refusal has OpenAI's shape."""

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neocloud.gateway import json_input
from neocloud.gateway.callers import Caller
from neocloud.gateway.errors import OpenAiError, bad_request, not_authenticated
from neocloud.gateway.objects.borders import Callers

log = logging.getLogger("neocloud.gateway.objects")
MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True)
class Asked:
    """A request and whose it is."""

    request: Request
    caller: Caller

    def project(self, permission: str) -> str:
        """Where what it makes or lists belongs."""
        return self.caller.project(self._named_project(), permission)

    def sees(self, permission: str, project_id: str) -> bool:
        """Whether it may do that to something of the project; when not, that does not exist for it."""
        return self._named_project() in ("", project_id) and self.caller.may(permission, project_id)

    @property
    def authorization(self) -> str:
        return self.request.headers.get("authorization", "")

    @property
    def client(self) -> str:
        """The address that the request came from; "" when it is not known."""
        return self.request.client.host if self.request.client else ""

    def _named_project(self) -> str:
        return self.request.headers.get("openai-project", "")

    async def body(self) -> dict[str, Any]:
        """Its JSON object; an empty body is an empty one."""
        raw = bytearray()
        async for chunk in self.request.stream():
            raw += chunk
            if len(raw) > MAX_BODY_BYTES:
                raise OpenAiError(
                    413, f"The request body is larger than the limit of {MAX_BODY_BYTES} bytes."
                )
        try:
            value = json_input.loads(raw) if raw else {}
        except json_input.InvalidJson as error:
            raise bad_request(f"The body {error}.", code="invalid_json") from error
        if not isinstance(value, dict):
            raise bad_request("The body must be a JSON object.")
        return value


Handler = Callable[[Asked], Awaitable[Response | dict[str, Any]]]


def route(method: str, path: str, handler: Handler, callers: Callers) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await _answer(request, handler, callers)
        except OpenAiError as error:
            return refusal(error)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except sqlite3.OperationalError as error:
            log.error("files.db cannot be written or read: %s", error)
            message = (
                "The database of the gateway is not available. Try again, or contact your administrator."
            )
            return refusal(OpenAiError(503, message, type="server_error", headers={"Retry-After": "5"}))

    return Route(path, endpoint, methods=[method])


async def _answer(request: Request, handler: Handler, callers: Callers) -> Response:
    authorization = request.headers.get("authorization", "")
    if not authorization:
        raise not_authenticated(
            "You did not provide an API key. Send it in the header `Authorization: Bearer KEY`."
        )
    answer = await handler(Asked(request, await callers.caller(authorization)))
    return answer if isinstance(answer, Response) else JSONResponse(answer)


def refusal(error: OpenAiError) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers=dict(error.headers))


def only_known(body: dict[str, Any], known: set[str]) -> None:
    for name in body:
        if name not in known:
            raise bad_request(
                f"Unknown parameter {name!r}. Supported parameters: {', '.join(sorted(known))}.",
                param=name,
                code="unknown_parameter",
            )


def text(body: dict[str, Any], name: str, *, required: bool = False) -> str:
    """A string of the body; "" when left out or null."""
    value = body.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise bad_request(f"{name} must be a non-empty string.", param=name)
    return value


def metadata(body: dict[str, Any]) -> dict[str, str]:
    """OpenAI's: at most 16 pairs, keys of 64 and values of 512 characters."""
    given = body.get("metadata") or {}
    if not isinstance(given, dict) or len(given) > 16:
        raise bad_request("metadata must be an object with at most 16 pairs.", param="metadata")
    for key, value in given.items():
        if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
            raise bad_request(
                f"metadata.{key[:64]}: keys are limited to 64 characters, values to strings of 512.",
                param="metadata",
            )
    return given
