"""Admin calls to a running model server (vLLM): which adapters it has, load or unload one, warm it up.

No tenant may make these calls; they go to the replica's own address with the key of its deployment.
"""

import ssl
from collections.abc import Mapping
from typing import Protocol

import httpx

from neocloud.services.inference.reconcile.proven_transport import ProvenTransport

SHORT_SECONDS = 10.0
LONG_SECONDS = 120.0
"""Loading reads a disk; the first answer of a kind compiles."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: saves each client the 20 ms of reading the system's certificates."""
WARM_UP_PROMPT = "Hello " * 64
"""A prompt as long as a usual one, so that both large and small steps are prepared."""
_FIRST_REQUESTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "GENERATE": ("/v1/completions", {"prompt": WARM_UP_PROMPT, "max_tokens": 1}),
    "EMBED": ("/v1/embeddings", {"input": WARM_UP_PROMPT}),
    "RERANK": ("/v1/rerank", {"query": "Hello", "documents": [WARM_UP_PROMPT]}),
}
"""Path and body by task."""


class ModelServerRefused(Exception):
    """The model server answered with an error; the message is its own."""


class ModelServerUnreachable(Exception):
    """The model server does not answer (yet, or any more)."""


class ModelServerClient(Protocol):
    reads_files: bool
    """False: model servers are simulated, so no files are staged for them."""

    async def names(self, address: str, key: str) -> frozenset[str]:
        """Return the names that it answers to: the model's own and those of the adapters it has loaded."""
        ...

    async def load(self, address: str, key: str, name: str, path: str) -> None: ...

    async def unload(self, address: str, key: str, name: str) -> None: ...

    async def warm_up(self, address: str, key: str, name: str, *, task: str = "GENERATE") -> None:
        """Request one token, vector or score, so that no client waits for the preparations of a first
        answer."""
        ...

    def proving(self) -> "ModelServerClient":
        """Return a client that sends nothing, the key least of all, before the model server has proved on the
        same connection that it has the key."""
        ...


class HttpModelServerClient:
    reads_files = True

    def __init__(
        self, transport: httpx.AsyncBaseTransport | None = None, *, must_prove: bool = False
    ) -> None:
        self._transport = transport
        self._must_prove = must_prove

    def proving(self) -> "HttpModelServerClient":
        return HttpModelServerClient(self._transport, must_prove=True)

    async def names(self, address: str, key: str) -> frozenset[str]:
        answer = await self._call("GET", address, key, "/v1/models", None, SHORT_SECONDS)
        try:
            return frozenset(str(entry["id"]) for entry in answer.json()["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelServerUnreachable(f"{address} did not answer with a list of models") from error

    async def load(self, address: str, key: str, name: str, path: str) -> None:
        # Without `load_inplace`: vLLM keeps it with the adapter, and reads the files again for each token.
        body = {"lora_name": name, "lora_path": path}
        await self._call("POST", address, key, "/v1/load_lora_adapter", body, LONG_SECONDS)

    async def unload(self, address: str, key: str, name: str) -> None:
        body = {"lora_name": name}
        await self._call("POST", address, key, "/v1/unload_lora_adapter", body, SHORT_SECONDS, ignored={404})

    async def warm_up(self, address: str, key: str, name: str, *, task: str = "GENERATE") -> None:
        path, body = _FIRST_REQUESTS[task]
        # 400: the context is shorter than the prompt.
        asked = {"model": name, **body}
        await self._call("POST", address, key, path, asked, LONG_SECONDS, ignored={400, 404, 501})

    async def _call(
        self,
        verb: str,
        address: str,
        key: str,
        path: str,
        body: Mapping[str, object] | None,
        seconds: float,
        ignored: set[int] | frozenset[int] = frozenset(),
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        try:
            transport = ProvenTransport(key) if self._must_prove else self._transport
            async with httpx.AsyncClient(
                timeout=seconds, transport=transport, trust_env=False, verify=_NO_TLS
            ) as client:
                answer = await client.request(verb, f"http://{address}{path}", json=body, headers=headers)
        except httpx.HTTPError as error:
            raise ModelServerUnreachable(
                f"{address} does not answer: {error or type(error).__name__}"
            ) from error
        if answer.is_error and answer.status_code not in ignored:
            raise ModelServerRefused(_reason(answer))
        return answer


async def sync_adapters(
    client: ModelServerClient, address: str, key: str, model_name: str, paths: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Load and unload adapters until one model server has those of `paths` (name to path).

    Return the names that are loaded then, and why others are not, by name.
    """
    current = await client.names(address, key) - {model_name}
    for name in sorted(current - paths.keys()):
        await client.unload(address, key, name)
    loaded, errors = sorted(current & paths.keys()), dict[str, str]()
    for name in sorted(paths.keys() - current):
        try:
            await client.load(address, key, name, paths[name])
            await client.warm_up(address, key, name)
            loaded.append(name)
        except ModelServerRefused as error:
            errors[name] = str(error)
    return sorted(loaded), errors


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}: {answer.text[:200]}"
