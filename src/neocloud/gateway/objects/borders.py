"""What files, batches and fine-tuning need of the rest of the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from neocloud.gateway.callers import Caller


class Callers(Protocol):
    async def caller(self, authorization: str) -> Caller:
        """Whose header this is. Raises OpenAiError 401, or 503 when nobody can tell."""
        ...

    async def renewed(self, caller: Caller) -> Caller:
        """The same caller as it is now. Raises OpenAiError 401 where nothing of it holds any more, or 503."""
        ...


@dataclass(frozen=True)
class Answer:
    """To one request that was not streamed: an engine's, or a refusal of the gateway in the same shape."""

    status: int
    body: Mapping[str, Any]
    retry_after: float | None = None
    """Seconds, when the answer said so."""


class Sender(Protocol):
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
    ) -> Answer:
        """As live requests are sent (checks, balance, retry on another replica), its account opened with
        `is_batch`. A cold model is woken and waited for, at most so long; then the answer is the 503.
        Raises nothing but CancelledError; cancelling it cancels the engine's work."""
        ...

    def live_requests(self) -> int:
        """How many that are no batch's are being answered or wait now. Batches take what they leave."""
        ...
