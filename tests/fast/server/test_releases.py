"""A `neo` of another release: one release apart works, more is refused before anything is done."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from nebius.api.nebius.compute.v1 import FilesystemServiceClient, ListFilesystemsRequest

from neocloud import __version__
from neocloud.cli.main import run
from neocloud.client.connection import Client, invoke, open_channel
from neocloud.client.credentials import StaticToken
from neocloud.client.errors import ReleasesApart
from neocloud.client.profiles import Profile, Profiles, config_file, write_profiles
from neocloud.client.sessions import Session, write_session
from neocloud.core import contract
from neocloud.core.releases import HEADER, OLDEST_HEADER, Release
from tests.fast.core.test_releases import HOSTILE
from tests.fast.server.conftest import ADMIN, PROJECT, TENANT, Cloud

FILESYSTEMS = "nebius.compute.v1.FilesystemService"
FAR = "7.5.1"
NEW = {
    "metadata": {"parent_id": PROJECT, "name": "data"},
    "spec": {"type": "NETWORK_SSD", "size_gibibytes": 10},
}

Runs = Callable[[str], None]


@pytest.fixture
def server_runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Give the server another version."""
    return lambda version: monkeypatch.setattr("neocloud.server.pipeline.__version__", version)


async def created(cloud: Cloud, version: str = __version__) -> None:
    """Create a filesystem with a client of this version."""

    def create() -> None:
        channel = open_channel(cloud.server.addresses.grpc)
        with Client(channel, cloud.server.addresses.grpc, StaticToken(ADMIN), version=version) as client:
            client.call(f"{FILESYSTEMS}/Create", NEW)

    await asyncio.to_thread(create)


async def names(cloud: Cloud) -> list[str]:
    answer = await cloud.call(f"{FILESYSTEMS}/List", {"parentId": PROJECT})
    return [item["metadata"]["name"] for item in answer.json().get("items", ())]


async def test_an_older_client_is_refused_with_the_version_to_take(cloud: Cloud, server_runs: Runs) -> None:
    server_runs(FAR)
    with pytest.raises(ReleasesApart, match=r"pip install 'neocloud==7\.5\.\*'") as caught:
        await created(cloud)
    assert (caught.value.code, "runs release 7.5" in caught.value.message) == ("FAILED_PRECONDITION", True)
    assert await names(cloud) == [], "nothing was done"


async def test_a_newer_client_is_refused_and_names_the_upgrade(cloud: Cloud) -> None:
    with pytest.raises(ReleasesApart, match=r"run `neo up` of release 7\.5"):
        await created(cloud, FAR)
    assert await names(cloud) == []


async def test_one_release_apart_works(cloud: Cloud, server_runs: Runs) -> None:
    own = Release.of(__version__)
    assert own is not None
    server_runs(f"{own.major}.{own.minor + 1}.0")
    await created(cloud)
    assert await names(cloud) == ["data"]


async def test_a_client_of_the_next_major_is_refused_before_anything_is_done(
    cloud: Cloud, server_runs: Runs
) -> None:
    server_runs("0.8.3")
    change = f"{FILESYSTEMS}/Create", NEW
    first = {HEADER: "1.0.0", OLDEST_HEADER: "0.9"}
    refused = await cloud.call(*change, **first)
    assert (refused.status_code, refused.json()["code"]) == (400, "failed_precondition")
    assert (await cloud.call(*change, **{HEADER: "1.0.0"})).status_code == 400
    assert await names(cloud) == [], "nothing was done"
    server_runs("0.9.3")
    assert (await cloud.call(*change, **first)).status_code == 200
    assert await names(cloud) == ["data"]


async def test_clients_that_name_no_release_are_never_refused(cloud: Cloud, server_runs: Runs) -> None:
    server_runs(FAR)
    await created(cloud, version="")
    assert await names(cloud) == ["data"], "by JSON"
    request = ListFilesystemsRequest(parent_id=PROJECT)
    found = await FilesystemServiceClient(cloud.sdk(ADMIN)).list(request)
    assert [item.metadata.name for item in found.items] == ["data"], "by the published SDK"


async def test_what_is_no_version_counts_as_none(cloud: Cloud, server_runs: Runs) -> None:
    server_runs(FAR)
    sendable = [each for each in HOSTILE if each.isascii() and each.isprintable() and len(each) < 8000]
    sendable.remove(" 7.5")  # HTTP drops the space
    assert len(sendable) > 10
    for each in sendable:
        answer = await cloud.call(f"{FILESYSTEMS}/List", {"parentId": PROJECT}, **{HEADER: each})
        assert answer.status_code == 200, each
    rpc = contract.method(f"{FILESYSTEMS}/List")
    async with grpc.aio.insecure_channel(cloud.server.addresses.grpc) as channel:
        method = channel.unary_unary(f"/{rpc.path}")
        for each in ("7" * 4000, "7.5;rm"):
            await method(
                rpc.input(parent_id=PROJECT).SerializeToString(),
                metadata=(("authorization", f"Bearer {ADMIN}"), (HEADER, each)),
                timeout=60,
            )


async def test_the_server_names_its_version_to_those_who_do(cloud: Cloud, server_runs: Runs) -> None:
    body = {"parentId": PROJECT}
    assert HEADER not in (await cloud.call(f"{FILESYSTEMS}/List", body)).headers
    answer = await cloud.call(f"{FILESYSTEMS}/List", body, **{HEADER: __version__})
    assert (answer.status_code, answer.headers[HEADER]) == (200, __version__)
    server_runs(FAR)
    refused = await cloud.call(f"{FILESYSTEMS}/List", body, **{HEADER: __version__})
    assert (refused.status_code, refused.json()["code"]) == (400, "failed_precondition")
    assert refused.headers[HEADER] == FAR and "neocloud==7.5.*" in refused.json()["message"]


async def test_an_outsider_is_refused_before_the_token_is_looked_at(cloud: Cloud, server_runs: Runs) -> None:
    server_runs(FAR)
    path = "nebius.iam.v1.TokenExchangeService/Exchange"
    address = cloud.server.addresses.grpc

    def exchange() -> Any:
        with open_channel(address) as channel:
            return invoke(channel, address, path, contract.method(path).input())

    with pytest.raises(ReleasesApart):
        await asyncio.to_thread(exchange)


async def test_the_command_line_says_it_in_one_line(
    cloud: Cloud,
    server_runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("NEOCLOUD_HOME", "NEOCLOUD_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    soon = datetime.now(UTC) + timedelta(hours=1)
    write_session(tmp_path / "session.json", Session("s", "a", TENANT, "r", ADMIN, soon.isoformat()))
    session = {"tenant_id": TENANT, "session_file": str(tmp_path / "session.json")}
    profile = Profile("test", cloud.server.addresses.grpc, "", project_id=PROJECT, **session)
    write_profiles(Profiles().with_profile(profile), config_file())
    listing = ("compute", "filesystem", "list")

    assert await asyncio.to_thread(run, listing) == 0
    server_runs(FAR)
    capfd.readouterr()
    assert await asyncio.to_thread(run, listing) == 1
    captured = capfd.readouterr()
    assert captured.out == "" and "\n" not in captured.err.strip()
    assert captured.err.startswith("neo: This `neo` is release ") and captured.err.endswith(
        "Install that of the cloud: pip install 'neocloud==7.5.*'.\n"
    )
