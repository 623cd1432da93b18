"""Routes of the page: its files, sign-in by one-time code or API key, sign-out, and requests to models.

The files are read once. Other paths do not exist, and nothing is loaded from elsewhere.
"""

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from neocloud.core.clock import Clock
from neocloud.model_gateway.api.errors import OpenAiError, bad_request, not_authenticated
from neocloud.model_gateway.api.fields import InvalidJson, parse_json
from neocloud.model_gateway.authentication import INVOKE, Authenticator, Caller
from neocloud.model_gateway.pages.sessions import (
    CODE_SECONDS,
    PATH,
    Sessions,
    delete_session_cookie,
    require_private,
    require_same_origin,
    session_id,
    session_token,
    set_session_cookie,
)

MAX_BODY_BYTES = 64 * 1024
NO_STORE = {"Cache-Control": "no-store"}


def sign_in_routes(authenticator: Authenticator, sessions: Sessions) -> list[Route]:
    async def create_link(request: Request) -> Response:
        """Create the one-time code for the link that `neo chat` prints. The caller needs a token."""
        authorization = request.headers.get("authorization", "")
        await authenticator.authenticate(authorization)
        code = sessions.new_code(authorization.partition(" ")[2].strip())
        answer = {"object": "chat.link", "code": code, "expires_in": CODE_SECONDS}
        return JSONResponse(answer, 201, NO_STORE)

    async def sign_in(request: Request) -> Response:
        require_private(request)
        require_same_origin(request)
        fields = await _fields(request)
        token = sessions.redeem_code(fields["code"]) if fields.get("code") else fields.get("key", "").strip()
        if not token:
            raise not_authenticated(
                "This link was already used or has expired. Run `neo chat` again for a new one."
                if fields.get("code")
                else "The API key is missing. Paste an API key, or run `neo chat`."
            )
        caller = await authenticator.authenticate(f"Bearer {token}")
        response = JSONResponse(_session_body(caller), 201, NO_STORE)
        sessions.end(session_id(request))
        set_session_cookie(response, request, sessions.new_session(token))
        return response

    async def get_session(request: Request) -> Response:
        require_private(request)
        caller = await authenticator.authenticate(f"Bearer {session_token(request, sessions)}")
        return JSONResponse(_session_body(caller), headers=NO_STORE)

    async def sign_out(request: Request) -> Response:
        require_private(request)
        require_same_origin(request)
        sessions.end(session_id(request))
        response = Response(status_code=204, headers=NO_STORE)
        delete_session_cookie(response, request)
        return response

    return [
        Route("/v1/chat/links", create_link, methods=["POST"]),
        Route(f"{PATH}/session", sign_in, methods=["POST"]),
        Route(f"{PATH}/session", get_session, methods=["GET"]),
        Route(f"{PATH}/session", sign_out, methods=["DELETE"]),
    ]


def _session_body(caller: Caller) -> dict[str, object]:
    projects = [project for project in caller.grants if caller.may(INVOKE, project)]
    return {
        "name": caller.subject_name or caller.subject_id,
        "projects": sorted(projects),
        "home_project": caller.home_project_id,
    }


async def _fields(request: Request) -> dict[str, str]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise OpenAiError(413, f"The request body is larger than the limit of {MAX_BODY_BYTES} bytes.")
    try:
        fields = parse_json(body)
    except InvalidJson:
        fields = None
    given = fields if isinstance(fields, dict) else {}
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    if not isinstance(fields, dict) or len(texts) < len(fields):
        raise bad_request("The body must be a JSON object with the string code or key.", code="invalid_json")
    return texts


PASSED_ON = {
    "/v1/chat/completions": "POST",
    "/v1/responses": "POST",
    "/v1/vector_stores": "GET",
    "/v1/feedback": "POST",
    "/v1/models": "GET",
}
_NOT_PASSED = (b"cookie", b"authorization")


class ForwardToGateway:
    """Forwards a request to `gateway` with the token of the session."""

    def __init__(self, gateway: ASGIApp, sessions: Sessions) -> None:
        self._gateway = gateway
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        require_private(request)
        if request.method != "GET":
            require_same_origin(request)
        token = session_token(request, self._sessions)
        path = scope["path"].removeprefix(PATH)
        headers = [header for header in scope["headers"] if header[0] not in _NOT_PASSED]
        headers.append((b"authorization", f"Bearer {token}".encode()))
        inner = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self._gateway(inner, receive, send)


def forwarding_routes(gateway: ASGIApp, sessions: Sessions) -> list[Route]:
    pass_on = ForwardToGateway(gateway, sessions)
    return [Route(PATH + path, pass_on, methods=[method]) for path, method in PASSED_ON.items()]


class Pages:
    """The page. `gateway` is the application that these routes are part of."""

    def __init__(self, authenticator: Authenticator, gateway: ASGIApp, clock: Clock) -> None:
        self._authenticator = authenticator
        self._gateway = gateway
        self.sessions = Sessions(clock)

    def routes(self) -> list[Route]:
        return [
            *asset_routes(),
            *sign_in_routes(self._authenticator, self.sessions),
            *forwarding_routes(self._gateway, self.sessions),
        ]


KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",
}


def asset_routes() -> list[Route]:
    found: list[Route] = []
    for file in files("neocloud.model_gateway.pages").joinpath("static").iterdir():
        kind = KINDS.get(f".{file.name.rpartition('.')[2]}")
        if kind:
            path = PATH if file.name == "index.html" else f"{PATH}/static/{file.name}"
            found.append(_route(path, file.read_bytes(), kind))
    return found


def _route(path: str, content: bytes, kind: str) -> Route:
    headers = {**HEADERS, "Content-Type": kind, "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def serve(request: Request) -> Response:
        require_private(request)
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return Route(path, serve, methods=["GET"])
