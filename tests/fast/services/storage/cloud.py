"""A control plane in this process with a stand-in for the object gateway."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neocloud.core.store.protocol import OperationRow
from neocloud.testing.object_gateway import FakeObjectGateway, object_gateway
from tests import control_plane


@dataclass(frozen=True)
class AccessKey:
    id: str
    aws_id: str
    secret: str = field(repr=False)


@dataclass
class AccountCloud(control_plane.Cloud):
    """With accounts, groups and keys."""

    async def account(self, name: str, *groups: str) -> str:
        """Return the id of a new service account in these groups of the tenant."""
        account = await self._made("nebius.iam.v1.ServiceAccountService", self.project_id, name)
        for group in groups:
            found = await self.call(
                "nebius.iam.v1.GroupService/GetByName", parent_id=self.tenant_id, name=group
            )
            await self.join(account, found.metadata.id)
        return account

    async def join(self, account: str, group: str) -> str:
        return await self._made("nebius.iam.v1.GroupMembershipService", group, "", {"member_id": account})

    async def group(self, name: str) -> str:
        return await self._made("nebius.iam.v1.GroupService", self.tenant_id, name)

    async def permit(self, group: str, resource: str, role: str) -> str:
        spec = {"resource_id": resource, "role": role}
        return await self._made("nebius.iam.v1.AccessPermitService", group, "", spec)

    async def access_key(self, account: str) -> AccessKey:
        spec = {"account": {"service_account": {"id": account}}, "secret_delivery_mode": "EXPLICIT"}
        key_id = await self._made("nebius.iam.v2.AccessKeyService", self.project_id, "", spec)
        found = await self.call("nebius.iam.v2.AccessKeyService/GetSecret", id=key_id)
        return AccessKey(key_id, found.aws_access_key_id, found.secret)

    async def _made(self, service: str, parent_id: str, name: str, spec: dict[str, Any] | None = None) -> str:
        metadata = {"parent_id": parent_id, "name": name}
        made = await self.call(f"{service}/Create", metadata=metadata, spec=spec or {})
        return made.resource_id

    async def operation(self, operation: Any) -> OperationRow:
        """Return an operation as it is stored, once it has ended."""
        deadline = time.monotonic() + control_plane.DEADLINE_SECONDS
        while True:
            change = self.changes.next
            found = await self.running.store.read(lambda tx: tx.get_operation(operation.id))
            assert found is not None
            if found.code is not None:
                return found
            assert time.monotonic() < deadline, found.progress
            with suppress(TimeoutError):
                async with asyncio.timeout(control_plane.RECHECK_SECONDS):
                    await change.wait()


@dataclass
class StorageCloud(AccountCloud):
    api = "nebius.storage.v1"

    gateway: FakeObjectGateway = field(kw_only=True)

    async def bucket(self, name: str, **spec: Any) -> str:
        """Return the id of a new bucket that is ready."""
        bucket_id = await self.create("Bucket", name, spec)
        await self.until(bucket_id, "ACTIVE")
        return bucket_id


@asynccontextmanager
async def cloud_in_process(home: Path, **settings: Any) -> AsyncIterator[StorageCloud]:
    """May be entered again on the same home, as after a restart."""
    async with (
        control_plane.cloud_in_process(home, **settings) as cloud,
        object_gateway(cloud.running.server.addresses.grpc, home) as gateway,
    ):
        yield StorageCloud(**vars(cloud), gateway=gateway)
