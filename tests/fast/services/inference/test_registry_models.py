"""Models in registries: pulled with the rights of their owner, pinned by digest, and no others."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from neocloud.object_gateway.oci import documents
from neocloud.services.inference.reconcile import model as reconciler
from neocloud.services.inference.reconcile import weight_copies
from neocloud.services.registry import image_pulls
from neocloud.services.registry.public import CannotPull, PullProblem
from tests.fast.object_gateway.oci.client import (
    EMPTY,
    INDEX,
    MANIFEST,
    descriptor,
    digest_of,
    index,
    manifest,
)
from tests.fast.object_gateway.oci.oras import Oras
from tests.fast.services.inference.cloud import FakeCloud, fake_cloud, write_adapter, write_model
from tests.fast.services.storage.served import ServedCloud

pytestmark = pytest.mark.slow

TITLE, PACKED = "org.opencontainers.image.title", "io.deis.oras.content.unpack"
FILE = "application/octet-stream"
Files = Mapping[str, bytes]


def artifact(files: Files, **annotations: str) -> bytes:
    """Return the manifest of an artifact as ORAS pushes it."""
    layers = [
        descriptor(body, FILE, annotations={TITLE: name, **annotations}) for name, body in files.items()
    ]
    return manifest(b"{}", config_type=EMPTY, artifactType="test/model", layers=layers)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@dataclass
class Cloud(ServedCloud, FakeCloud):
    registry_id: str = field(init=False)
    fqdn: str = field(init=False)

    async def push(self, reference: str, content: bytes, *blobs: bytes, kind: str = MANIFEST) -> str:
        """Push a manifest with what it names to the repository `bank`; return its digest."""
        name = f"{self.fqdn.partition('/')[2]}/bank"
        async with httpx.AsyncClient(base_url=self.s3_url, trust_env=False, timeout=20) as http:
            params = {"scope": f"repository:{name}:*"}
            token = (await http.get("/v2/token", params=params, auth=("iam", self.token))).json()["token"]
            headers = {"Authorization": f"Bearer {token}"}
            for blob in blobs:
                at = {"digest": digest_of(blob)}
                done = await http.post(f"/v2/{name}/blobs/uploads/", params=at, content=blob, headers=headers)
                assert done.status_code == 201, done.text
            typed = {**headers, "Content-Type": kind}
            done = await http.put(f"/v2/{name}/manifests/{reference}", content=content, headers=typed)
            assert done.status_code == 201, done.text
        return digest_of(content)

    async def push_files(self, reference: str, files: Files, **annotations: str) -> str:
        return await self.push(reference, artifact(files, **annotations), b"{}", *files.values())

    async def add(self, name: str, reference: str, token: str = "", **spec: Any) -> str:
        source = {"artifact": {"name": f"{self.fqdn}/bank{reference}"}}
        mine, self.token = self.token, token or self.token
        try:
            return await self.create("Model", name, {"source": source, **spec})
        finally:
            self.token = mine


@pytest.fixture
async def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cloud]:
    """Its object gateway runs, and has a registry."""
    monkeypatch.setattr(image_pulls, "DAMAGED_WAITS_SECONDS", (0.01,))
    monkeypatch.setattr(reconciler, "BAD_FOLDER_RESYNC_SECONDS", 0.1)
    async with fake_cloud(tmp_path) as plain:
        found = Cloud(**vars(plain))
        async with found.serving():
            metadata = {"parent_id": found.project_id, "name": "models"}
            made = await found.call("nebius.registry.v1.RegistryService/Create", metadata=metadata, spec={})
            ready = await found.until(made.resource_id, "ACTIVE")
            found.registry_id, found.fqdn = made.resource_id, ready.status.registry_fqdn
            yield found


@pytest.fixture
def base(tmp_path: Path) -> Files:
    return contents(write_model(tmp_path / "model"))


def copies(cloud: Cloud, model_id: str) -> list[Path]:
    return list((cloud.home / "models").glob(f"*{model_id}*"))


async def test_a_model_and_its_adapter_come_from_a_registry(
    cloud: Cloud, base: Files, tmp_path: Path
) -> None:
    digest = await cloud.push_files("v1", base)
    base_id = await cloud.add("base", ":v1")
    model = await cloud.until(base_id, "READY")
    assert model.status.artifact_digest == digest
    assert contents(cloud.home / "models" / base_id) == base
    adapter = contents(write_adapter(tmp_path / "adapter"))
    pinned = await cloud.push_files("bank", {f"adapter/{name}": body for name, body in adapter.items()})
    adapter_id = await cloud.add("bank", f"@{pinned}", base_model_id=base_id)
    assert (await cloud.until(adapter_id, "READY")).status.lora_rank == 4
    await cloud.call("ModelService/Delete", id=adapter_id)
    await cloud.gone(adapter_id)
    assert not copies(cloud, adapter_id)


@pytest.mark.parametrize(
    "name",
    [
        "../../stolen",
        "..",
        "/etc/stolen",
        ".hidden",
        "a\nb",
        "x" * 201,
        "-rf",
        "sub/../../stolen",
        "sub/x",
        "\0",
    ],
)
async def test_titles_lead_nowhere_else(cloud: Cloud, base: Files, name: str) -> None:
    before = set(cloud.home.rglob("*"))
    await cloud.push_files("v1", {**base, name: b"hostile"})
    model_id = await cloud.add("base", ":v1")
    await cloud.until(model_id, "READY")
    assert contents(cloud.home / "models" / model_id) == base
    elsewhere = {path.name for path in set(cloud.home.rglob("*")) - before}
    assert not {"stolen", ".hidden", "-rf", "sub", "x"} & elsewhere


async def refused(cloud: Cloud, reference: str) -> str:
    """Return why a model is in error; nothing of it is on the disk."""
    model_id = await cloud.add(f"bad-{reference.strip(':')}", reference)
    model = await cloud.until(model_id, "ERROR")
    assert not copies(cloud, model_id)
    assert not model.status.artifact_digest
    return model.status.message


async def test_what_has_no_files_is_refused(cloud: Cloud, base: Files) -> None:
    image = manifest(b"{}", b"a layer")
    await cloud.push("image", image, b"{}", b"a layer")
    assert "has the name of a file" in await refused(cloud, ":image")
    await cloud.push("index", index(image), kind=INDEX)
    assert "index" in await refused(cloud, ":index")
    await cloud.push_files("folder", {"model": b"packed"}, **{PACKED: "true"})
    assert "packed" in await refused(cloud, ":folder")
    await cloud.push_files("paths", {"../../stolen": b"hostile", "other/file": b"another"})
    assert "has the name of a file" in await refused(cloud, ":paths")
    twice = [descriptor(each, FILE, annotations={TITLE: "config.json"}) for each in (b"1", b"2")]
    await cloud.push("twice", manifest(b"{}", layers=twice), b"{}", b"1", b"2")
    assert "same name" in await refused(cloud, ":twice")
    away = [descriptor(b"1", FILE, annotations={TITLE: "config.json"}, urls=["http://127.0.0.1:1/secret"])]
    await cloud.push("away", manifest(b"{}", layers=away), b"{}", b"1")
    assert "other addresses" in await refused(cloud, ":away")


async def test_an_artifact_that_is_too_large_is_not_begun(
    cloud: Cloud, base: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=weight_copies.FREE_BYTES + 1)
    monkeypatch.setattr(weight_copies.shutil, "disk_usage", lambda _: usage)
    await cloud.push_files("v1", base)
    model = await cloud.until(model_id := await cloud.add("base", ":v1"), "ERROR")
    assert "at most 1 are copied" in model.status.message and not copies(cloud, model_id)


async def test_a_copy_waits_for_room_on_the_disk(
    cloud: Cloud, base: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(weight_copies.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    await cloud.push_files("v1", base)
    model_id = await cloud.add("base", ":v1")
    await cloud.when(model_id, lambda model: "has 1,000 bytes free" in model.status.message)
    assert not copies(cloud, model_id)
    monkeypatch.setattr(weight_copies.shutil, "disk_usage", lambda _: usage._replace(free=1 << 50))
    await cloud.until(model_id, "READY")


async def test_a_tag_that_is_pushed_later_repairs_a_model_and_then_stays(cloud: Cloud, base: Files) -> None:
    model_id = await cloud.add("base", ":v1")
    assert "push it" in (await cloud.until(model_id, "ERROR")).status.message
    first = await cloud.push_files("v1", base)
    await cloud.until(model_id, "READY")
    await cloud.push_files("v1", {**base, "README.md": b"another"})
    assert (await cloud.until(model_id, "READY")).status.artifact_digest == first


async def test_a_copy_that_is_interrupted_goes_on_with_the_same_artifact(
    cloud: Cloud, base: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, is_away = image_pulls.StoreImagePulls.fetch, asyncio.Event()

    async def fails_once(*arguments: Any) -> None:
        if not is_away.is_set():
            is_away.set()
            raise CannotPull(PullProblem.UNANSWERED, "The registry does not answer (a test).")
        await fetch(*arguments)

    monkeypatch.setattr(image_pulls.StoreImagePulls, "fetch", fails_once)
    first = await cloud.push_files("v1", base)
    model_id = await cloud.add("base", ":v1")
    async with asyncio.timeout(30):
        await is_away.wait()
    await cloud.push_files("v1", {**base, "README.md": b"another"})
    assert (await cloud.until(model_id, "READY")).status.artifact_digest == first
    assert contents(cloud.home / "models" / model_id) == base


async def test_a_size_that_is_not_the_blobs_is_not_believed(
    cloud: Cloud, base: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest says less than there is: no more than that is written, and the model is refused. The
    registry takes no such manifest any more; one of an older release may be there."""
    monkeypatch.setattr(documents, "_sizes", lambda _: {})
    document = json.loads(artifact(base))
    for layer in document["layers"]:
        layer["size"] = 1
    await cloud.push("short", json.dumps(document).encode(), b"{}", *base.values())
    model_id = await cloud.add("base", ":short")
    assert "other bytes than its digest says" in (await cloud.until(model_id, "ERROR")).status.message
    assert not copies(cloud, model_id)


async def test_who_may_not_pull_adds_no_model_from_it(cloud: Cloud, base: Files) -> None:
    await cloud.push_files("v1", base)
    account, group = await cloud.account("server"), await cloud.group("servers")
    await cloud.join(account, group)
    await cloud.permit(group, cloud.project_id, "inference.editor")
    with pytest.raises(grpc.aio.AioRpcError, match=r"registry\.images\.pull"):
        await cloud.add("stolen", ":v1", await cloud.token_of(account))


async def test_a_right_that_was_taken_away_is_not_used(cloud: Cloud, base: Files) -> None:
    account, group = await cloud.account("server"), await cloud.group("servers")
    membership = await cloud.join(account, group)
    for role, target in (
        ("inference.editor", cloud.project_id),
        ("container-registry.images.puller", cloud.registry_id),
    ):
        await cloud.permit(group, target, role)
    model_id = await cloud.add("late", ":v1", await cloud.token_of(account))  # not pushed yet
    await cloud.until(model_id, "ERROR")
    await cloud.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    await cloud.push_files("v1", base)
    model = await cloud.when(model_id, lambda found: "may not be pulled" in found.status.message, "ERROR")
    assert "registry.images.pull" in model.status.message and not copies(cloud, model_id)


@pytest.mark.parametrize(
    "name", ["docker.io/library/nginx:1", "127.0.0.1:1/x/y:v1", "FQDN/UPPER:v1", "FQDN/../x:v1"]
)
async def test_names_of_other_registries_and_no_names_are_refused(cloud: Cloud, name: str) -> None:
    source = {"artifact": {"name": name.replace("FQDN", cloud.fqdn)}}
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await cloud.create("Model", "other", {"source": source})
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_oras_pushed_is_a_model(cloud: Cloud, base: Files, tmp_path: Path) -> None:
    oras, name = Oras(tmp_path), f"{cloud.fqdn}/bank:v1"
    host = cloud.fqdn.partition("/")[0]
    login = ("login", "--username=iam", "--password-stdin", host)
    await asyncio.to_thread(oras, *login, given=cloud.token)
    await asyncio.to_thread(oras, "push", name, *(f"model/{each}" for each in base))
    model_id = await cloud.add("base", ":v1")
    await cloud.until(model_id, "READY")
    assert contents(cloud.home / "models" / model_id) == base
