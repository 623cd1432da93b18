"""Serve a method that is another one in other words: translate, let the other serve it, translate back."""

from dataclasses import replace
from typing import Any

from neocloud.core.service import Twin
from neocloud.server.inbound import Endpoint, Inbound


class Translated:
    def __init__(self, twin: Twin, other: Endpoint) -> None:
        self._twin = twin
        self._other = other

    async def __call__(self, inbound: Inbound) -> Any:
        rpc = replace(self._other.rpc, path=inbound.rpc.path)
        message = self._twin.request(inbound.message)
        answer = await self._other.serve(replace(inbound, rpc=rpc, message=message, asked=inbound.message))
        return answer if self._twin.answer is None else self._twin.answer(answer)
