"""A proxy whose answers the test writes."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from neocloud.model_gateway.authentication import Caller
from neocloud.model_gateway.openai_files.batch_run import BatchResponse


def ok(text: str = "hello") -> BatchResponse:
    return BatchResponse(200, {"choices": [{"message": {"role": "assistant", "content": text}}]})


class ScriptedBatchClient:
    """Notes what was sent; answers with what `answer` says, once `gate` is open."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.request_ids: list[str] = []
        self.callers: list[Caller] = []
        self.answer: Callable[[Mapping[str, Any]], BatchResponse] = lambda body: ok()
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = 0
        self.most_running = 0
        self.live = 0

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
        self.sent.append(body)
        self.request_ids.append(request_id)
        self.callers.append(caller)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            return self.answer(body)
        finally:
            self.running -= 1

    def live_requests(self) -> int:
        return self.live
