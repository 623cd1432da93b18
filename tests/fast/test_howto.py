"""The guide to adding a service is followed: its code runs, and its links lead somewhere."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.dns.v1 import (
    CreateZoneRequest,
    GetZoneRequest,
    VpcZoneScope,
    ZoneServiceClient,
    ZoneSpec,
)
from nebius.api.nebius.vpc.v1 import ListNetworksRequest, NetworkServiceClient
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.control_plane.composition import compose
from neocloud.control_plane.lifecycle import control_plane
from neocloud.core.clock import SystemClock
from neocloud.engines.fake import FakeEngine
from neocloud.settings.settings import Settings
from tests import ROOT

GUIDE = ROOT / "docs" / "howto" / "add-a-service.md"
FILE = re.compile(r"^## \d+\. `([\w.]+)`$.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The service of the guide, written to files as the guide says."""
    package = tmp_path / "zones_of_the_guide"
    package.mkdir()
    for name, text in FILE.findall(GUIDE.read_text()):
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(package.name)
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


async def test_the_service_of_the_guide_serves_what_it_says(example: ModuleType, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", grpc_port=0, http_port=0)
    settings.home.mkdir(mode=0o700)
    composition = compose(settings, FakeEngine(), SystemClock())
    composition = replace(composition, services=(*composition.services, example.SERVICE))
    async with control_plane(composition) as running:
        credentials = tmp_path / "credentials.json"
        credentials.write_text(json.dumps(running.first.credentials))
        sdk = SDK(
            resolver=Constant(running.server.addresses.grpc),
            options=[(INSECURE, True)],
            credentials_file_name=str(credentials),
            user_agent_prefix="tests/1.0",
        )
        async with sdk:
            zones = ZoneServiceClient(sdk)
            networks = await NetworkServiceClient(sdk).list(
                ListNetworksRequest(parent_id=running.first.project_id)
            )
            scope = VpcZoneScope(primary_network_id=networks.items[0].metadata.id)

            async def create(name: str, domain: str) -> str:
                metadata = ResourceMetadata(parent_id=running.first.project_id, name=name)
                operation = await zones.create(
                    CreateZoneRequest(metadata=metadata, spec=ZoneSpec(domain_name=domain, vpc=scope))
                )
                await operation.wait(poll_iteration_timeout=0.05)
                return operation.resource_id

            zone = await zones.get(GetZoneRequest(id=await create("lab", "lab.bank.example.")))
            assert zone.spec.soa_spec.negative_ttl == 300 and not zone.status.reconciling
            with pytest.raises(RequestError, match=r"ends with \.local"):
                await create("printer", "printer.local.")
            with pytest.raises(RequestError, match=r"Another zone serves lab\.bank\.example"):
                await create("lab-2", "lab.bank.example.")


@pytest.mark.parametrize(
    "page", [GUIDE, ROOT / "CONTRIBUTING.md", ROOT / "README.md"], ids=lambda page: page.name
)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert links and not missing


def test_files_of_the_table_are_those_that_services_have() -> None:
    named = set(re.findall(r"^\| `([\w.]+)` \|", GUIDE.read_text(), re.MULTILINE))
    services = [path for path in (ROOT / "src/neocloud/services").iterdir() if path.is_dir()]
    assert all(
        any((service / name).exists() for service in services) for name in named - {"types.py", "public.py"}
    )


def test_make_targets_of_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "CONTRIBUTING.md", GUIDE):
        named = set(re.findall(r"\bmake ([a-z-]+)", page.read_text()))
        assert named and named <= targets


def test_contributing_names_the_channel_for_features_and_the_rule_for_commits() -> None:
    """IAC-04: a reader learns where to ask for a feature, what to say there, and what comes back."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    channel = page.partition("## Ask for a feature")[2].partition("\n## ")[0]
    assert all(text in channel for text in ("Open an issue", "`Feature:`", "accepted, later or no"))
    commits = page.partition("## Commits")[2]
    assert "at most 72 characters" in commits and "body says why" in commits
    ruler = (ROOT / ".gitmessage").read_text().splitlines()[1]
    assert len(ruler) == 72
