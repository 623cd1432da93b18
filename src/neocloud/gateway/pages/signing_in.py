"""Signing in at the page: by a one-time code that `neo chat` fetched, or by an API key; and out again."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neocloud.gateway import json_input
from neocloud.gateway.admission import Admission
from neocloud.gateway.callers import INVOKE, Caller
from neocloud.gateway.errors import OpenAiError, bad_request, not_authenticated
from neocloud.gateway.pages.guard import (
    PATH,
    check_origin,
    check_place,
    give_cookie,
    session_id,
    take_cookie,
    token_of,
)
from neocloud.gateway.pages.sessions import CODE_SECONDS, Sessions

MOST_BYTES = 64 * 1024
NO_STORE = {"Cache-Control": "no-store"}


def routes(admission: Admission, sessions: Sessions) -> list[Route]:
    async def make_link(request: Request) -> Response:
        """For who already has a token: what `neo chat` makes its link of."""
        authorization = request.headers.get("authorization", "")
        await admission.caller(authorization)
        code = sessions.new_code(authorization.partition(" ")[2].strip())
        answer = {"object": "chat.link", "code": code, "expires_in": CODE_SECONDS}
        return JSONResponse(answer, 201, NO_STORE)

    async def sign_in(request: Request) -> Response:
        check_place(request)
        check_origin(request)
        asked = await _fields(request)
        token = sessions.take_code(asked["code"]) if asked.get("code") else asked.get("key", "").strip()
        if not token:
            raise not_authenticated(
                "This link was already used or has expired. Run `neo chat` again for a new one."
                if asked.get("code")
                else "The API key is missing. Paste an API key, or run `neo chat`."
            )
        caller = await admission.caller(f"Bearer {token}")
        response = JSONResponse(_words(caller), 201, NO_STORE)
        sessions.end(session_id(request))
        give_cookie(response, request, sessions.new_session(token))
        return response

    async def who(request: Request) -> Response:
        check_place(request)
        caller = await admission.caller(f"Bearer {token_of(request, sessions)}")
        return JSONResponse(_words(caller), headers=NO_STORE)

    async def sign_out(request: Request) -> Response:
        check_place(request)
        check_origin(request)
        sessions.end(session_id(request))
        response = Response(status_code=204, headers=NO_STORE)
        take_cookie(response, request)
        return response

    return [
        Route("/v1/chat/links", make_link, methods=["POST"]),
        Route(f"{PATH}/session", sign_in, methods=["POST"]),
        Route(f"{PATH}/session", who, methods=["GET"]),
        Route(f"{PATH}/session", sign_out, methods=["DELETE"]),
    ]


def _words(caller: Caller) -> dict[str, Any]:
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
        if len(body) > MOST_BYTES:
            raise OpenAiError(413, f"The request body is larger than the limit of {MOST_BYTES} bytes.")
    try:
        fields = json_input.loads(body)
    except json_input.InvalidJson:
        fields = None
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise bad_request("The body must be a JSON object with the string code or key.", code="invalid_json")
    return fields
