"""Texts to vectors by an embedding model of the gateway, as the calling account and billed to its project."""

import base64
import binascii
import secrets
from array import array
from collections.abc import Sequence
from typing import Protocol

import orjson

from neocloud.core.contract.json_codec import Json
from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.api.fields import EMBEDDINGS
from neocloud.model_gateway.api.request import RequestContext, read_request
from neocloud.model_gateway.api.vectors import WHOLE_CONTEXT
from neocloud.model_gateway.authentication import INVOKE, Authenticator, Caller
from neocloud.model_gateway.routing.proxy import Proxy
from neocloud.model_gateway.routing.relay import BufferedResponse, RequestStopped
from neocloud.model_gateway.routing.routes import RouteTable

EMBED = "EMBED"
"""The task of deployments that make vectors."""
DEPLOY_ONE = "Deploy one with `neo deploy MODEL --task embed`."


class Embedder(Protocol):
    async def embed(
        self,
        caller: Caller,
        project_id: str,
        model: str,
        texts: Sequence[str],
        *,
        wait_seconds: float = 0.0,
        is_batch: bool = False,
    ) -> list[bytes]:
        """Return a vector for each text, as little-endian 32-bit numbers. Raises OpenAiError.

        Waits so many seconds for a model that has no replica.
        """
        ...

    def model_of(self, caller: Caller, requested: str) -> str:
        """Return the embedding model of a new store: the requested one, or the only one that the caller
        may use. Raises OpenAiError 400."""
        ...

    def context_length(self, caller: Caller, model: str) -> int:
        """Return how many tokens the model reads; 0 where that is not known."""
        ...


class ProxyEmbedder:
    """Sends requests like live ones: with checks, load balancing, limits, budgets and the ledger."""

    def __init__(self, proxy: Proxy, table: RouteTable, authenticator: Authenticator) -> None:
        self._proxy = proxy
        self._table = table
        self._authenticator = authenticator

    async def embed(
        self,
        caller: Caller,
        project_id: str,
        model: str,
        texts: Sequence[str],
        *,
        wait_seconds: float = 0.0,
        is_batch: bool = False,
    ) -> list[bytes]:
        """See `Embedder`. A text that the model cannot read as a whole is embedded by its beginning."""
        body: dict[str, Json] = {
            "model": model,
            "input": list(texts),
            "encoding_format": "base64",
            "truncate_prompt_tokens": WHOLE_CONTEXT,
        }
        context = RequestContext(
            request_id=f"embed_{secrets.token_hex(12)}",
            caller=caller,
            project_id=project_id,
            request=read_request(EMBEDDINGS, body),
            wait_seconds=wait_seconds,
            is_batch=is_batch,
            refresh_caller=lambda: self._authenticator.refresh(caller),
        )
        writer = BufferedResponse()
        try:
            await self._proxy.answer(self._proxy.new_relay(context, writer))
        except RequestStopped as stopped:
            message = f"The embedding of the text was stopped: {stopped}."
            raise OpenAiError(502, message, type="server_error") from stopped
        return vectors_in(writer.data, len(texts))

    def model_of(self, caller: Caller, requested: str) -> str:
        """See `Embedder`."""
        known = sorted(
            target.name
            for target in self._table.of_tenant(caller.tenant_id)
            if target.deployment.task == EMBED and caller.may(INVOKE, target.project_id)
        )
        names = ", ".join(known)
        if requested and requested not in known:
            hint = f"Embedding models: {names}." if known else DEPLOY_ONE
            raise _wrong_model(f"{requested[:80]!r} is not an embedding model that you may use. {hint}")
        if not requested and len(known) != 1:
            hint = (
                f"There are several embedding models ({names}): name one."
                if known
                else f"There is no embedding model. {DEPLOY_ONE}"
            )
            raise _wrong_model(hint)
        return requested or known[0]

    def context_length(self, caller: Caller, model: str) -> int:
        """See `Embedder`."""
        target = self._table.find(caller.tenant_id, model)
        return target.deployment.context_length if target else 0


def _wrong_model(message: str) -> OpenAiError:
    return bad_request(message, param="neocloud.embedding_model", code="invalid_value")


def vectors_in(answer: bytes, count: int) -> list[bytes]:
    """Return the vectors of an answer of /v1/embeddings, in order. Raises OpenAiError 502."""
    try:
        found: list[tuple[int, bytes]] = [
            (each["index"], _vector(each["embedding"])) for each in orjson.loads(answer)["data"]
        ]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError, binascii.Error):
        found = []
    if sorted(index for index, _ in found) != list(range(count)):
        message = "The embedding model did not return a vector for each text. Try again."
        raise OpenAiError(502, message, type="server_error", code="invalid_embeddings")
    return [vector for _, vector in sorted(found)]


def _vector(given: str | list[float]) -> bytes:
    if isinstance(given, str):
        return base64.b64decode(given, validate=True)
    return array("f", given).tobytes()
