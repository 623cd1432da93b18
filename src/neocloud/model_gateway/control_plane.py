"""Calls of the control plane over gRPC: those of the gateway itself, and those on behalf of a caller."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from neocloud.core import contract
from neocloud.data_plane.control_plane_client import (
    CALL_SECONDS,
    ControlPlaneClient,
    ControlPlaneUnavailable,
    status_of,
)
from neocloud.data_plane.gateway_keys import CLIENT_HEADER, KEY_HEADER
from neocloud.messages.neocloud.inference.v1 import (
    AdmitRequest,
    AdmitResponse,
    IssueFileKeyRequest,
    IssueFileKeyResponse,
    ListRoutesRequest,
    ListRoutesResponse,
    ReleaseReport,
    ReportTrafficRequest,
    Traffic,
)
from neocloud.model_gateway.api.errors import OpenAiError, forbidden, not_authenticated

SERVICE = "neocloud.inference.v1.GatewayService"
CALLER_CALL_SECONDS = 30.0
Code = grpc.StatusCode
logger = logging.getLogger(__name__)


class InvalidToken(Exception):
    """The control plane does not know the token."""


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

    async def report_release(self, report: ReleaseReport) -> None:
        """Raises ControlPlaneUnavailable."""
        ...

    async def issue_file_key(self, request: IssueFileKeyRequest) -> IssueFileKeyResponse:
        """Return a key for the object of one file. Raises ControlPlaneUnavailable, NoFileBucket."""
        ...


class GrpcControlPlane:
    def __init__(self, address: str, key_file: Path) -> None:
        self._client = ControlPlaneClient(address, key_file, SERVICE)

    async def admit(self, token: str = "", *, proof: str = "") -> AdmitResponse:
        request = AdmitRequest(token=token, proof=proof)
        return await self._client.ask("Admit", request, meanings={Code.UNAUTHENTICATED: InvalidToken()})

    async def list_routes(self, version: str, wait_seconds: int) -> ListRoutesResponse:
        request = ListRoutesRequest(version=version, wait_seconds=wait_seconds)
        return await self._client.ask("ListRoutes", request, wait_seconds + CALL_SECONDS)

    async def report(self, items: Sequence[Traffic]) -> None:
        await self._client.ask("ReportTraffic", ReportTrafficRequest(items=items))

    async def report_release(self, report: ReleaseReport) -> None:
        await self._client.ask("ReportRelease", report)

    async def issue_file_key(self, request: IssueFileKeyRequest) -> IssueFileKeyResponse:
        return await self._client.ask("IssueFileKey", request, meanings={Code.NOT_FOUND: NoFileBucket()})

    async def close(self) -> None:
        await self._client.close()


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
        self._client = ControlPlaneClient(address, key_file)

    async def call(
        self, authorization: str, path: str, request: Mapping[str, object], *, client: str = ""
    ) -> Any:
        try:
            message = contract.from_dict(contract.method(path).input, dict(request))
            headers = (("authorization", authorization), *self._about(client))
            return await self._client.call(path, message, CALLER_CALL_SECONDS, headers)
        except contract.ApiError as error:
            raise OpenAiError(400, error.message) from error
        except grpc.aio.AioRpcError as error:
            raise grpc_error_as_openai(error) from error

    def _about(self, client: str) -> tuple[tuple[str, str], ...]:
        """Return headers with the address of the client, and the key that makes the control plane
        trust it. They are optional."""
        try:
            return ((CLIENT_HEADER, client), (KEY_HEADER, self._client.key()))
        except ControlPlaneUnavailable as error:
            logger.warning("A call is sent without the address of its client: %s", error)
            return ()

    async def close(self) -> None:
        await self._client.close()


def grpc_error_as_openai(error: grpc.aio.AioRpcError) -> OpenAiError:
    code, message = (
        error.code(),
        error.details() or "The control plane rejected the request without a reason.",
    )
    param = None
    if (known := status_of(error)) is not None:
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
