"""The real store of metrics, from Debian, as `neo image build metrics` takes it."""

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.control_plane.gateway_supervisor import GatewayProcess
from neocloud.control_plane.metrics_store import metrics_store, write_scrape_file
from neocloud.core.child_process import Child
from neocloud.data_plane.metrics_keys import STORE_USER, metrics_password_file
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import until
from tests import ROOT

BUILD = ROOT / "images" / "metrics" / "build"


@pytest.fixture(scope="session")
def metrics_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with VictoriaMetrics."""
    output = tmp_path_factory.mktemp("metrics-image")
    subprocess.run([sys.executable, BUILD, "--output", output], check=True)
    return output / "metrics"


@dataclass
class Store:
    home: Path
    process: GatewayProcess

    @property
    def pid(self) -> int:
        child = Child("metrics store", self.home / "unused", self.home / "metrics" / "process.json")
        return int(child.record()["pid"])

    def client(self, *, with_password: bool = True) -> httpx.AsyncClient:
        auth = (STORE_USER, metrics_password_file(self.home).read_text().strip()) if with_password else None
        return httpx.AsyncClient(base_url=f"http://{self.process.address}", auth=auth, trust_env=False)

    async def add(self, text: str) -> None:
        """Import samples in Prometheus's text format, and have them found at once."""
        await self.add_as("", text)

    async def add_as(self, case: str, text: str) -> None:
        """Import samples with a label `case`, so that they can be asked for apart from others."""
        async with self.client() as client:
            label = {"extra_label": f"case={case}"} if case else {}
            answer = await client.post("/api/v1/import/prometheus", params=label, content=text)
            assert answer.status_code == 204, answer.text
            await client.get("/internal/force_flush")

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Ask the store itself, without a limit."""
        return await self.query_as("", expression)

    async def query_as(self, case: str, expression: str) -> list[dict[str, Any]]:
        """Ask for what was added as this case, alone."""
        label = {"extra_label": f"case={case}"} if case else {}
        async with self.client() as client:
            answer = (await client.post("/api/v1/query", data={"query": expression, **label})).json()
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    async def appears(self, expression: str, seconds: float = 40) -> list[dict[str, Any]]:
        async def found() -> list[dict[str, Any]]:
            return await self.query(expression)

        return await until(found, seconds=seconds, poll_seconds=0.5)

    def collect(self, **addresses: str) -> None:
        write_scrape_file(self.home, {name.replace("_", "-"): at for name, at in addresses.items()})


@pytest.fixture
async def store(
    metrics_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    monkeypatch.setattr("neocloud.control_plane.metrics_store.SCRAPE_SECONDS", 1)
    (tmp_path / "images").mkdir(exist_ok=True)
    (tmp_path / "images" / "metrics").symlink_to(metrics_program)
    process = metrics_store(Settings(home=tmp_path, metrics=True))()
    await process.start()
    yield Store(tmp_path, process)
    await process.stop()
