"""The proxy as batches use it: one request, one answer, no stream."""

from collections.abc import Mapping, Set
from typing import Any

import orjson

from neocloud.gateway import asked
from neocloud.gateway.admission import Admission
from neocloud.gateway.callers import Caller
from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.exchange import Exchange, Headers, Stopped
from neocloud.gateway.objects.borders import Answer
from neocloud.gateway.proxy import Proxy
from neocloud.gateway.traffic import Traffic


class BatchSender:
    def __init__(self, proxy: Proxy, admission: Admission, traffic: Traffic, media_domains: Set[str]) -> None:
        self._proxy = proxy
        self._admission = admission
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
    ) -> Answer:
        """See `objects.borders.Sender`."""
        sink = _KeptAnswer()
        try:
            exchange = Exchange(
                request_id=request_id,
                caller=caller,
                project_id=project_id,
                asked=asked.read(path, dict(body), self._media_domains),
                wait_seconds=wait_seconds,
                is_batch=True,
                renew=lambda: self._admission.renewed(caller),
            )
            await self._proxy.answer(exchange, sink)
        except OpenAiError as error:
            retry_after = error.headers.get("Retry-After")
            return Answer(error.status, error.body(), float(retry_after) if retry_after else None)
        except Stopped as stopped:
            error = OpenAiError(502, f"The request was stopped: {stopped}.", type="server_error")
            return Answer(error.status, error.body())
        return Answer(sink.status, orjson.loads(sink.data))

    def live_requests(self) -> int:
        return self._traffic.live_requests()


class _KeptAnswer:
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
