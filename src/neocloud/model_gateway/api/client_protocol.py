"""The gateway's side of `data_plane.http.protocol`: OpenAI errors, and callbacks for a client that leaves."""

from typing import Any

import orjson

from neocloud.data_plane.http.connections import Answer, ClientConnections, Refusal
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.model_gateway.api.app import LEAVE_CALLBACKS, LeaveCallbacks, new_request_id
from neocloud.model_gateway.api.errors import OpenAiError, bad_request, unavailable
from neocloud.model_gateway.settings import GatewaySettings

HEALTH_PATH = "/health"


def gateway_connections(settings: GatewaySettings) -> ClientConnections:
    return ClientConnections(settings, HEALTH_PATH, _answer)


class GatewayProtocol(ClientProtocol):
    def __init__(self, connections: ClientConnections, **given: Any) -> None:
        super().__init__(connections, **given)
        self._leave_callbacks: LeaveCallbacks = set()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.scope["state"] = {LEAVE_CALLBACKS: self._leave_callbacks}

    def client_left(self) -> None:
        for left in tuple(self._leave_callbacks):
            left()


def _answer(refusal: Refusal) -> Answer:
    error = _openai_error(refusal)
    headers = {"Content-Type": "application/json", "X-Request-Id": new_request_id(), **error.headers}
    return headers, orjson.dumps(error.body())


def _openai_error(refusal: Refusal) -> OpenAiError:
    if refusal.retry_after is not None:
        return unavailable(refusal.message, retry_after=refusal.retry_after, code=refusal.code)
    if refusal.status == 400:
        return bad_request(refusal.message, code=refusal.code)
    return OpenAiError(refusal.status, refusal.message, code=refusal.code)
