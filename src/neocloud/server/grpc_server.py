"""gRPC: one generic handler for all methods of the contract.

Bytes go in and out; the pipeline decodes. The ping settings let the published clients' 20-second keep-alive
pass, which a default server answers by closing the connection.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote

import grpc

from neocloud.core import releases
from neocloud.server.pipeline import Answer, Pipeline
from neocloud.server.request import SOURCE_HEADER

MAX_CONCURRENT_CALLS = 4096
"""Being served at once, from all callers; more are refused with RESOURCE_EXHAUSTED."""
MAX_STREAMS_PER_CONNECTION = 512
"""Further calls of a connection wait in their client."""
PING_INTERVAL_MS = 5_000
MAX_PING_STRIKES = 2
"""A client that pings faster, three times without an answer of ours in between, loses its connection."""
MESSAGE_OVERHEAD_BYTES = 1024 * 1024
"""A request this much over the largest that any method takes is still read, to be refused in our words."""
MAX_CONNECTIONS = 1024
"""To each address that gRPC listens on. Further ones are closed."""
HANDSHAKE_MS = 10_000
"""A client has this long for its TLS handshake and the first frame of HTTP/2; gRPC gives it two minutes."""
MAX_IDLE_MS = 300_000
"""A connection without a call for so long is closed, whatever it pings; clients connect again with their next
call."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_Handler = Callable[[bytes, Any], Awaitable[bytes]]


def options(pipeline: Pipeline) -> Sequence[tuple[str, int]]:
    """The settings of a server of these methods."""
    largest = max((pipeline.max_bytes(path) for path in pipeline.paths), default=0)
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", MAX_PING_STRIKES),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", MAX_IDLE_MS),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
        ("grpc.max_receive_message_length", largest + MESSAGE_OVERHEAD_BYTES),
    )


class ContractHandler(grpc.GenericRpcHandler):
    """Answers every path, also those that nobody serves: then with a clear UNIMPLEMENTED."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._handlers = {f"/{path}": _rpc_handler(self._handler(path)) for path in pipeline.paths}

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        return self._handlers.get(path) or _rpc_handler(self._handler(path.removeprefix("/")))

    def _handler(self, path: str) -> _Handler:
        async def handle(body: bytes, context: Any) -> bytes:
            headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            headers[SOURCE_HEADER] = _address(context.peer())
            answer = await self._pipeline.answer(
                path, lambda cls: cls.FromString(body), headers, size=len(body)
            )
            if answer.is_logged:  # an id that leads nowhere is not worth a fifth of a short call
                names = ("x-request-id", "x-trace-id")
                await context.send_initial_metadata(tuple((name, answer.request_id) for name in names))
            if answer.error is None:
                if answer.version:
                    context.set_trailing_metadata(_version_trailer(answer))
                return answer.message.SerializeToString()
            await _abort(context, answer)
            raise AssertionError("abort always raises")

        return handle


def _address(peer: str) -> str:
    """ "192.0.2.1" of gRPC's "ipv4:192.0.2.1:50512"; IPv6 is in brackets there, and percent-encoded."""
    host = unquote(peer.partition(":")[2]).rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]") or peer


def _rpc_handler(handle: _Handler) -> Any:
    return grpc.unary_unary_rpc_method_handler(handle)  # type: ignore[arg-type]


async def _abort(context: Any, answer: Answer) -> None:
    error = answer.error
    assert error is not None
    status = error.status(answer.service)
    details = ("grpc-status-details-bin", status.SerializeToString())
    await context.abort(_CODES[int(error.code)], error.message, (details, *_version_trailer(answer)))


def _version_trailer(answer: Answer) -> tuple[tuple[str, str], ...]:
    return ((releases.HEADER, answer.version),) if answer.version else ()
