"""The proxy as batches use it: one request, one answer, no stream."""

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
        """Whose header this is. Raises OpenAiError 401, or 503 when nobody can tell."""
        ...

    async def refresh(self, caller: Caller) -> Caller:
        """The same caller as it is now. Raises OpenAiError 401 where nothing of it holds any more, or 503."""
        ...


@dataclass(frozen=True)
class BatchResponse:
    """To one request that was not streamed: an engine's, or a refusal of the gateway in the same shape."""

    status: int
    body: Mapping[str, Any]
    retry_after: float | None = None
    """Seconds, when the answer said so."""


class BatchClient(Protocol):
    """The proxy, for requests that a batch makes."""

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
        """As live requests are sent (checks, balance, retry on another replica), its account opened with
        `is_batch`. A cold model is woken and waited for, at most so long; then the answer is the 503.
        Raises nothing but CancelledError; cancelling it cancels the engine's work."""
        ...

    def live_requests(self) -> int:
        """How many that are no batch's are being answered or wait now. Batches take what they leave."""
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
        """See `objects.borders.BatchClient`."""
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
