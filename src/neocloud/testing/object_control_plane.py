"""A stand-in for the control plane of the object gateway, in memory: keys, rights and buckets.

For tests of the S3 front, which need no other service.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.messages.nebius.storage.v1 import Bucket, BucketSpec, TransferIteration
from neocloud.messages.neocloud.storage.v1 import (
    BucketReport,
    GatewayBucket,
    GatewayInventory,
    GatewayTransfer,
    InventoryReport,
    ListGatewayBucketsResponse,
    ListGatewayInventoriesResponse,
    ListGatewayTransfersResponse,
    PolicyRule,
    ReportBucketsRequest,
    ReportInventoriesRequest,
    ReportObjectEventsRequest,
    ReportTransfersRequest,
    TransferReport,
)
from neocloud.object_gateway.access import (
    RefusalCode,
    Refused,
    SigningKey,
    TokenOwner,
    UnknownAccessKey,
    UnknownToken,
)
from neocloud.object_gateway.s3.signature import signing_key

PERMISSIONS = frozenset(
    (
        *(f"storage.buckets.{verb}" for verb in ("create", "get", "list", "update", "delete")),
        *(f"storage.objects.{verb}" for verb in ("create", "get", "list", "update", "delete")),
        "storage.buckets.bypassRetention",
        *(f"registry.images.{verb}" for verb in ("pull", "push", "delete")),
    )
)
SERVE, HIDE, PURGE = (GatewayBucket.Mode.Value(each) for each in ("SERVE", "HIDE", "PURGE"))


@dataclass
class Account:
    """An account with one access key."""

    aws_access_key_id: str
    secret: str
    project_id: str = "project-a"
    groups: frozenset[str] = frozenset()
    permissions: frozenset[str] = PERMISSIONS
    """The permissions on all buckets of its project."""

    @property
    def subject_id(self) -> str:
        return f"serviceaccount-{self.aws_access_key_id.lower()}"

    @property
    def token(self) -> str:
        """An access token of the account."""
        return f"token-{self.secret}"


@dataclass
class FakeControlPlane:
    accounts: dict[str, Account] = field(default_factory=dict[str, Account])
    is_away: bool = False
    """It does not answer."""
    is_down: bool = False
    """Nothing listens at its address."""
    signs: int = 0
    """How often a key was asked for."""
    is_slow: bool = False
    """Whether changes are returned to those who ask for them, and waiting calls are not woken."""

    def __post_init__(self) -> None:
        self._buckets: dict[str, GatewayBucket] = {}
        self._version = self._access_version = 1
        self._number = 0
        self._changed = asyncio.Event()
        self._reported = asyncio.Event()
        self.reports: dict[str, BucketReport] = {}
        self.reported = ReportBucketsRequest()
        """The last report."""
        self._transfers: dict[str, GatewayTransfer] = {}
        self._transfers_version = 1
        self._transfers_changed = asyncio.Event()
        self.transfer_reports: dict[str, TransferReport] = {}
        self.iterations: dict[tuple[str, int], TransferIteration] = {}
        """The ended iterations, by transfer and number."""
        self._inventories: dict[str, GatewayInventory] = {}
        self._inventories_version = 1
        self._inventories_changed = asyncio.Event()
        self.inventory_reports: dict[str, InventoryReport] = {}
        self.object_events: list[ReportObjectEventsRequest] = []

    def add(self, account: Account) -> Account:
        self.accounts[account.aws_access_key_id] = account
        return account

    def access_changed(self) -> None:
        """Say that keys, groups or rights changed."""
        self._access_version += 1
        self._wake()

    async def sign(self, aws_access_key_id: str, day: str, region: str) -> SigningKey:
        self._require()
        self.signs += 1
        account = self.accounts.get(aws_access_key_id)
        if account is None:
            raise UnknownAccessKey
        key = signing_key(account.secret, day, region)
        return SigningKey(
            key,
            aws_access_key_id,
            account.subject_id,
            account.subject_id,
            f"tenant-of-{account.project_id}",
            account.project_id,
            account.groups,
        )

    async def authenticate(self, token: str) -> TokenOwner:
        self._require()
        for account in self.accounts.values():
            if account.token == token:
                tenant_id = f"tenant-of-{account.project_id}"
                return TokenOwner(account.subject_id, account.subject_id, tenant_id, account.subject_id)
        raise UnknownToken

    async def authorize(self, subject_id: str, target_id: str, proof: str = "") -> frozenset[str]:
        self._require()
        subject_id = proof or subject_id
        bucket = self._buckets.get(target_id)
        project_id = bucket.project_id if bucket is not None else target_id
        for account in self.accounts.values():
            if account.subject_id == subject_id and account.project_id == project_id:
                return account.permissions
        return frozenset()

    async def list_buckets(
        self, version: str, access_version: str, wait_seconds: int
    ) -> ListGatewayBucketsResponse:
        self._require()
        if (version, access_version) == (str(self._version), str(self._access_version)):
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._changed.wait()
                    while self.is_slow:
                        self._changed.clear()
                        await self._changed.wait()
            except TimeoutError:
                pass
        self._require()
        return ListGatewayBucketsResponse(
            version=str(self._version),
            access_version=str(self._access_version),
            buckets=self._buckets.values(),
        )

    async def report(self, request: ReportBucketsRequest) -> None:
        self._require()
        self.reports = {each.id: each for each in request.buckets}
        self.reported = request
        self._reported.set()

    async def list_transfers(self, version: str, wait_seconds: int) -> ListGatewayTransfersResponse:
        self._require()
        if version == str(self._transfers_version):
            self._transfers_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._transfers_changed.wait()
        self._require()
        return ListGatewayTransfersResponse(
            version=str(self._transfers_version), transfers=self._transfers.values()
        )

    async def report_transfers(self, request: ReportTransfersRequest) -> None:
        self._require()
        self.transfer_reports = {each.id: each for each in request.transfers}
        for each in request.transfers:
            for iteration in each.ended_iterations:
                self.iterations[each.id, iteration.sequence_number] = iteration

    def transfer(self, transfer_id: str) -> GatewayTransfer:
        return self._transfers[transfer_id]

    def put_transfer(self, transfer: GatewayTransfer) -> None:
        """List a new or changed transfer."""
        before = self._transfers.get(transfer.id)
        transfer.generation = before.generation + 1 if before is not None else 1
        self._transfers[transfer.id] = transfer
        self._transfers_version += 1
        self._transfers_changed.set()

    async def list_inventories(self, version: str, wait_seconds: int) -> ListGatewayInventoriesResponse:
        self._require()
        if version == str(self._inventories_version):
            self._inventories_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._inventories_changed.wait()
        self._require()
        return ListGatewayInventoriesResponse(
            version=str(self._inventories_version), inventories=self._inventories.values()
        )

    async def report_inventories(self, request: ReportInventoriesRequest) -> None:
        self._require()
        self.inventory_reports.update({each.id: each for each in request.inventories})

    async def report_object_events(self, request: ReportObjectEventsRequest) -> None:
        self._require()
        self.object_events.append(request)

    def inventory(self, inventory_id: str) -> GatewayInventory:
        return self._inventories[inventory_id]

    def put_inventory(self, inventory: GatewayInventory) -> None:
        """List a new or changed inventory."""
        before = self._inventories.get(inventory.id)
        inventory.generation = before.generation + 1 if before is not None else 1
        self._inventories[inventory.id] = inventory
        self._inventories_version += 1
        self._inventories_changed.set()

    async def create_bucket(
        self, aws_access_key_id: str, project_id: str, name: str, spec: BucketSpec
    ) -> None:
        self._check(aws_access_key_id, project_id, "storage.buckets.create")
        from neocloud.services.storage.rules.names import name_problem  # noqa: PLC0415  it loads a service

        if problem := name_problem(name):
            raise Refused(RefusalCode.INVALID, f"metadata.name: {problem}")
        if any(each.name == name for each in self._buckets.values()):
            raise Refused(RefusalCode.NAME_TAKEN, "The name is taken.")
        self._number += 1
        bucket = GatewayBucket(
            id=f"storagebucket-{self._number}",
            name=name,
            project_id=project_id,
            tenant_id=f"tenant-of-{project_id}",
            generation=1,
            mode=SERVE,
            spec=spec,
        )
        bucket.created_at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
        self._buckets[bucket.id] = bucket
        await self._applied(bucket)

    async def make_registry(
        self, project_id: str = "project-a", *, allows_sparse: bool = False
    ) -> GatewayBucket:
        """Return a new registry, once it is served."""
        self._number += 1
        registry = GatewayBucket(
            id=f"registry-e00fake{self._number}",
            name=f"images-{self._number}",
            project_id=project_id,
            tenant_id=f"tenant-of-{project_id}",
            mode=SERVE,
            is_registry=True,
        )
        registry.image_rules.allows_sparse = allows_sparse
        registry.created_at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
        self._buckets[registry.id] = registry
        await self._applied(registry)
        return registry

    def adopt(self, bucket: GatewayBucket) -> None:
        """Know a bucket that the gateway has from before."""
        self._buckets[bucket.id] = bucket
        self._version += 1

    async def update_bucket(
        self, aws_access_key_id: str, bucket_id: str, change: Callable[[Bucket], None]
    ) -> None:
        bucket = self._buckets[bucket_id]
        self._check(aws_access_key_id, bucket.project_id, "storage.buckets.update")
        desired = Bucket(spec=bucket.spec)
        desired.metadata.labels.update(bucket.labels)
        change(desired)
        is_new_spec = bucket.spec != desired.spec
        bucket.spec.CopyFrom(desired.spec)
        bucket.labels.clear()
        bucket.labels.update(desired.metadata.labels)
        if is_new_spec:
            await self._applied(bucket)
        else:  # labels are true at once, and the gateway hears of them by itself
            self._version += 1
            self._wake()

    async def delete_bucket(self, aws_access_key_id: str, bucket_id: str) -> None:
        bucket = self._buckets[bucket_id]
        self._check(aws_access_key_id, bucket.project_id, "storage.buckets.delete")
        bucket.mode = PURGE
        await self._applied(bucket)
        del self._buckets[bucket_id]

    async def set_policy(self, name: str, rules: Sequence[PolicyRule]) -> None:
        bucket = self.named(name)
        del bucket.policy[:]
        bucket.policy.extend(rules)
        await self._applied(bucket)

    def named(self, name: str) -> GatewayBucket:
        return next(each for each in self._buckets.values() if each.name == name)

    async def change(self, name: str, change: Callable[[GatewayBucket], None]) -> None:
        bucket = self.named(name)
        change(bucket)
        await self._applied(bucket)

    async def close(self) -> None:
        pass

    async def _applied(self, bucket: GatewayBucket) -> None:
        """Return when the gateway has reported this generation."""
        bucket.generation += 1
        self._version += 1
        self._wake()
        while True:
            report = self.reports.get(bucket.id)
            is_applied = report is not None and report.applied_generation >= bucket.generation
            if report is not None and is_applied and (report.is_purged or bucket.mode != PURGE):
                return
            self._reported.clear()
            await self._reported.wait()

    def _check(self, aws_access_key_id: str, project_id: str, permission: str) -> None:
        self._require()
        account = self.accounts.get(aws_access_key_id)
        if account is None or account.project_id != project_id or permission not in account.permissions:
            raise Refused(RefusalCode.DENIED, "Permission denied.")

    def _wake(self) -> None:
        self._changed.set()

    def _require(self) -> None:
        if self.is_away or self.is_down:
            raise ControlPlaneUnavailable("it is away", is_down=self.is_down)
