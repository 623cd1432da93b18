"""Calls of the control plane over gRPC: those of the object gateway, and those on behalf of a caller."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.data_plane.access_keys import KeyLimit
from neocloud.data_plane.control_plane_client import (
    CALL_SECONDS,
    ControlPlaneClient,
    ControlPlaneUnavailable,
    status_of,
)
from neocloud.messages.nebius.common.v1 import GetOperationRequest, Operation, ResourceMetadata
from neocloud.messages.nebius.storage.v1 import (
    Bucket,
    BucketSpec,
    CreateBucketRequest,
    DeleteBucketRequest,
    GetBucketRequest,
    UndeleteBucketRequest,
    UpdateBucketRequest,
)
from neocloud.messages.neocloud.storage.v1 import (
    AuthenticateRequest,
    AuthenticateResponse,
    AuthorizeRequest,
    AuthorizeResponse,
    IssueTokenRequest,
    IssueTokenResponse,
    ListGatewayBucketsRequest,
    ListGatewayBucketsResponse,
    ListGatewayInventoriesRequest,
    ListGatewayInventoriesResponse,
    ListGatewayTransfersRequest,
    ListGatewayTransfersResponse,
    ReportBucketsRequest,
    ReportInventoriesRequest,
    ReportObjectEventsRequest,
    ReportTransfersRequest,
    SignRequest,
    SignResponse,
)
from neocloud.object_gateway.access import (
    RefusalCode,
    Refused,
    SigningKey,
    TokenOwner,
    UnknownAccessKey,
    UnknownToken,
)

GATEWAY_SERVICE = "neocloud.storage.v1.ObjectGatewayService"
BUCKET_SERVICE = "nebius.storage.v1.BucketService"
OPERATION_GET = "nebius.common.v1.OperationService/Get"
CHANGE_SECONDS = 30.0
"""How long a change of a bucket may take until it is applied."""
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 0.5
MAX_ATTEMPTS = 5
"""How often a change is tried while others change the same bucket."""
_WHOLE = ".".join("*" * 12)
"""A reset mask that names every field: the request is the whole desired resource."""
Code = grpc.StatusCode
_REFUSALS = {
    Code.PERMISSION_DENIED: RefusalCode.DENIED,
    Code.INVALID_ARGUMENT: RefusalCode.INVALID,
    Code.NOT_FOUND: RefusalCode.NOT_FOUND,
    Code.ALREADY_EXISTS: RefusalCode.NAME_TAKEN,
    Code.FAILED_PRECONDITION: RefusalCode.CONFLICT,
    Code.ABORTED: RefusalCode.CONFLICT,
    Code.RESOURCE_EXHAUSTED: RefusalCode.QUOTA,
    Code.UNIMPLEMENTED: RefusalCode.NOT_SERVED,
}
_CODES = {int(code.value[0]): code for code in Code}


class GrpcControlPlane:
    """The ControlPlane of access.py."""

    def __init__(self, address: str, key_file: Path) -> None:
        self._client = ControlPlaneClient(address, key_file, GATEWAY_SERVICE)

    async def sign(self, aws_access_key_id: str, day: str, region: str) -> SigningKey:
        request = SignRequest(aws_access_key_id=aws_access_key_id, day=day, region=region)
        found: SignResponse = await self._ask_about_key("Sign", request, aws_access_key_id)
        return SigningKey(
            key=found.signing_key,
            aws_access_key_id=aws_access_key_id,
            subject_id=found.subject_id,
            subject_name=found.subject_name,
            tenant_id=found.tenant_id,
            project_id=found.project_id,
            group_ids=frozenset(found.group_ids),
            expires_at=contract.to_datetime(found.expires_at) if found.HasField("expires_at") else None,
            limit=_limit(found),
        )

    async def authenticate(self, token: str) -> TokenOwner:
        found: AuthenticateResponse = await self._client.ask(
            "Authenticate", AuthenticateRequest(token=token), meanings={Code.NOT_FOUND: UnknownToken()}
        )
        return TokenOwner(found.subject_id, found.subject_name, found.tenant_id, found.proof)

    async def authorize(self, subject_id: str, target_id: str, proof: str = "") -> frozenset[str]:
        request = AuthorizeRequest(subject_id=subject_id, target_id=target_id, proof=proof)
        answer: AuthorizeResponse = await self._client.ask("Authorize", request)
        return frozenset(answer.permissions)

    async def list_buckets(
        self, version: str, access_version: str, wait_seconds: int
    ) -> ListGatewayBucketsResponse:
        request = ListGatewayBucketsRequest(
            version=version, access_version=access_version, wait_seconds=wait_seconds
        )
        return await self._client.ask("ListBuckets", request, wait_seconds + CALL_SECONDS)

    async def report(self, request: ReportBucketsRequest) -> None:
        await self._client.ask("ReportBuckets", request)

    async def list_transfers(self, version: str, wait_seconds: int) -> ListGatewayTransfersResponse:
        request = ListGatewayTransfersRequest(version=version, wait_seconds=wait_seconds)
        return await self._client.ask("ListTransfers", request, wait_seconds + CALL_SECONDS)

    async def report_transfers(self, request: ReportTransfersRequest) -> None:
        await self._client.ask("ReportTransfers", request)

    async def list_inventories(self, version: str, wait_seconds: int) -> ListGatewayInventoriesResponse:
        request = ListGatewayInventoriesRequest(version=version, wait_seconds=wait_seconds)
        return await self._client.ask("ListInventories", request, wait_seconds + CALL_SECONDS)

    async def report_inventories(self, request: ReportInventoriesRequest) -> None:
        await self._client.ask("ReportInventories", request)

    async def report_object_events(self, request: ReportObjectEventsRequest) -> None:
        await self._client.ask("ReportObjectEvents", request)

    async def create_bucket(
        self, aws_access_key_id: str, project_id: str, name: str, spec: BucketSpec
    ) -> None:
        token = await self._token(aws_access_key_id)
        metadata = ResourceMetadata(parent_id=project_id, name=name)
        request = CreateBucketRequest(metadata=metadata, spec=spec)
        await self._change("Create", request, token)

    async def update_bucket(
        self, aws_access_key_id: str, bucket_id: str, change: Callable[[Bucket], None]
    ) -> None:
        token = await self._token(aws_access_key_id)
        for attempt in range(MAX_ATTEMPTS):
            bucket: Bucket = await self._call_as(token, "Get", GetBucketRequest(id=bucket_id))
            before = bucket.SerializeToString(deterministic=True)
            change(bucket)
            if bucket.SerializeToString(deterministic=True) == before:
                return
            request = UpdateBucketRequest(metadata=bucket.metadata, spec=bucket.spec)
            try:
                return await self._change("Update", request, token)
            except Refused as refused:
                if refused.code is not RefusalCode.CONFLICT or attempt == MAX_ATTEMPTS - 1:
                    raise

    async def delete_bucket(self, aws_access_key_id: str, bucket_id: str) -> None:
        token = await self._token(aws_access_key_id)
        await self._change("Delete", DeleteBucketRequest(id=bucket_id), token)
        try:
            await self._call_as(token, "Get", GetBucketRequest(id=bucket_id))
        except Refused as refused:
            if refused.code is RefusalCode.NOT_FOUND:
                return
            raise
        # Something was put into it meanwhile, so it is kept.
        await self._change("Undelete", UndeleteBucketRequest(id=bucket_id), token)
        raise Refused(RefusalCode.CONFLICT, "The bucket is not empty.")

    async def close(self) -> None:
        await self._client.close()

    async def _token(self, aws_access_key_id: str) -> str:
        request = IssueTokenRequest(aws_access_key_id=aws_access_key_id)
        answer: IssueTokenResponse = await self._ask_about_key("IssueToken", request, aws_access_key_id)
        return answer.token

    async def _change(self, verb: str, request: Message, token: str) -> None:
        """Make a change, and wait until it is applied."""
        operation: Operation = await self._call_as(token, verb, request)
        try:
            async with asyncio.timeout(CHANGE_SECONDS):
                operation = await self._ended(operation, token)
        except TimeoutError:
            raise ControlPlaneUnavailable(
                f"the bucket was not changed within {CHANGE_SECONDS:g} s (operation {operation.id})"
            ) from None
        if operation.status.code:
            code = _CODES.get(operation.status.code, Code.UNKNOWN)
            raise _refusal(code, operation.status.message)

    async def _ended(self, operation: Operation, token: str) -> Operation:
        delay = FIRST_POLL_SECONDS
        while not operation.HasField("status"):
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_POLL_SECONDS)
            request = GetOperationRequest(id=operation.id)
            operation = await self._call_with_token(token, OPERATION_GET, request)
        return operation

    async def _call_as(self, token: str, verb: str, request: Message) -> Any:
        return await self._call_with_token(token, f"{BUCKET_SERVICE}/{verb}", request)

    async def _call_with_token(self, token: str, path: str, request: Message) -> Any:
        """Call with the token of a caller. Raises Refused, UnknownAccessKey, ControlPlaneUnavailable."""
        headers = (("authorization", f"Bearer {token}"), ("x-resetmask", _WHOLE))
        try:
            return await self._client.call(path, request, CALL_SECONDS, headers)
        except grpc.aio.AioRpcError as error:
            if error.code() is Code.UNAUTHENTICATED:
                raise UnknownAccessKey from error
            if _is_rate(error):
                raise ControlPlaneUnavailable(error.details() or "") from error
            raise _refusal(error.code(), error.details() or "") from error

    async def _ask_about_key(self, verb: str, request: Message, aws_access_key_id: str) -> Any:
        unknown = UnknownAccessKey(aws_access_key_id)
        return await self._client.ask(verb, request, meanings={Code.NOT_FOUND: unknown})


def _refusal(code: grpc.StatusCode, message: str) -> Refused | ControlPlaneUnavailable:
    if code not in _REFUSALS:
        return ControlPlaneUnavailable(f"{code.name}: {message}")
    return Refused(_REFUSALS[code], message)


def _is_rate(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the caller calls too often, which is not a quota."""
    status = status_of(error)
    if error.code() is not Code.RESOURCE_EXHAUSTED or status is None:
        return False
    return any(detail.WhichOneof("details") == "too_many_requests" for detail in status.details)


def _limit(found: SignResponse) -> KeyLimit | None:
    limit = found.limit
    if not found.HasField("limit"):
        return None
    return KeyLimit(limit.bucket_id, limit.prefix, limit.writes, limit.deletes, limit.project_id)
