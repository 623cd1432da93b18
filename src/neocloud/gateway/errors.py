"""Errors in the shape that OpenAI clients read: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class OpenAiError(Exception):
    """Refuses a request. The message says what is wrong and what to do; it never holds a secret."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with the answer, e.g. Retry-After."""

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> OpenAiError:
    return OpenAiError(400, message, param=param, code=code)


def not_authenticated(message: str) -> OpenAiError:
    return OpenAiError(401, message, type="authentication_error", code="invalid_api_key")


def forbidden(message: str) -> OpenAiError:
    return OpenAiError(403, message, type="permission_error", code="permission_denied")


def model_not_found(name: str) -> OpenAiError:
    """The same words whether there is none or it is another tenant's."""
    return OpenAiError(
        404,
        f"The model {name!r} does not exist or you do not have access to it."
        " GET /v1/models lists your models.",
        code="model_not_found",
        param="model",
    )


def unavailable(message: str, *, retry_after: int, code: str = "model_not_ready") -> OpenAiError:
    """`retry_after` in seconds."""
    headers = {"Retry-After": str(retry_after)}
    return OpenAiError(503, message, type="service_unavailable_error", code=code, headers=headers)
