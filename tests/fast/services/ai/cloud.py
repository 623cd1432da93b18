"""A control plane in this process around an engine, for endpoints and jobs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from neocloud.core.store import Resource
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from tests import control_plane

IMAGE = "localhost/neocloud/tool:1"


class AiCloud(control_plane.Cloud):
    async def owned(self, resource_id: str, kind: str) -> list[Resource]:
        rows = await self.running.store.read(lambda tx: tx.list(kind, parent_id=self.project_id)[0])
        return [row for row in rows if row.owner_id == resource_id]

    def reference(self, resource_id: str) -> Reference:
        return Reference("Pod", resource_id, "main")

    def pod(self, resource_id: str) -> Any:
        return self.engine.world.pods[self.reference(resource_id)]

    def container(self, resource_id: str) -> dict[str, Any]:
        return self.pod(resource_id).manifest.to_dict()["spec"]["containers"][0]


@asynccontextmanager
async def cloud_in_process(home: Path, engine: Any = None, **settings: Any) -> AsyncIterator[AiCloud]:
    """May be entered again on the same home and engine, as after a restart."""
    engine = engine or FakeEngine(cpus=8, memory_mib=32 * 1024)
    images = {"tool": {"name": IMAGE}}
    async with control_plane.cloud_in_process(home, engine, images=images, **settings) as cloud:
        yield AiCloud(**vars(cloud))
