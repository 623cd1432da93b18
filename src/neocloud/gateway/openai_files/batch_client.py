# pyright: strict
"""Send the requests of batches through the proxy: one request, one response, no stream."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from neocloud.gateway.api.errors import OpenAiError
from neocloud.gateway.api.request import RequestContext, read_request
from neocloud.gateway.auth.authentication import Authenticator
from neocloud.gateway.auth.caller import Caller
from neocloud.gateway.routing.proxy import Proxy
from neocloud.gateway.routing.relay import Headers, RequestStopped
from neocloud.gateway.routing.traffic import Traffic


class CallerAuthenticator(Protocol):
    async def authenticate(self, authorization: str) -> Caller:
        """Return the caller of an Authorization header. Raises OpenAiError 401, or 503 when it cannot
        be checked."""
        ...

    async def refresh(self, caller: Caller) -> Caller:
        """Return the caller with its present permissions. Raises OpenAiError 401 where it has none
        any more, or 503."""
        ...


@dataclass(frozen=True)
class BatchResponse:
    """The response to one request: of a model server, or an error of the gateway in the same format."""

    status: int
    body: Mapping[str, Any]
    retry_after: float | None = None
    """Seconds; None where the response has no Retry-After."""


class BatchClient(Protocol):
    """Sends the requests of a batch."""

    async def send(
        self,
        caller: Caller,
        project_id: str,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        wait_seconds: float,
    ) -> BatchResponse:
        """Send a request like a live one: with checks, load balancing and retries, recorded as
        `is_batch`.

        Waits at most `wait_seconds` for a replica to start; the response is then the 503. Raises
        nothing but CancelledError; cancelling stops the model server.
        """
        ...

    def live_requests(self) -> int:
        """Return the number of requests in progress that are not of batches. Batches use what they
        leave free."""
        ...


class ProxyBatchClient:
    def __init__(
        self, proxy: Proxy, authenticator: Authenticator, traffic: Traffic, media_domains: Set[str]
    ) -> None:
        self._proxy = proxy
        self._authenticator = authenticator
        self._media_domains = media_domains
        self._traffic = traffic

    async def send(
        self,
        caller: Caller,
        project_id: str,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        wait_seconds: float,
    ) -> BatchResponse:
        """See `BatchClient`."""
        writer = _BufferedResponse()
        try:
            context = RequestContext(
                request_id=request_id,
                caller=caller,
                project_id=project_id,
                request=read_request(path, dict(body), self._media_domains),
                wait_seconds=wait_seconds,
                is_batch=True,
                refresh_caller=lambda: self._authenticator.refresh(caller),
            )
            await self._proxy.answer(self._proxy.new_relay(context, writer))
        except OpenAiError as error:
            retry_after = error.headers.get("Retry-After")
            return BatchResponse(error.status, error.body(), float(retry_after) if retry_after else None)
        except RequestStopped as stopped:
            error = OpenAiError(502, f"The request was stopped: {stopped}.", type="server_error")
            return BatchResponse(error.status, error.body())
        return BatchResponse(writer.status, orjson.loads(writer.data))

    def live_requests(self) -> int:
        return self._traffic.live_requests()


class _BufferedResponse:
    status = 0
    data = b""

    async def whole(self, status: int, headers: Headers, data: bytes) -> None:
        self.status, self.data = status, data

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status

    async def write(self, data: bytes) -> None:
        self.data += data

    async def end(self) -> None:
        return
