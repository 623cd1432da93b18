"""A gateway as a process, engines without models, and what each client needs to reach it.

Models: "bank" with its adapter "bank-polite", "embedder" and "all-minilm-l6-v2", on the mock engine; "tools"
on an engine that says what is scripted; "cold" has no replica; "narrow" takes two requests a minute.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from neocloud.testing.gateway import EngineProcess, GatewayProcess, engine_process, gateway_process, route
from neocloud.testing.mock_engine import Behaviour
from tests import ROOT
from tests.clients import CLIENTS
from tests.fast.model_gateway.openai_files.jobs import FakeTuningControlPlane
from tests.real.conformance.openai.engine import ScriptedEngine, scripted_engine

OTHER_TENANT = "key-b"


@dataclass
class Studio:
    """The objects that a client's test may use."""

    gateway: GatewayProcess
    mock: EngineProcess
    scripted: ScriptedEngine
    control_plane: FakeTuningControlPlane

    @property
    def base_url(self) -> str:
        return f"{self.gateway.url}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a client's user."""
        found = {**os.environ, "OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": self.gateway.token}
        return {**found, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

    def client(self, *, key: str = "", max_retries: int = 0) -> openai.OpenAI:
        key = key or self.gateway.token
        return openai.OpenAI(base_url=self.base_url, api_key=key, max_retries=max_retries, timeout=120)

    def run(self, *words: Any, **environment: str) -> str:
        """Return the output of a client's program."""
        done = subprocess.run(
            [str(word) for word in words],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def routes(self, **replaced: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the routes of all models; `replaced` by model."""
        mock = [self.mock.address]
        known: dict[str, Mapping[str, Any]] = {
            "bank": route("bank", replicas=mock, adapters={"bank-polite": mock}),
            "embedder": route("embedder", replicas=mock, task="EMBED"),
            "all-minilm-l6-v2": route("all-minilm-l6-v2", replicas=mock, task="EMBED"),
            "tools": route("tools", replicas=[self.scripted.address]),
            "cold": route("cold", start_seconds=1),
            "narrow": route(
                "narrow", replicas=mock, limits={"requests_per_minute": 2, "tokens_per_minute": 9999}
            ),
        }
        return list({**known, **replaced}.values())


@pytest.fixture(scope="package")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    control_plane = FakeTuningControlPlane()
    control_plane.add_caller(OTHER_TENANT, tenant="tenant-b", projects=["project-b"])
    home = tmp_path_factory.mktemp("studio")
    with (
        engine_process(Behaviour(tokens=5)) as mock,
        scripted_engine() as scripted,
        gateway_process(home, control_plane=control_plane) as gateway,
    ):
        studio = Studio(gateway, mock, scripted, control_plane)
        gateway.set_routes(*studio.routes())
        yield studio


@pytest.fixture
def client(studio: Studio) -> Iterator[openai.OpenAI]:
    with studio.client() as client:
        yield client


@pytest.fixture(scope="session")
def installed() -> "InstalledClients":
    return InstalledClients()


class InstalledClients:
    """Folders of clients that `make clients` installed."""

    def __call__(self, name: str) -> Path:
        folder = CLIENTS / name
        if not (folder / "installed.txt").exists():
            subprocess.run([ROOT / "scripts" / "install-client", name], check=True)
        return folder
