"""The files of the page, read once. Other paths do not exist, and nothing is loaded from elsewhere."""

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from neocloud.gateway.pages.sessions import PATH, require_local

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


def routes() -> list[Route]:
    found = []
    for file in files("neocloud.gateway.pages").joinpath("static").iterdir():
        kind = KINDS.get(f".{file.name.rpartition('.')[2]}")
        if kind:
            path = PATH if file.name == "index.html" else f"{PATH}/static/{file.name}"
            found.append(_route(path, file.read_bytes(), kind))
    return found


def _route(path: str, content: bytes, kind: str) -> Route:
    headers = {**HEADERS, "Content-Type": kind, "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def serve(request: Request) -> Response:
        require_local(request)
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return Route(path, serve, methods=["GET"])
