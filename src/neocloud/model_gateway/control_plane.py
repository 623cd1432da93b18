# pyright: strict
"""Calls of the control plane over gRPC: those of the gateway itself, and those on behalf of a caller."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.core.callers import CLIENT_HEADER, KEY_HEADER
from neocloud.messages.neocloud.inference.v1 import (
    AdmitRequest,
    AdmitResponse,
    IssueFileKeyRequest,
    IssueFileKeyResponse,
    ListRoutesRequest,
    ListRoutesResponse,
    ReportTrafficRequest,
    Traffic,
)
from neocloud.model_gateway.api.errors import OpenAiError, forbidden, not_authenticated

SERVICE = "neocloud.inference.v1.GatewayService"
CALL_SECONDS = 5.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # the API is on this machine
    ("grpc.http2.bdp_probe", 0),  # so nothing is gained by measuring the way there, which wakes all threads
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class InvalidToken(Exception):
    """The control plane does not know the token."""


class ControlPlaneUnavailable(Exception):
    """The control plane did not respond, or its error says nothing about the caller."""


class NoFileBucket(Exception):
    """The project has no file bucket with this bucket, or the bucket is gone."""


class ControlPlane(Protocol):
    async def admit(self, token: str = "", *, proof: str = "") -> AdmitResponse:
        """Raises InvalidToken, ControlPlaneUnavailable."""
        ...

    async def list_routes(self, version: str, wait_seconds: int) -> ListRoutesResponse:
        """Raises ControlPlaneUnavailable."""
        ...

    async def report(self, items: Sequence[Traffic]) -> None:
        """Send Traffic messages. Raises ControlPlaneUnavailable."""
        ...

    async def issue_file_key(self, request: IssueFileKeyRequest) -> IssueFileKeyResponse:
        """Return a key for the object of one file. Raises ControlPlaneUnavailable, NoFileBucket."""
        ...


class GrpcControlPlane:
    def __init__(self, address: str, key_file: Path) -> None:
        self._key_file = key_file
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    async def admit(self, token: str = "", *, proof: str = "") -> AdmitResponse:
        try:
            return await self._call("Admit", AdmitRequest(token=token, proof=proof), CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise InvalidToken from error
            raise ControlPlaneUnavailable(f"{error.code().name}: {error.details()}") from error

    async def list_routes(self, version: str, wait_seconds: int) -> ListRoutesResponse:
        request = ListRoutesRequest(version=version, wait_seconds=wait_seconds)
        return await self._call_or_away("ListRoutes", request, wait_seconds + CALL_SECONDS)

    async def report(self, items: Sequence[Traffic]) -> None:
        request = ReportTrafficRequest(items=items)
        await self._call_or_away("ReportTraffic", request, CALL_SECONDS)

    async def issue_file_key(self, request: IssueFileKeyRequest) -> IssueFileKeyResponse:
        try:
            return await self._call("IssueFileKey", request, CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                raise NoFileBucket from error
            raise ControlPlaneUnavailable(error.details() or "the control plane is not reachable") from error

    async def close(self) -> None:
        await self._channel.close()

    async def _call_or_away(self, method: str, request: Message, seconds: float) -> Any:
        try:
            return await self._call(method, request, seconds)
        except grpc.aio.AioRpcError as error:
            raise ControlPlaneUnavailable(f"{error.code().name}: {error.details()}") from error

    async def _call(self, method: str, request: Message, seconds: float) -> Any:
        rpc = contract.method(f"{SERVICE}/{method}")
        unary = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=rpc.input.SerializeToString,
            response_deserializer=rpc.output.FromString,
        )
        return await unary(request, metadata=((KEY_HEADER, self._key()),), timeout=seconds)

    def _key(self) -> str:
        """Read the key for each call: calls are few, and a new control plane may have created a new key."""
        try:
            return self._key_file.read_text().strip()
        except OSError as error:
            raise ControlPlaneUnavailable(
                f"the key {self._key_file} cannot be read: {error.strerror}"
            ) from error


logger = logging.getLogger(__name__)

CALLER_CALL_SECONDS = 30.0
_CALLER_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # the API is on this machine
    ("grpc.http2.bdp_probe", 0),  # so nothing is gained by measuring the way there, which wakes all threads
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)
_DETAILS = "grpc-status-details-bin"
Code = grpc.StatusCode


class CallerApi(Protocol):
    async def call(
        self, authorization: str, path: str, request: Mapping[str, object], *, client: str = ""
    ) -> Any:
        """Call a method with the token of the caller. Raises OpenAiError.

        `path` is "package.Service/Method", `request` the JSON form of the message, `client` the
        address of the client for the audit log.
        """
        ...


class GrpcCallerApi:
    def __init__(self, address: str, key_file: Path) -> None:
        self._address = address
        self._key_file = key_file
        self._channel: grpc.aio.Channel | None = None

    async def call(
        self, authorization: str, path: str, request: Mapping[str, object], *, client: str = ""
    ) -> Any:
        if self._channel is None:  # made in the loop that uses it
            self._channel = grpc.aio.insecure_channel(self._address, options=_CALLER_OPTIONS)
        try:
            rpc = contract.method(path)
            unary = self._channel.unary_unary(
                f"/{rpc.path}",
                request_serializer=rpc.input.SerializeToString,
                response_deserializer=rpc.output.FromString,
            )
            message = contract.from_dict(rpc.input, dict(request))
            metadata = (("authorization", authorization), *self._about(client))
            return await unary(message, metadata=metadata, timeout=CALLER_CALL_SECONDS)
        except contract.ApiError as error:
            raise OpenAiError(400, error.message) from error
        except grpc.aio.AioRpcError as error:
            raise grpc_error_as_openai(error) from error

    def _about(self, client: str) -> tuple[tuple[str, str], ...]:
        """Return headers with the address of the client, and the key that makes the control plane
        trust it. They are optional."""
        try:
            key = self._key_file.read_text().strip()
        except OSError as error:
            logger.warning("The key %s cannot be read: %s", self._key_file, error.strerror)
            return ()
        return ((CLIENT_HEADER, client), (KEY_HEADER, key))

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


def grpc_error_as_openai(error: grpc.aio.AioRpcError) -> OpenAiError:
    code, message = (
        error.code(),
        error.details() or "The control plane rejected the request without a reason.",
    )
    param = None
    trailers: Any = error.trailing_metadata() or ()
    details = next((value for key, value in trailers if key == _DETAILS), None)
    if details is not None:
        known = contract.from_status(details)
        message, param = known.message or message, _param(known.details)
    if code is Code.UNAUTHENTICATED:
        return not_authenticated(message)
    if code is Code.PERMISSION_DENIED:
        return forbidden(message)
    if code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
        return OpenAiError(
            503,
            "The control plane is not reachable at the moment. Running models are not affected. Try again.",
            type="service_unavailable_error",
            code="control_plane_unavailable",
            headers={"Retry-After": "5"},
        )
    if code is Code.RESOURCE_EXHAUSTED:
        return OpenAiError(429, message, type="insufficient_quota", code="insufficient_quota")
    if code in _STATUS:
        status, name = _STATUS[code]
        return OpenAiError(status, message, code=name, param=param)
    return OpenAiError(500, message, type="server_error", code="internal_error")


_STATUS = {
    Code.INVALID_ARGUMENT: (400, "invalid_value"),
    Code.OUT_OF_RANGE: (400, "invalid_value"),
    Code.FAILED_PRECONDITION: (409, "wrong_state"),
    Code.NOT_FOUND: (404, "not_found"),
    Code.ALREADY_EXISTS: (409, "already_exists"),
    Code.ABORTED: (409, "conflict"),
    Code.UNIMPLEMENTED: (501, "not_served"),
}


def _param(details: Any) -> str | None:
    """Return the first invalid field as OpenAI clients know it: `spec.hyperparameters.n_epochs` is
    `n_epochs`."""
    for detail in details:
        if detail.WhichOneof("details") == "bad_request":
            for violation in detail.bad_request.violations:
                return violation.field.rpartition(".")[2]
    return None
