"""Asks for the engine's key on every path. Runs inside the engine, as vLLM's `--middleware`.

vLLM itself asks for its key below /v1 only: without this, whoever reaches the port could tokenize, render
prompts, read metrics or put the engine to sleep. The source is handed to the engine beside the key, so it
needs nothing but the standard library, and any version of the image runs it.

It also proves that it has the key, to who asks with a challenge: see `data_plane/replica_proof.py`. As a
plugin of vLLM it lowers the priority of the threads that compile schemas, grammars and expressions.
"""

import hashlib
import hmac
import importlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

MODULE = "neocloud_engine_key"
"""Under this name the engine imports this file."""
ENTRY_POINTS = f"[vllm.general_plugins]\nneocloud = {MODULE}:lower_compile_priority\n"
"""vLLM finds its plugins in files with this content, `entry_points.txt` of a distribution."""
COMPILE_NICENESS = 19
"""The lowest priority: one seventieth of a processor's time where the model wants all of it."""
OPEN_PATHS = frozenset(("/health", "/ping"))
"""They say whether the engine is well, and nothing else."""
PROOF_PATH, CHALLENGE_HEADER = "/neocloud/proof", b"x-neocloud-challenge"
CHALLENGE_BYTES = 64
_PROOF_CONTEXT = "neocloud replica proof"
_REFUSAL = b'{"error": {"message": "The engine asks for its key.", "type": "authentication_error"}}'

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


class RequireKey:
    """An ASGI middleware. Raises RuntimeError where the engine was started without a key."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        key = os.environ.get("VLLM_API_KEY", "")
        if not key:
            raise RuntimeError("VLLM_API_KEY is not set: an engine without a key would answer anybody.")
        self._app = app
        self._key = key.encode()
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("path") == PROOF_PATH:
            await self._prove(scope, send)
        elif scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})

    async def _prove(self, scope: Scope, send: Send) -> None:
        """Answer with a digest of the challenge and of the address at which the connection came in."""
        given = [value for name, value in scope.get("headers", ()) if name == CHALLENGE_HEADER]
        server = scope.get("server")
        status, body = 400, b""
        if len(given) == 1 and len(given[0]) == CHALLENGE_BYTES and given[0].isalnum() and server:
            text = "\n".join((_PROOF_CONTEXT, given[0].decode("ascii"), f"{server[0]}:{server[1]}"))
            status, body = 200, hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest().encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


def lower_compile_priority() -> None:
    """Give the threads of vLLM that compile the lowest priority. vLLM calls this once in each process.

    A request can cause seconds of compilation, and must not slow down the chats of others. A version of vLLM
    that compiles elsewhere keeps its usual priority; this is reported on stderr.
    """
    try:
        outputs: Any = importlib.import_module("vllm.v1.structured_output")
        compile_as_usual: Callable[[object, object], object] = outputs.StructuredOutputManager._create_grammar
    except (ImportError, AttributeError) as error:
        sys.stderr.write(f"neocloud: schemas are compiled with the priority of chats: {error}\n")
        return

    def compile_behind(manager: object, request: object) -> object:
        if threading.current_thread() is not threading.main_thread():
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPILE_NICENESS)
        return compile_as_usual(manager, request)

    outputs.StructuredOutputManager._create_grammar = compile_behind
