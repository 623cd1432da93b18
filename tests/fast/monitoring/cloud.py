"""A cloud whose metrics are read: clusters with watched workers, and a caller of another tenant."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx

from neocloud.control_plane.metrics_store import collectors_certificate
from neocloud.core.clock import SystemClock
from neocloud.data_plane.metrics_keys import scrape_key_file
from neocloud.services import iam
from neocloud.testing.waiting import until
from tests.control_plane import sign_in
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud


class MeasuredCloud(FakeCloud):
    async def page(self, **headers: str) -> httpx.Response:
        """Return the answer of /metrics."""
        return await self.http("/metrics", **headers)

    async def http(self, path: str, **headers: str) -> httpx.Response:
        address = self.running.server.addresses.http
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://{address}{path}", headers=headers)

    async def post(self, method: str) -> httpx.Response:
        """Call a method, which need not exist, by JSON."""
        address = self.running.server.addresses.http
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.post(f"http://{address}/{method}", json={})

    @property
    def scrape_key(self) -> str:
        return scrape_key_file(self.home).read_text().strip()

    async def samples(self) -> str:
        answer = await self.page(authorization=f"Bearer {self.scrape_key}")
        assert answer.status_code == 200, answer.text
        return answer.text

    async def call_series(self) -> set[str]:
        """Return the series that calls of the API made, without their values."""
        lines = (await self.samples()).splitlines()
        return {line.rpartition(" ")[0] for line in lines if line.startswith("neocloud_api_request")}

    async def sample_appears(self, line: str) -> str:
        """Wait for this line, and return the page that has it."""

        async def found() -> str:
            text = await self.samples()
            return text if line in text.splitlines() else ""

        return await until(found, seconds=20, poll_seconds=0.2)

    async def watched_cluster(self, count: int, spares: int) -> str:
        workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": count}
        spec = {"node_sets": [{**workers, "spare_count": spares}], "auto_repair": True}
        cluster = await self.create("Cluster", "bank", spec)
        await self.until(cluster, "READY")
        return cluster

    async def other_tenant(self) -> tuple[str, str]:
        """Return the token of an administrator of another tenant, and its project."""
        store = self.running.store
        other = await iam.bootstrap(
            store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
        )
        return await sign_in(self.channel, other.credentials), other.project_id


@asynccontextmanager
async def measured_cloud(home: Path) -> AsyncIterator[MeasuredCloud]:
    async with fake_cloud(home, collectors=collectors_certificate(home, datetime.now(UTC))) as running:
        yield MeasuredCloud(**vars(running))
