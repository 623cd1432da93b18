"""What engines say when they refuse, in the words that OpenAI's clients know."""

from typing import Any

import orjson

from neocloud.gateway.errors import OpenAiError, unavailable
from neocloud.gateway.routes import Target

DEFAULT_START_SECONDS = 30
RIGHT_ENDED = "right_ended"
STOPPED_STATES = ("STOPPED", "ERROR", "DELETING")
"""Nobody wakes it by asking."""


def from_engine(status: int, data: bytes, *, engine_name: str, name: str) -> OpenAiError:
    """The engine's own words for what is wrong with the request; not for what is wrong between us and it."""
    if status in (401, 403):
        return OpenAiError(
            502,
            "The model server rejected the gateway's credentials. Report this to your administrator: the key"
            " of the deployment does not match.",
            type="server_error",
            code="engine_refused",
        )
    message, param = _words(data)
    if engine_name != name:
        message = message.replace(engine_name, name)
    if status == 404:
        return unavailable(f"The model {name!r} is still being loaded. Try again.", retry_after=2)
    if status >= 500:
        return OpenAiError(
            status,
            message or "The model server failed.",
            type="server_error",
            code="engine_error",
            param=param,
        )
    code = "context_length_exceeded" if _is_too_long(message) else None
    return OpenAiError(status, message or "The model server rejected the request.", param=param, code=code)


def _is_too_long(message: str) -> bool:
    text = message.lower()
    return "context length" in text or "maximum model length" in text or "longer than the maximum" in text


def _words(data: bytes) -> tuple[str, str | None]:
    try:
        content: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data[:500].decode("utf-8", "replace"), None
    if not isinstance(content, dict):
        return str(content)[:500], None
    error = content.get("error", content)
    if not isinstance(error, dict):
        return str(error), None
    message = error.get("message") or error.get("detail") or ""
    param = error.get("param")
    return str(message), param if isinstance(param, str) else None


def silent() -> OpenAiError:
    return OpenAiError(
        504,
        "The model server stopped responding. Send the request again.",
        type="server_error",
        code="replica_silent",
    )


def lost() -> OpenAiError:
    return OpenAiError(
        502,
        "The connection to the model server was lost before the response was complete. Send the request"
        " again.",
        type="server_error",
        code="replica_lost",
    )


def right_ended() -> OpenAiError:
    return OpenAiError(
        401,
        "Your access ended while the request was in progress: the API key was revoked or expired, or the"
        " permission was removed. The response is incomplete.",
        type="authentication_error",
        code=RIGHT_ENDED,
    )


def cold(target: Target) -> OpenAiError:
    deployment = target.deployment
    if deployment.state in STOPPED_STATES:
        return unavailable(
            f"The deployment of {target.name!r} is {deployment.state}. See `neo inference deployment get"
            f" {deployment.id}` for the reason.",
            retry_after=DEFAULT_START_SECONDS,
        )
    seconds = deployment.start_seconds or DEFAULT_START_SECONDS
    return unavailable(
        f"The model {target.name!r} has no running replica. One is being started, which takes about"
        f" {seconds} s. Try again then, or send the header `x-neocloud-wait: SECONDS` to wait for it.",
        retry_after=seconds,
    )
