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
            "The engine refused the gateway. This is the operator's to mend: the two disagree about the"
            " engine's key.",
            type="server_error",
            code="engine_refused",
        )
    message, param = _words(data)
    if engine_name != name:
        message = message.replace(engine_name, name)
    if status == 404:
        return unavailable(
            f"The model {name!r} is not loaded yet in the replica that was asked. Try again.", retry_after=2
        )
    if status >= 500:
        return OpenAiError(
            status, message or "The engine failed.", type="server_error", code="engine_error", param=param
        )
    code = "context_length_exceeded" if _is_too_long(message) else None
    return OpenAiError(status, message or "The engine refused the request.", param=param, code=code)


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
        "The replica that worked on this request has said nothing for too long and was given up. Send it"
        " again.",
        type="server_error",
        code="replica_silent",
    )


def lost() -> OpenAiError:
    return OpenAiError(
        502,
        "The replica that worked on this request is gone. What it had made so far is all there is; send the"
        " request again.",
        type="server_error",
        code="replica_lost",
    )


def right_ended() -> OpenAiError:
    return OpenAiError(
        401,
        "The right to this request ended while it was answered: the key was revoked or has expired, or the"
        " permission was taken away. What was said so far is all there is.",
        type="authentication_error",
        code=RIGHT_ENDED,
    )


def cold(target: Target) -> OpenAiError:
    deployment = target.deployment
    if deployment.state in STOPPED_STATES:
        return unavailable(
            f"The deployment of {target.name!r} is {deployment.state}. `neo inference deployment get"
            f" {deployment.id}` says why.",
            retry_after=DEFAULT_START_SECONDS,
        )
    seconds = deployment.start_seconds or DEFAULT_START_SECONDS
    return unavailable(
        f"No replica of {target.name!r} runs now; one is being started, which takes about {seconds} s. Try"
        " again then, or send the header `x-neocloud-wait: SECONDS` to be held until it is ready.",
        retry_after=seconds,
    )
