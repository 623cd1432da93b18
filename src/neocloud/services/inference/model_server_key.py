"""Asks for the engine's key on every path. Runs inside the engine, as vLLM's `--middleware`.

vLLM itself asks for its key below /v1 only: without this, whoever reaches the port could tokenize, render
prompts, read metrics or put the engine to sleep. The source is handed to the engine beside the key, so it
needs nothing but the standard library, and any version of the image runs it.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

MODULE = "neocloud_engine_key"
"""Under this name the engine imports this file."""
OPEN_PATHS = frozenset(("/health", "/ping"))
"""They say whether the engine is well, and nothing else."""
_REFUSAL = b'{"error": {"message": "The engine asks for its key.", "type": "authentication_error"}}'

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RequireKey:
    """An ASGI middleware. Raises RuntimeError where the engine was started without a key."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        key = os.environ.get("VLLM_API_KEY", "")
        if not key:
            raise RuntimeError("VLLM_API_KEY is not set: an engine without a key would answer anybody.")
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
