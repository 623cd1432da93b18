"""The real control plane on a fake engine, with somebody signed in by the official SDK."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.engines.fake import FakeEngine
from tests import control_plane


class Bank(control_plane.Cloud):
    async def bill(self, verb: str) -> Any:
        token = await self.sdk.get_token(timeout=60)
        address = f"http://{self.running.server.addresses.http}"
        async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as http:
            answer = await http.post(
                f"/neocloud.billing.v1.UsageService/{verb}",
                json={"parentId": self.project_id},
                headers={"authorization": f"Bearer {token.token}"},
            )
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def running_bank(home: Path) -> AsyncIterator[Bank]:
    async with control_plane.cloud_in_process(home, FakeEngine(cpus=2, memory_mib=24 * 1024)) as cloud:
        yield Bank(**vars(cloud))


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with running_bank(tmp_path) as started:
        yield started
