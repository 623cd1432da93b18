"""What the control plane asks of a running engine: which adapters it has, load one, take one away, a first
answer.

These are admin calls that no tenant may make; they go to the replica's own address with its deployment's key.
"""

import ssl
from typing import Any, Protocol

import httpx

SHORT_SECONDS = 10.0
LONG_SECONDS = 120.0
"""Loading reads a disk; the first answer of a kind compiles."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: saves each client the 20 ms of reading the system's certificates."""
WARM_UP_PROMPT = "Hello " * 64
"""As long as a usual one, so that what large and small steps need is prepared alike."""


class EngineRefused(Exception):
    """The engine answered, and said no; the message is its own."""


class EngineSilent(Exception):
    """It does not answer (yet, or any more)."""


class EngineClient(Protocol):
    reads_files: bool
    """False: there is no engine, so nothing needs to lie where one reads it."""

    async def names(self, address: str, key: str) -> frozenset[str]:
        """What it answers to: the model's own name and those of the adapters it has loaded."""
        ...

    async def load(self, address: str, key: str, name: str, path: str) -> None: ...

    async def unload(self, address: str, key: str, name: str) -> None: ...

    async def warm_up(self, address: str, key: str, name: str, *, embeds: bool = False) -> None:
        """A first answer, so that nobody else waits for what the engine prepares with it: one token, or a
        vector of an engine for embeddings."""
        ...


class HttpEngineClient:
    reads_files = True

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport

    async def names(self, address: str, key: str) -> frozenset[str]:
        answer = await self._call("GET", address, key, "/v1/models", None, SHORT_SECONDS)
        try:
            return frozenset(str(entry["id"]) for entry in answer.json()["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise EngineSilent(f"{address} answered with no list of models") from error

    async def load(self, address: str, key: str, name: str, path: str) -> None:
        body = {"lora_name": name, "lora_path": path, "load_inplace": True}
        await self._call("POST", address, key, "/v1/load_lora_adapter", body, LONG_SECONDS)

    async def unload(self, address: str, key: str, name: str) -> None:
        body = {"lora_name": name}
        await self._call("POST", address, key, "/v1/unload_lora_adapter", body, SHORT_SECONDS, fine={404})

    async def warm_up(self, address: str, key: str, name: str, *, embeds: bool = False) -> None:
        path, body = "/v1/completions", {"model": name, "prompt": WARM_UP_PROMPT, "max_tokens": 1}
        if embeds:
            path, body = "/v1/embeddings", {"model": name, "input": WARM_UP_PROMPT}
        # 400: the context is shorter than the prompt.
        await self._call("POST", address, key, path, body, LONG_SECONDS, fine={400, 404, 501})

    async def _call(
        self,
        verb: str,
        address: str,
        key: str,
        path: str,
        body: Any,
        seconds: float,
        fine: set[int] | frozenset[int] = frozenset(),
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        try:
            async with httpx.AsyncClient(
                timeout=seconds, transport=self._transport, trust_env=False, verify=_NO_TLS
            ) as client:
                answer = await client.request(verb, f"http://{address}{path}", json=body, headers=headers)
        except httpx.HTTPError as error:
            raise EngineSilent(f"{address} does not answer: {error or type(error).__name__}") from error
        if answer.is_error and answer.status_code not in fine:
            raise EngineRefused(_reason(answer))
        return answer


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}: {answer.text[:200]}"
