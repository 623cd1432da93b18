# pyright: strict
"""Serve an alias: translate the request, let the other method serve it, and translate the answer back."""

from dataclasses import replace

from google.protobuf.message import Message

from neocloud.core.service import MethodAlias
from neocloud.server.request import Endpoint, Request


class AliasEndpoint:
    def __init__(self, alias: MethodAlias, other: Endpoint) -> None:
        self._alias = alias
        self._other = other

    async def __call__(self, request: Request) -> Message:
        rpc = replace(self._other.rpc, path=request.rpc.path)
        message = self._alias.request(request.message)
        translated = replace(request, rpc=rpc, message=message, original_message=request.message)
        answer = await self._other.serve(translated)
        return answer if self._alias.answer is None else self._alias.answer(answer)
