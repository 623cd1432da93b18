"""Turn handlers into routes with authentication and OpenAI errors; read pages and bodies of requests."""

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request, not_authenticated
from neocloud.model_gateway.api.fields import InvalidJson, parse_json
from neocloud.model_gateway.authentication import Caller

T = TypeVar("T")


class CallerAuthenticator(Protocol):
    async def authenticate(self, authorization: str) -> Caller:
        """Return the caller of an Authorization header. Raises OpenAiError 401, or 503 when it cannot
        be checked."""
        ...

    async def refresh(self, caller: Caller) -> Caller:
        """Return the caller with its present permissions. Raises OpenAiError 401 where it has none
        any more, or 503."""
        ...


@dataclass(frozen=True)
class Page:
    after: str
    limit: int
    newest_first: bool


def read_page(query: Mapping[str, str], *, limit: int, most: int) -> Page:
    """Read paging parameters from a query."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request(f"Invalid order {order!r}. Use asc or desc.", param="order")
    given = query.get("limit", str(limit))
    if not given.isdecimal() or not 1 <= int(given) <= most:
        raise bad_request(f"Invalid limit {given!r}. Use a number from 1 to {most}.", param="limit")
    return Page(query.get("after", ""), int(given), order == "desc")


def list_response(items: Sequence[Mapping[str, object]], *, has_more: bool) -> dict[str, object]:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def page_of(items: Sequence[T], page: Page, id_of: Callable[[T], str]) -> tuple[Sequence[T], bool]:
    """Return a page of an ordered list, and whether more follow."""
    start = 0
    if page.after:
        start = next((n for n, item in enumerate(items, 1) if id_of(item) == page.after), -1)
        if start < 0:
            raise unknown_after(page.after)
    return items[start : start + page.limit], len(items) > start + page.limit


def unknown_after(after: str) -> OpenAiError:
    return bad_request(f"Invalid after {after!r}: this list has no such entry.", param="after")


logger = logging.getLogger(__name__)
MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True)
class ApiRequest:
    """An authenticated request."""

    http: Request
    caller: Caller

    def project(self, permission: str) -> str:
        """Return the project for what the request creates or lists."""
        return self.caller.project(self._named_project(), permission)

    def sees(self, permission: str, project_id: str) -> bool:
        """Return whether the caller has a permission on something in a project; if not, it does not
        exist for the caller."""
        return self._named_project() in ("", project_id) and self.caller.may(permission, project_id)

    @property
    def authorization(self) -> str:
        return self.http.headers.get("authorization", "")

    @property
    def client(self) -> str:
        """The address of the client; "" when it is unknown."""
        return self.http.client.host if self.http.client else ""

    def _named_project(self) -> str:
        return self.http.headers.get("openai-project", "")

    async def body(self) -> JsonObject:
        """Return the JSON object of the body; an empty body is an empty object."""
        raw = bytearray()
        async for chunk in self.http.stream():
            raw += chunk
            if len(raw) > MAX_BODY_BYTES:
                raise OpenAiError(
                    413, f"The request body is larger than the limit of {MAX_BODY_BYTES} bytes."
                )
        try:
            value: Json = parse_json(raw) if raw else {}
        except InvalidJson as error:
            raise bad_request(f"The body {error}.", code="invalid_json") from error
        if not isinstance(value, dict):
            raise bad_request("The body must be a JSON object.")
        return value


Handler = Callable[[ApiRequest], Awaitable[Response | Mapping[str, object]]]


def route(method: str, path: str, handler: Handler, callers: CallerAuthenticator) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await _answer(request, handler, callers)
        except OpenAiError as error:
            return refusal(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except sqlite3.OperationalError as error:
            logger.error("a database of the gateway cannot be written or read: %s", error)
            message = (
                "The database of the gateway is not available. Try again, or contact your administrator."
            )
            return refusal(OpenAiError(503, message, type="server_error", headers={"Retry-After": "5"}))

    return Route(path, endpoint, methods=[method])


async def _answer(request: Request, handler: Handler, callers: CallerAuthenticator) -> Response:
    authorization = request.headers.get("authorization", "")
    if not authorization:
        raise not_authenticated(
            "You did not provide an API key. Send it in the header `Authorization: Bearer KEY`."
        )
    answer = await handler(ApiRequest(request, await callers.authenticate(authorization)))
    return answer if isinstance(answer, Response) else JSONResponse(answer)


def refusal(error: OpenAiError) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers=dict(error.headers))


def reject_unknown(body: Mapping[str, Json], known: set[str]) -> None:
    for name in body:
        if name not in known:
            raise bad_request(
                f"Unknown parameter {name!r}. Supported parameters: {', '.join(sorted(known))}.",
                param=name,
                code="unknown_parameter",
            )


def text(body: Mapping[str, Json], name: str, *, required: bool = False) -> str:
    """Return a string of the body; "" when it is missing or null."""
    value = body.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise bad_request(f"{name} must be a non-empty string.", param=name)
    return value


LEAST_EXPIRY_SECONDS, MOST_EXPIRY_SECONDS = 3600, 30 * 24 * 3600
"""The limits of OpenAI."""


def expiry(given: Json, name: str) -> int:
    """Return the seconds of {"anchor": "created_at", "seconds": N}; 0 where it is missing."""
    if given is None:
        return 0
    if not isinstance(given, dict) or not given.keys() <= {"anchor", "seconds"}:
        raise bad_request(f'{name} must be {{"anchor": "created_at", "seconds": N}}.', param=name)
    if given.get("anchor") != "created_at":
        raise bad_request(f'{name}.anchor must be "created_at".', param=name)
    seconds = given.get("seconds")
    if isinstance(seconds, int) and LEAST_EXPIRY_SECONDS <= seconds <= MOST_EXPIRY_SECONDS:
        return seconds
    limits = f"{LEAST_EXPIRY_SECONDS} to {MOST_EXPIRY_SECONDS}"
    raise bad_request(f"{name}.seconds must be a whole number from {limits}.", param=name)


def metadata(body: Mapping[str, Json]) -> dict[str, str]:
    """Return metadata: at most 16 pairs, keys of 64 and values of 512 characters, as in OpenAI's API."""
    given = body.get("metadata") or {}
    if not isinstance(given, dict) or len(given) > 16:
        raise bad_request("metadata must be an object with at most 16 pairs.", param="metadata")
    found: dict[str, str] = {}
    for key, value in given.items():
        if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
            raise bad_request(
                f"metadata.{key[:64]}: keys are limited to 64 characters, values to strings of 512.",
                param="metadata",
            )
        found[key] = value
    return found
