"""The whole way with the official SDK: sign in, make a filesystem, see it on the bill, delete it. BILL-03."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    CreateFilesystemRequest,
    DeleteFilesystemRequest,
    FilesystemServiceClient,
    FilesystemSpec,
    FilesystemStatus,
    GetFilesystemRequest,
    ListPlatformsRequest,
    PlatformServiceClient,
)
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.app import ControlPlane, control_plane
from neocloud.core.clock import SystemClock
from neocloud.engines.fake import FakeEngine
from neocloud.settings import Settings


@dataclass
class Bank:
    running: ControlPlane
    sdk: SDK

    @property
    def project_id(self) -> str:
        return self.running.first.project_id

    async def bill(self, verb: str) -> Any:
        token = await self.sdk.get_token(timeout=10)
        address = f"http://{self.running.server.addresses.http}"
        async with httpx.AsyncClient(base_url=address, trust_env=False) as http:
            answer = await http.post(
                f"/neocloud.billing.v1.UsageService/{verb}",
                json={"parentId": self.project_id},
                headers={"authorization": f"Bearer {token.token}"},
            )
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    settings = Settings(home=tmp_path, grpc_port=0, http_port=0)
    engine = FakeEngine(cpus=2, memory_mib=24 * 1024)
    async with control_plane(settings, engine, clock=SystemClock(), extras={}) as running:
        credentials = tmp_path / "sdk.json"
        credentials.write_text(json.dumps(running.first.credentials))
        sdk = SDK(
            resolver=Constant(running.server.addresses.grpc),
            options=[(INSECURE, True)],
            credentials_file_name=str(credentials),
            user_agent_prefix="tests/1.0",
        )
        try:
            yield Bank(running, sdk)
        finally:
            await sdk.close()


async def test_a_filesystem_from_create_to_bill(bank: Bank) -> None:
    platforms = await PlatformServiceClient(bank.sdk).list(ListPlatformsRequest(parent_id=bank.project_id))
    assert "cpu-local" in {platform.metadata.name for platform in platforms.items}

    filesystems = FilesystemServiceClient(bank.sdk)
    spec = FilesystemSpec(size_gibibytes=730, type=FilesystemSpec.FilesystemType.NETWORK_SSD)
    metadata = ResourceMetadata(parent_id=bank.project_id, name="data")
    operation = await filesystems.create(CreateFilesystemRequest(metadata=metadata, spec=spec))
    await operation.wait(interval=0.05)
    assert operation.successful()
    found = await filesystems.get(GetFilesystemRequest(id=operation.resource_id))
    assert found.status.state == FilesystemStatus.State.READY

    deletion = await filesystems.delete(DeleteFilesystemRequest(id=operation.resource_id))
    await deletion.wait(interval=0.05)
    assert deletion.successful()

    usage, report = await bank.bill("ListUsage"), await bank.bill("GetReport")
    # It lived for a part of a second or a little more: whole seconds are charged, and nothing is made up.
    seconds = sum(int(item["seconds"]) for item in usage.get("items", []))
    lines = report.get("lines", [])
    assert {line["resourceName"] for line in lines} <= {"data"}
    assert report["totalCost"] == f"{seconds * 730 * 0.08 / (730 * 3600):.6f}"
