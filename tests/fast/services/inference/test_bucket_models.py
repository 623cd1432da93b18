"""Models in buckets: copied with the rights of the account that added them, and no others."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fast.services.inference.cloud import FakeCloud, fake_cloud, write_adapter, write_model
from tests.fast.services.storage.cloud import AccessKey
from tests.fast.services.storage.served import ServedCloud

pytestmark = pytest.mark.slow


@dataclass
class Cloud(ServedCloud, FakeCloud):
    owner: AccessKey = field(init=False)
    bucket_id: str = field(init=False)

    async def upload(self, folder: Path, prefix: str) -> None:
        for path in folder.iterdir():
            await self.put(self.owner, "models", prefix + path.name, path.read_bytes())

    async def add(self, name: str, prefix: str, token: str = "", **spec: Any) -> str:
        source = {"object": {"bucket": "models", "prefix": prefix}}
        mine, self.token = self.token, token or self.token
        try:
            return await self.create("Model", name, {"source": source, **spec})
        finally:
            self.token = mine


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    """Its object gateway does not run."""
    async with fake_cloud(tmp_path) as plain:
        found = Cloud(**vars(plain))
        async with found.serving():
            found.bucket_id = await found.bucket("models")
            found.owner = await found.access_key(await found.account("owner", "editors"))
            await found.upload(write_model(tmp_path / "model"), "base/")
            await found.upload(write_adapter(tmp_path / "adapter"), "bank/v1/")
            await found.put(found.owner, "models", "bank/v1/checkpoint-10/state.bin", b"left out")
        yield found


async def test_a_model_and_its_adapter_come_from_a_bucket(cloud: Cloud) -> None:
    async with cloud.serving():
        base_id = await cloud.add("base", "base")
        await cloud.until(base_id, "READY")
        adapter_id = await cloud.add("bank", "bank/v1/", base_model_id=base_id)
        adapter = await cloud.until(adapter_id, "READY")
        assert adapter.status.lora_rank == 4
        copy = cloud.home / "models" / adapter_id
        assert {path.name for path in copy.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
        await cloud.call("ModelService/Delete", id=adapter_id)
        await cloud.gone(adapter_id)
        assert not copy.exists()


async def test_who_may_not_read_the_bucket_adds_no_model_from_it(cloud: Cloud) -> None:
    account, group = await cloud.account("server"), await cloud.group("servers")
    await cloud.join(account, group)
    await cloud.permit(group, cloud.project_id, "inference.editor")
    with pytest.raises(grpc.aio.AioRpcError, match=r"storage\.objects\.get"):
        await cloud.add("stolen", "base", await cloud.token_of(account))


async def test_a_right_that_was_taken_away_is_not_used(cloud: Cloud) -> None:
    account, group = await cloud.account("server"), await cloud.group("servers")
    membership = await cloud.join(account, group)
    for role, target in (("inference.editor", cloud.project_id), ("storage.viewer", cloud.bucket_id)):
        await cloud.permit(group, target, role)
    model_id = await cloud.add("late", "base", await cloud.token_of(account))
    await cloud.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    async with cloud.serving():
        model = await cloud.until(model_id, "ERROR")
    assert "storage.objects.get" in model.status.message
    assert not list((cloud.home / "models").glob(f"*{model_id}*"))


@pytest.mark.parametrize(
    "name", ["../../stolen", "..", ".hidden", "a\nb", "x" * 201, "-rf", "sub/../../stolen"]
)
async def test_names_of_objects_lead_nowhere_else(cloud: Cloud, name: str) -> None:
    before = {path for path in cloud.home.rglob("*") if path.parent.name != "objects"}
    async with cloud.serving():
        await cloud.put(cloud.owner, "models", f"base/{name}", b"hostile")
        model_id = await cloud.add("base", "base")
        await cloud.until(model_id, "READY")
    copy = cloud.home / "models" / model_id
    assert (copy / "config.json").is_file()
    assert not [path for path in copy.rglob("*") if path.is_file() and path.read_bytes() == b"hostile"]
    elsewhere = {path.name for path in cloud.home.rglob("*")} - {path.name for path in before}
    assert not {"stolen", ".hidden", "-rf"} & elsewhere


async def test_a_folder_without_objects_is_told(cloud: Cloud) -> None:
    async with cloud.serving():
        model = await cloud.until(await cloud.add("none", "absent"), "ERROR")
    assert "s3://models/absent/" in model.status.message
