"""The calls that the object gateway makes to the control plane."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from neocloud.data_plane.access_keys import KeyLimit
from neocloud.messages.nebius.storage.v1 import Bucket, BucketSpec
from neocloud.messages.neocloud.storage.v1 import (
    ListGatewayBucketsResponse,
    ListGatewayInventoriesResponse,
    ListGatewayTransfersResponse,
    ReportBucketsRequest,
    ReportInventoriesRequest,
    ReportObjectEventsRequest,
    ReportTransfersRequest,
)


class UnknownAccessKey(Exception):
    """The control plane has no such access key, or it must not be used any more."""


class UnknownToken(Exception):
    """The control plane did not issue this token, or it must not be used any more."""


class RefusalCode(StrEnum):
    DENIED = "DENIED"
    INVALID = "INVALID"
    NOT_FOUND = "NOT_FOUND"
    NAME_TAKEN = "NAME_TAKEN"
    CONFLICT = "CONFLICT"
    """The bucket is in another state, for example not empty, or is being changed by somebody else."""
    QUOTA = "QUOTA"
    NOT_SERVED = "NOT_SERVED"


class Refused(Exception):
    """The control plane refused a change. The message is its own, for the caller."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class SigningKey:
    """The key that checks signatures of one day and region by one access key, and its owner."""

    key: bytes = field(repr=False)
    """HMAC-SHA256 of "aws4_request" with the derived keys of "AWS4" and the secret, day, region and "s3"."""
    aws_access_key_id: str
    subject_id: str
    subject_name: str
    tenant_id: str
    project_id: str
    """The project in which this subject makes and lists buckets."""
    group_ids: frozenset[str] = frozenset()
    expires_at: datetime | None = None
    limit: KeyLimit | None = None
    """None: all that the account may do."""


@dataclass(frozen=True)
class TokenOwner:
    """The owner of a token."""

    subject_id: str
    subject_name: str
    tenant_id: str
    proof: str
    """Names the account and the credential behind the token: what rights are asked with."""


class ControlPlane(Protocol):
    """Every method raises ControlPlaneUnavailable."""

    async def sign(self, aws_access_key_id: str, day: str, region: str) -> SigningKey:
        """`day` is as in the scope of a signature: "20261124". Raises UnknownAccessKey."""
        ...

    async def authenticate(self, token: str) -> TokenOwner:
        """Return the owner of an access token or static key of the cloud. Raises UnknownToken."""
        ...

    async def authorize(self, subject_id: str, target_id: str, proof: str = "") -> frozenset[str]:
        """Return the permissions on objects and images that a subject has on a bucket, registry or project by
        its roles. With the proof of a token: those of its owner, none once its credential was revoked."""
        ...

    async def list_buckets(
        self, version: str, access_version: str, wait_seconds: int
    ) -> ListGatewayBucketsResponse:
        """Return all buckets as soon as either version is another, at the latest after `wait_seconds`."""
        ...

    async def report(self, request: ReportBucketsRequest) -> None: ...

    async def list_transfers(self, version: str, wait_seconds: int) -> ListGatewayTransfersResponse:
        """Return all transfers as soon as the version is another, at the latest after `wait_seconds`."""
        ...

    async def report_transfers(self, request: ReportTransfersRequest) -> None: ...

    async def list_inventories(self, version: str, wait_seconds: int) -> ListGatewayInventoriesResponse:
        """Return all inventories as soon as the version is another, at the latest after `wait_seconds`."""
        ...

    async def report_inventories(self, request: ReportInventoriesRequest) -> None: ...

    async def report_object_events(self, request: ReportObjectEventsRequest) -> None: ...

    async def create_bucket(
        self, aws_access_key_id: str, project_id: str, name: str, spec: BucketSpec
    ) -> None:
        """Create a bucket on behalf of the account of an access key; return when it is served.
        Raises Refused, UnknownAccessKey."""
        ...

    async def update_bucket(
        self, aws_access_key_id: str, bucket_id: str, change: Callable[[Bucket], None]
    ) -> None:
        """Let `change` work on the desired state of the bucket, and return when that is applied. `change` may
        be called again where somebody else changed the bucket meanwhile. Raises as create_bucket."""
        ...

    async def delete_bucket(self, aws_access_key_id: str, bucket_id: str) -> None:
        """Remove an empty bucket permanently; return when it is gone. Raises as create_bucket."""
        ...

    async def close(self) -> None: ...
