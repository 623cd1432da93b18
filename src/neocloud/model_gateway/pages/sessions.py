"""Sessions of the page, one-time codes, and the checks before each request. A restart ends all sessions.

A session holds the token of the caller, which is never sent to the page. Each request is authenticated by it,
so revoking the key ends the session. Codes and session ids are kept as hashes. Cookies know no ports: another
server on this machine can make a browser send ours, so changes require the page's own origin.
"""

import hashlib
import ipaddress
import secrets
from urllib.parse import SplitResult, urlsplit

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import Response

from neocloud.core.clock import Clock
from neocloud.model_gateway.api.errors import OpenAiError, forbidden, not_authenticated

CODE_SECONDS = 300
SESSION_SECONDS = 12 * 3600
MOST = 10_000
"""Most codes, and most sessions; the oldest are removed first."""


class Sessions:
    def __init__(self, clock: Clock) -> None:
        self._codes: TTLCache[bytes, str] = TTLCache(MOST, CODE_SECONDS, timer=clock.monotonic)
        self._sessions: TTLCache[bytes, str] = TTLCache(MOST, SESSION_SECONDS, timer=clock.monotonic)

    def new_code(self, token: str) -> str:
        """Return a new code for the caller who has this token."""
        return _keep(self._codes, token)

    def redeem_code(self, code: str) -> str | None:
        """Return the token of a code, once."""
        return self._codes.pop(_digest(code), None)

    def new_session(self, token: str) -> str:
        return _keep(self._sessions, token)

    def token(self, session_id: str) -> str | None:
        return self._sessions.get(_digest(session_id))

    def end(self, session_id: str) -> None:
        self._sessions.pop(_digest(session_id), None)


def _keep(where: "TTLCache[bytes, str]", token: str) -> str:
    name = secrets.token_urlsafe(32)
    where[_digest(name)] = token
    return name


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


PATH = "/chat"


def require_private(request: Request) -> None:
    """Raise OpenAiError 403 for plain HTTP from another machine."""
    if request.scope.get("scheme") == "https":
        return
    host = request.client.host if request.client else ""
    try:
        is_near = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_near = False
    if not is_near:
        raise forbidden(
            "Over plain HTTP, the chat page is available on this machine only. Reach it over https"
            " (`neo up --listen ADDRESS`), or through `ssh -L`."
        )


def require_same_origin(request: Request) -> None:
    host = request.headers.get("host", "")
    origin = request.headers.get("origin", "")
    if not host or _split(origin).netloc != host:
        raise OpenAiError(
            403,
            "This request does not come from the chat page. Reload the page and try again.",
            type="permission_error",
            code="wrong_origin",
        )


def session_id(request: Request) -> str:
    return request.cookies.get(_cookie(request), "")


def session_token(request: Request, sessions: Sessions) -> str:
    """Return the token of the session. Raises OpenAiError 401."""
    token = sessions.token(session_id(request))
    if token is None:
        raise not_authenticated(
            "You are not signed in, or your session has expired. Run `neo chat` for a new link."
        )
    return token


def set_session_cookie(response: Response, request: Request, session: str) -> None:
    response.set_cookie(
        _cookie(request),
        session,
        max_age=SESSION_SECONDS,
        path=PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def delete_session_cookie(response: Response, request: Request) -> None:
    response.delete_cookie(_cookie(request), path=PATH, httponly=True, samesite="strict")


def _cookie(request: Request) -> str:
    """Return the name of the cookie. It contains the port: two clouds on one machine do not sign each
    other out."""
    try:
        port = _split(f"//{request.headers.get('host', '')}").port or 80
    except ValueError:
        port = 80
    return f"neocloud_chat_{port}"


def _split(address: str) -> SplitResult:
    """Split a URL; the parts are empty when it is invalid."""
    try:
        return urlsplit(address)
    except ValueError:
        return SplitResult("", "", "", "", "")
