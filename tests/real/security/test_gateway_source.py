"""The source of a call that the gateway makes for a client: the audit log names the client's address, and no
other caller chooses what it names.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from neocloud.core import contract
from neocloud.data_plane.gateway_keys import CLIENT_HEADER, KEY_HEADER, gateway_key_file
from neocloud.testing.gateway import gateway_process
from tests.control_plane import call
from tests.fast.model_gateway.openai_files.jobs import FakeTuningControlPlane
from tests.fast.services.inference.cloud import FakeCloud, fake_cloud

ACCOUNTS = "nebius.iam.v1.ServiceAccountService/Create"
CLIENT = "192.0.2.7"


@pytest_asyncio.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path / "home") as running:
        yield running


async def source_of_a_change(cloud: FakeCloud, name: str, headers: dict[str, str]) -> str:
    """Return the source in the audit log."""
    request = contract.message("nebius.iam.v1.CreateServiceAccountRequest")()
    request.metadata.parent_id, request.metadata.name = cloud.project_id, name
    metadata = {"authorization": f"Bearer {cloud.token}", **headers}
    made = await call(cloud.channel, ACCOUNTS, request, tuple(metadata.items()))
    rows, _ = await cloud.running.store.read(lambda tx: tx.list_audit())
    (event,) = [row for row in rows if row.resource_id == made.resource_id]
    return event.source_address


@pytest.mark.parametrize("address", [CLIENT, "2001:db8::1"])
async def test_the_gateways_word_is_believed(cloud: FakeCloud, address: str) -> None:
    headers = {KEY_HEADER: gateway_key_file(cloud.home).read_text().strip(), CLIENT_HEADER: address}
    assert await source_of_a_change(cloud, "by-gateway", headers) == address


@pytest.mark.parametrize("key", [None, "", "guessed", "x" * 43])
async def test_a_tenants_word_is_not(cloud: FakeCloud, key: str | None) -> None:
    headers = {CLIENT_HEADER: CLIENT} | ({} if key is None else {KEY_HEADER: key})
    assert await source_of_a_change(cloud, "by-tenant", headers) == "127.0.0.1"


async def test_what_is_no_address_does_not_come_into_the_log(cloud: FakeCloud) -> None:
    headers = {KEY_HEADER: gateway_key_file(cloud.home).read_text().strip(), CLIENT_HEADER: "x" * 100}
    assert await source_of_a_change(cloud, "by-gateway", headers) == "127.0.0.1"


def test_the_gateway_names_the_address_that_it_sees(tmp_path: Path) -> None:
    """And passes on nothing of what a client says of it."""
    control_plane = FakeTuningControlPlane()
    with gateway_process(tmp_path, control_plane=control_plane) as gateway:
        said = {CLIENT_HEADER: CLIENT, KEY_HEADER: "guessed", "x-forwarded-for": CLIENT, "forwarded": CLIENT}
        url = f"{gateway.url}/v1/fine_tuning/jobs"
        assert httpx.get(url, headers={**gateway.headers, **said}, timeout=60).status_code == 200
    (metadata,) = control_plane.jobs.metadata
    assert (metadata[CLIENT_HEADER], metadata[KEY_HEADER]) == ("127.0.0.1", "test-key")
    assert CLIENT not in metadata.values() and "guessed" not in metadata.values()
