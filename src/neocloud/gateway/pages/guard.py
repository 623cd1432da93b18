"""What stands before each request to the page: only this machine, only its own scripts, only who signed in.

Cookies know no ports: another server on this machine can make a browser send ours. So what changes anything
must say that it comes from this very page, and the cookie counts on the page's own paths only.
"""

import ipaddress
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from neocloud.gateway.errors import OpenAiError, forbidden, not_authenticated
from neocloud.gateway.pages.sessions import SESSION_SECONDS, Sessions

PATH = "/chat"


def check_place(request: Request) -> None:
    """The page speaks plain HTTP, so it goes no further than this machine."""
    host = request.client.host if request.client else ""
    try:
        is_near = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_near = False
    if not is_near:
        raise forbidden("The chat page is available on this machine only. Reach it through `ssh -L`.")


def check_origin(request: Request) -> None:
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


def token_of(request: Request, sessions: Sessions) -> str:
    """Raises OpenAiError 401."""
    token = sessions.token(session_id(request))
    if token is None:
        raise not_authenticated(
            "You are not signed in, or your session has expired. Run `neo chat` for a new link."
        )
    return token


def give_cookie(response: Response, request: Request, session: str) -> None:
    response.set_cookie(
        _cookie(request),
        session,
        max_age=SESSION_SECONDS,
        path=PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def take_cookie(response: Response, request: Request) -> None:
    response.delete_cookie(_cookie(request), path=PATH, httponly=True, samesite="strict")


def _cookie(request: Request) -> str:
    """With the port: two clouds on one machine do not sign each other out."""
    try:
        port = _split(f"//{request.headers.get('host', '')}").port or 80
    except ValueError:
        port = 80
    return f"neocloud_chat_{port}"


def _split(address: str) -> SplitResult:
    """Return the parts of it; none when it is no URL."""
    try:
        return urlsplit(address)
    except ValueError:
        return SplitResult("", "", "", "", "")
