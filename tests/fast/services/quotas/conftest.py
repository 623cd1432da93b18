"""The real control plane on a fake engine, driven by the official SDK; where asked on PostgreSQL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    CreateFilesystemRequest,
    DeleteFilesystemRequest,
    FilesystemServiceClient,
    FilesystemSpec,
    UpdateFilesystemRequest,
)
from nebius.api.nebius.quotas.v1 import (
    CreateQuotaAllowanceRequest,
    GetByNameRequest,
    QuotaAllowance,
    QuotaAllowanceServiceClient,
    QuotaAllowanceSpec,
)

from neocloud.control_plane.composition import SERVICES
from neocloud.engines.fake import FakeEngine
from neocloud.services import quotas
from tests import control_plane
from tests.fast.core.conftest import empty_database, new_database, postgres, shared_database  # noqa: F401  fixtures

GIB = 1 << 30
REGION = "eu-north1"
SSD = FilesystemSpec.FilesystemType.NETWORK_SSD
COUNT, SIZE = "compute.filesystem.count", "compute.filesystem.size.network-ssd"


@dataclass
class Cloud(control_plane.Cloud):
    ledger: quotas.Ledger

    @property
    def allowances(self) -> QuotaAllowanceServiceClient:
        return QuotaAllowanceServiceClient(self.sdk)

    @property
    def filesystems(self) -> FilesystemServiceClient:
        return FilesystemServiceClient(self.sdk)

    async def limit(self, name: str, limit: int, parent_id: str = "") -> str:
        metadata = ResourceMetadata(parent_id=parent_id or self.project_id, name=name)
        request = CreateQuotaAllowanceRequest(
            metadata=metadata, spec=QuotaAllowanceSpec(limit=limit, region=REGION)
        )
        operation = await self.allowances.create(request)
        assert operation.successful()
        return operation.resource_id

    async def allowance(self, name: str, parent_id: str = "") -> QuotaAllowance:
        return await self.allowances.get_by_name(
            GetByNameRequest(parent_id=parent_id or self.project_id, name=name, region=REGION)
        )

    async def usage(self, name: str, parent_id: str = "") -> int:
        return (await self.allowance(name, parent_id)).status.usage

    async def make_filesystem(self, name: str, size: int = 1, parent_id: str = "") -> str:
        metadata = ResourceMetadata(parent_id=parent_id or self.project_id, name=name)
        spec = FilesystemSpec(size_gibibytes=size, type=SSD)
        operation = await self.filesystems.create(CreateFilesystemRequest(metadata=metadata, spec=spec))
        return operation.resource_id

    async def made_filesystem(self, name: str, size: int = 1, parent_id: str = "") -> str:
        metadata = ResourceMetadata(parent_id=parent_id or self.project_id, name=name)
        spec = FilesystemSpec(size_gibibytes=size, type=SSD)
        operation = await self.filesystems.create(CreateFilesystemRequest(metadata=metadata, spec=spec))
        await operation.wait(interval=0.02)
        return operation.resource_id

    async def grow(self, identifier: str, size: int) -> None:
        request = UpdateFilesystemRequest(
            metadata=ResourceMetadata(id=identifier), spec=FilesystemSpec(size_gibibytes=size, type=SSD)
        )
        await (await self.filesystems.update(request)).wait(interval=0.02)

    async def remove(self, identifier: str) -> None:
        operation = await self.filesystems.delete(DeleteFilesystemRequest(id=identifier))
        await operation.wait(interval=0.02)

    async def counter_errors(self) -> Any:
        """Return the errors that a recount finds in the counters."""
        return await self.running.store.read(self.ledger.errors)


async def refused(call: Any) -> Any:
    """The status of a request that must fail."""
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.status


@asynccontextmanager
async def running_cloud(home: Path, **settings: Any) -> AsyncIterator[Cloud]:
    engine = FakeEngine(cpus=64, memory_mib=512 * 1024)
    ledger = quotas.ledger(SERVICES, quotas.load_quotas(None))
    async with control_plane.cloud_in_process(home, engine, **settings) as cloud:
        yield Cloud(**vars(cloud), ledger=ledger)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with running_cloud(tmp_path) as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "sqlite" else request.getfixturevalue("empty_database")
