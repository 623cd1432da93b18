"""A control plane in this process around an engine, asked over real gRPC for endpoints and jobs."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.control_plane.composition import ControlPlane, control_plane
from neocloud.control_plane.settings import Settings
from neocloud.core import wire
from neocloud.core.clock import SystemClock
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine

IMAGE = "localhost/neocloud/tool:1"
DEADLINE_SECONDS = 20.0


@dataclass(frozen=True)
class AiCloud:
    running: ControlPlane
    engine: Any
    """A FakeEngine, unless another was given."""
    sdk: SDK

    @property
    def project_id(self) -> str:
        return self.running.first.project_id

    async def row(self, resource_id: str) -> Any:
        return await self.running.store.read(lambda tx: tx.get(resource_id))

    async def until(self, resource_id: str, *states: str) -> Any:
        """The resource as a message, once it is in one of these states."""
        return await self.when(resource_id, lambda _: True, *states)

    async def when(self, resource_id: str, holds: Callable[[Any], object], *states: str) -> Any:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            row = await self.row(resource_id)
            message = wire.resource_message(row) if row is not None else None
            if row is not None and (not states or row.state in states) and holds(message):
                return message
            assert time.monotonic() < deadline, message or "it is gone"
            await asyncio.sleep(0.02)

    async def gone(self, resource_id: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while await self.row(resource_id):
            assert time.monotonic() < deadline, f"{resource_id} is still there"
            await asyncio.sleep(0.02)

    async def owned(self, resource_id: str, kind: str) -> list[Any]:
        rows = await self.running.store.read(lambda tx: tx.list(kind, parent_id=self.project_id)[0])
        return [row for row in rows if row.owner_id == resource_id]

    def reference(self, resource_id: str) -> Reference:
        return Reference("Pod", resource_id, "main")

    def pod(self, resource_id: str) -> Any:
        return self.engine.world.pods[self.reference(resource_id)]

    def container(self, resource_id: str) -> dict[str, Any]:
        return self.pod(resource_id).manifest.to_dict()["spec"]["containers"][0]


@asynccontextmanager
async def cloud_in_process(home: Path, engine: Any = None) -> AsyncIterator[AiCloud]:
    """May be opened again on the same home and engine, as after a restart."""
    record = home / "images" / "tool" / "image.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({"name": IMAGE}))
    settings = Settings(home=home, grpc_port=0, http_port=0)
    engine = engine or FakeEngine(cpus=8, memory_mib=32 * 1024)
    async with control_plane(settings, engine, clock=SystemClock()) as running:
        credentials = home / "sdk.json"
        credentials.write_text(json.dumps(running.first.credentials))
        sdk = SDK(
            resolver=Constant(running.server.addresses.grpc),
            options=[(INSECURE, True)],
            credentials_file_name=str(credentials),
            user_agent_prefix="tests/1.0",
        )
        try:
            yield AiCloud(running, engine, sdk)
        finally:
            await sdk.close()
