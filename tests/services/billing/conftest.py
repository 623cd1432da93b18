"""The real control plane on a fake engine, with somebody signed in by the official SDK."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.control_plane.composition import ControlPlane, control_plane
from neocloud.control_plane.settings import Settings
from neocloud.core.clock import SystemClock
from neocloud.engines.fake import FakeEngine


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
    async with control_plane(settings, engine, clock=SystemClock()) as running:
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
