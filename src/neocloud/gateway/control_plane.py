"""The three calls of GatewayService, over gRPC. The only file here that talks to the control plane."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from neocloud.core import contract
from neocloud.gateway_key import KEY_HEADER

SERVICE = "neocloud.inference.v1.GatewayService"
CALL_SECONDS = 5.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # the API is on this machine
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class TokenRefused(Exception):
    """The control plane does not know the token."""


class ControlPlaneAway(Exception):
    """It did not answer, or not in a way that says something about the caller."""


class ControlPlane(Protocol):
    async def admit(self, token: str = "", *, proof: str = "") -> Any:
        """AdmitResponse. Raises TokenRefused, ControlPlaneAway."""
        ...

    async def list_routes(self, version: str, wait_seconds: int) -> Any:
        """ListRoutesResponse. Raises ControlPlaneAway."""
        ...

    async def report(self, items: Sequence[Any]) -> None:
        """Traffic messages. Raises ControlPlaneAway."""
        ...


class GrpcControlPlane:
    def __init__(self, address: str, key_file: Path) -> None:
        self._key_file = key_file
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    async def admit(self, token: str = "", *, proof: str = "") -> Any:
        try:
            return await self._call("Admit", {"token": token, "proof": proof}, CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise TokenRefused from error
            raise ControlPlaneAway(f"{error.code().name}: {error.details()}") from error

    async def list_routes(self, version: str, wait_seconds: int) -> Any:
        request = {"version": version, "wait_seconds": wait_seconds}
        return await self._call_or_away("ListRoutes", request, wait_seconds + CALL_SECONDS)

    async def report(self, items: Sequence[Any]) -> None:
        request = contract.message(f"{_package()}.ReportTrafficRequest")(items=items)
        await self._call_or_away("ReportTraffic", request, CALL_SECONDS)

    async def close(self) -> None:
        await self._channel.close()

    async def _call_or_away(self, method: str, request: Any, seconds: float) -> Any:
        try:
            return await self._call(method, request, seconds)
        except grpc.aio.AioRpcError as error:
            raise ControlPlaneAway(f"{error.code().name}: {error.details()}") from error

    async def _call(self, method: str, request: Any, seconds: float) -> Any:
        rpc = contract.method(f"{SERVICE}/{method}")
        message = rpc.input(**request) if isinstance(request, dict) else request
        unary = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=rpc.input.SerializeToString,
            response_deserializer=rpc.output.FromString,
        )
        return await unary(message, metadata=((KEY_HEADER, self._key()),), timeout=seconds)

    def _key(self) -> str:
        """Read each time: few calls, and a new control plane may have made a new one."""
        try:
            return self._key_file.read_text().strip()
        except OSError as error:
            raise ControlPlaneAway(f"the key {self._key_file} cannot be read: {error.strerror}") from error


def _package() -> str:
    return SERVICE.rpartition(".")[0]
