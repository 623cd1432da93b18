"""Requests of the page to models: the gateway's own paths under /chat, with the session in place of a key."""

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from neocloud.gateway.pages.guard import PATH, check_origin, check_place, token_of
from neocloud.gateway.pages.sessions import Sessions

PASSED_ON = {"/v1/chat/completions": "POST", "/v1/models": "GET"}
_NOT_PASSED = (b"cookie", b"authorization")


class PassOn:
    """To `gateway`, as if it had been sent there with the caller's token."""

    def __init__(self, gateway: ASGIApp, sessions: Sessions) -> None:
        self._gateway = gateway
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        check_place(request)
        if request.method != "GET":
            check_origin(request)
        token = token_of(request, self._sessions)
        path = scope["path"].removeprefix(PATH)
        headers = [header for header in scope["headers"] if header[0] not in _NOT_PASSED]
        headers.append((b"authorization", f"Bearer {token}".encode()))
        inner = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self._gateway(inner, receive, send)


def routes(gateway: ASGIApp, sessions: Sessions) -> list[Route]:
    pass_on = PassOn(gateway, sessions)
    return [Route(PATH + path, pass_on, methods=[method]) for path, method in PASSED_ON.items()]
