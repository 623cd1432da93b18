"""Errors in the format of OpenAI clients: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from neocloud.core.contract.json_codec import Json, JsonObject


@dataclass
class OpenAiError(Exception):
    """An error response. The message says what happened and what to do next; it never holds a secret."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sent with the response, for example Retry-After."""

    def body(self) -> JsonObject:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> OpenAiError:
    return OpenAiError(400, message, param=param, code=code)


def not_authenticated(message: str) -> OpenAiError:
    return OpenAiError(401, message, type="authentication_error", code="invalid_api_key")


def forbidden(message: str) -> OpenAiError:
    return OpenAiError(403, message, type="permission_error", code="permission_denied")


def model_not_found(name: str) -> OpenAiError:
    """Return the same error whether the model does not exist or belongs to another tenant."""
    return OpenAiError(
        404,
        f"The model {name!r} does not exist or you do not have access to it."
        " `neo model list` and GET /v1/models list yours.",
        code="model_not_found",
        param="model",
    )


def unavailable(message: str, *, retry_after: int, code: str = "model_not_ready") -> OpenAiError:
    """Return a 503. `retry_after` is in seconds."""
    headers = {"Retry-After": str(retry_after)}
    return OpenAiError(503, message, type="service_unavailable_error", code=code, headers=headers)


DEFAULT_START_SECONDS = 30
ACCESS_ENDED = "right_ended"
STOPPED_STATES = ("STOPPED", "ERROR", "DELETING")
"""States in which requests do not start a replica."""


def model_server_error(status: int, data: bytes, *, served_name: str, name: str) -> OpenAiError:
    """Translate an error response of a model server.

    Its message is passed on where the request is at fault, and hidden where the gateway's credentials are.
    """
    if status in (401, 403):
        return OpenAiError(
            502,
            "The model server rejected the gateway's credentials. Report this to your administrator: the key"
            " of the deployment does not match.",
            type="server_error",
            code="engine_refused",
        )
    message, param = _message_and_param(data)
    if served_name != name:
        message = message.replace(served_name, name)
    if OUT_OF_VOCABULARY in message:
        message += (
            ". Token numbers are those of this model's own tokenizer. Send text instead (in LangChain:"
            " check_embedding_ctx_length=False)."
        )
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


OUT_OF_VOCABULARY = "is out of vocabulary"
"""Part of vLLM's message where a token number is none of the model: clients of OpenAI count in its tokens."""
GENERATION_FAILED = "Internal server error"
"""vLLM's whole message where one request failed and the engine continues: its grammar does not compile."""
COMPILING_TIMED_OUT = b"compilation timed out"


def not_compiled_error(param: str) -> OpenAiError:
    return bad_request(
        f"The model server could not compile {param}, or no answer can follow it: a schema or grammar that"
        " refers only to itself, or one with features that it does not have. Change it.",
        param=param,
        code="invalid_value",
    )


def _is_too_long(message: str) -> bool:
    text = message.lower()
    return "context length" in text or "maximum model length" in text or "longer than the maximum" in text


def _message_and_param(data: bytes) -> tuple[str, str | None]:
    try:
        content: Json = orjson.loads(data)
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


def replica_silent_error() -> OpenAiError:
    return OpenAiError(
        504,
        "The model server stopped responding. Send the request again.",
        type="server_error",
        code="replica_silent",
    )


def replica_lost_error() -> OpenAiError:
    return OpenAiError(
        502,
        "The connection to the model server was lost before the response was complete. Send the request"
        " again.",
        type="server_error",
        code="replica_lost",
    )


def access_ended_error() -> OpenAiError:
    return OpenAiError(
        401,
        "Your access ended while the request was in progress: the API key was revoked or expired, or the"
        " permission was removed. The response is incomplete.",
        type="authentication_error",
        code=ACCESS_ENDED,
    )


def adapter_not_loaded_error(name: str, reason: str) -> OpenAiError:
    return bad_request(
        f"The adapter {name!r} is not served: the model server could not load it: {reason.rstrip('.')}."
        " Correct its files, then delete and add it again.",
        param="model",
        code="model_not_loaded",
    )


def no_replicas_error(name: str, *, deployment_id: str, state: str, start_seconds: int) -> OpenAiError:
    if state in STOPPED_STATES:
        return unavailable(
            f"The deployment of {name!r} is {state}. See `neo inference deployment get"
            f" {deployment_id}` for the reason.",
            retry_after=DEFAULT_START_SECONDS,
        )
    seconds = start_seconds or DEFAULT_START_SECONDS
    return unavailable(
        f"The model {name!r} has no running replica. One is being started, which takes about"
        f" {seconds} s. Try again then, or send the header `x-neocloud-wait: SECONDS` to wait for it.",
        retry_after=seconds,
    )
