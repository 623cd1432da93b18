"""Calls of the control plane over gRPC: those of a gateway itself, and those on behalf of a caller."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.data_plane.gateway_keys import KEY_HEADER

CALL_SECONDS = 5.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # the API is on this machine
    ("grpc.http2.bdp_probe", 0),  # so nothing is gained by measuring the way there, which wakes all threads
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
_DETAILS = "grpc-status-details-bin"
_NONE: Mapping[grpc.StatusCode, Exception] = MappingProxyType({})
Code = grpc.StatusCode


class ControlPlaneUnavailable(Exception):
    """The control plane did not respond, or its error says nothing about the caller."""

    def __init__(self, message: str, *, reason: str = "", is_down: bool = False) -> None:
        """`reason` is the message without the code, for callers; `is_down`: nothing listens at its address,
        so it serves nobody."""
        super().__init__(message)
        self.reason = reason or message
        self.is_down = is_down


class AwayLog:
    """Logs once that the control plane does not answer, until it answers again."""

    def __init__(self, logger: logging.Logger, consequence: str) -> None:
        """`consequence` says what happens meanwhile."""
        self._logger, self._consequence = logger, consequence
        self.is_away = False

    def note(self, error: ControlPlaneUnavailable) -> None:
        if not self.is_away:
            self._logger.warning("The control plane does not answer; %s: %s", self._consequence, error)
        self.is_away = True

    def answered(self) -> None:
        self.is_away = False


class ControlPlaneClient:
    def __init__(self, address: str, key_file: Path, service: str = "") -> None:
        """`service` is the one that the control plane has for this gateway, and `key_file` opens it."""
        self._address, self._key_file, self._service = address, key_file, service
        self._channel: grpc.aio.Channel | None = None

    async def ask(
        self,
        verb: str,
        request: Message,
        seconds: float = CALL_SECONDS,
        *,
        meanings: Mapping[grpc.StatusCode, Exception] = _NONE,
    ) -> Any:
        """Call a method of the gateway's service. Raises ControlPlaneUnavailable, or what an error means."""
        headers = ((KEY_HEADER, self.key()),)
        try:
            return await self.call(f"{self._service}/{verb}", request, seconds, headers)
        except grpc.aio.AioRpcError as error:
            if (meaning := meanings.get(error.code())) is not None:
                raise meaning from error
            raise await self._unavailable(error) from error

    async def call(
        self, path: str, request: Message, seconds: float, headers: Sequence[tuple[str, str]]
    ) -> Any:
        """Call "package.Service/Method" with these headers. Raises grpc.aio.AioRpcError, ApiError."""
        if self._channel is None:  # made in the loop that uses it
            self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        rpc = contract.method(path)
        unary = self._channel.unary_unary(
            f"/{rpc.path}",
            request_serializer=rpc.input.SerializeToString,
            response_deserializer=rpc.output.FromString,
        )
        return await unary(request, metadata=tuple(headers), timeout=seconds)

    def key(self) -> str:
        """Read the key of the gateway. Raises ControlPlaneUnavailable.

        It is read for each call: calls are few, and a new control plane may have created a new key.
        """
        try:
            return self._key_file.read_text().strip()
        except OSError as error:
            raise ControlPlaneUnavailable(
                f"the key {self._key_file} cannot be read: {error.strerror}"
            ) from error

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def _unavailable(self, error: grpc.aio.AioRpcError) -> ControlPlaneUnavailable:
        is_down = error.code() is Code.UNAVAILABLE and await _is_nobody_at(self._address)
        reason = error.details() or "the control plane is not reachable"
        return ControlPlaneUnavailable(
            f"{error.code().name}: {error.details()}", reason=reason, is_down=is_down
        )


def status_of(error: grpc.aio.AioRpcError) -> contract.ApiError | None:
    """Return the status with its details that the control plane sent; None where it sent none."""
    trailers: Any = error.trailing_metadata() or ()
    raw = next((value for key, value in trailers if key == _DETAILS), None)
    return None if raw is None else contract.from_status(raw)


async def _is_nobody_at(address: str) -> bool:
    """Return whether a connection is refused: the machine is there, and no process listens at this port."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CALL_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
