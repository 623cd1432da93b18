"""The token exchange as OAuth libraries call it (RFC 8693): an HTML form in, JSON out."""

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from neocloud.core import contract
from neocloud.server.pipeline import Pipeline
from neocloud.server.request import SOURCE_HEADER

TOKEN_EXCHANGE_PATH = "/oauth2/token/exchange"
_RPC = "nebius.iam.v1.TokenExchangeService/Exchange"
_MAX_FORM_BYTES = 64 * 1024
_MAX_FIELDS = 32


class TokenExchangeForm:
    """An ASGI application of one path."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await (await self._exchange(request))(scope, receive, send)

    async def _exchange(self, request: Request) -> JSONResponse:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                return _refusal("invalid_request", f"The form is larger than {_MAX_FORM_BYTES} bytes.")
        try:
            form = parse_qs(body.decode(), strict_parsing=True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            form = {}
        if not form:
            return _refusal("invalid_request", "The body is not a form (application/x-www-form-urlencoded).")
        content = {name: values if name in _REPEATED else values[0] for name, values in form.items()}
        answer = await self._pipeline.answer(
            _RPC,
            lambda cls: contract.from_dict(cls, _known(cls, content)),
            {**request.headers, SOURCE_HEADER: request.client.host if request.client else ""},
            size=len(body),
        )
        if answer.error is not None:
            return _refusal(_ERRORS.get(answer.error.code, "server_error"), answer.error.message)
        granted = contract.to_dict(answer.message)
        granted["expires_in"] = answer.message.expires_in
        return JSONResponse(granted, headers={"cache-control": "no-store"})


_REPEATED = frozenset({"scopes"})
_ERRORS = {
    contract.Code.INVALID_ARGUMENT: "invalid_request",
    contract.Code.UNAUTHENTICATED: "invalid_grant",
    contract.Code.PERMISSION_DENIED: "unauthorized_client",
}


def _known(message_class: type, content: Mapping[str, object]) -> dict[str, object]:
    """OAuth servers ignore parameters they do not know (RFC 6749 section 3.2)."""
    names = message_class.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    return {name: value for name, value in content.items() if name in names}


def _refusal(error: str, description: str) -> JSONResponse:
    status = 500 if error == "server_error" else 400
    return JSONResponse({"error": error, "error_description": description}, status_code=status)
