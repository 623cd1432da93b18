"""`neo model push` and `neo image push` as people run them, and other programs that pull what they pushed."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.testing.emulator import Emulator
from tests.fast.container_images import BUSYBOX, add, busybox_layer
from tests.fast.object_gateway.oci.oras import Oras
from tests.fast.services.inference.cloud import write_adapter, write_model
from tests.real.emulator.test_registry import PLAIN, Clients
from tests.real.emulator.test_storage_commands import neo

TITLE = "org.opencontainers.image.title"


@pytest.fixture
def registry(neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]) -> str:
    """The name of a new registry."""
    name = new_name()
    made = neo(tmp_path, "registry", "registry", "create", name, cloud=neocloud_emulator)
    assert made.returncode == 0, made.stderr
    return name


def document(ran: "subprocess.CompletedProcess[str]") -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def fetched(cloud: Emulator, home: Path, name: str, kind: str, reference: str) -> httpx.Response:
    """Return a manifest or blob as any client of the registry gets it."""
    host, _, path = name.rpartition(":")[0].partition("/")
    token = cloud.client.tokens.token()
    with httpx.Client(base_url=f"http://{host}", trust_env=False) as http:
        params = {"scope": f"repository:{path}:pull"}
        bearer = http.get("/v2/token", params=params, auth=("iam", token)).json()["token"]
        return http.get(f"/v2/{path}/{kind}/{reference}", headers={"Authorization": f"Bearer {bearer}"})


def test_a_folder_becomes_an_artifact_with_a_layer_for_each_file(
    neocloud_emulator: Emulator, tmp_path: Path, registry: str
) -> None:
    cloud, folder = neocloud_emulator, write_model(tmp_path / "model")
    (folder / ".hidden").write_text("left out")
    (folder / "checkpoint-1").mkdir()
    (folder / "README.md").write_text("made by hand")
    push = ("model", "push", str(folder), f"{registry}/bank:v1", "-o", "json")
    ran = neo(tmp_path, *push, cloud=cloud)
    pushed = document(ran)
    assert ".hidden, checkpoint-1" in ran.stderr
    manifest = fetched(cloud, tmp_path, pushed["name"], "manifests", "v1")
    assert manifest.headers["Docker-Content-Digest"] == pushed["digest"]
    layers = {each["annotations"][TITLE]: each for each in manifest.json()["layers"]}
    assert set(layers) == {path.name for path in folder.iterdir() if path.is_file()} - {".hidden"}
    for name, layer in layers.items():
        found = fetched(cloud, tmp_path, pushed["name"], "blobs", layer["digest"]).content
        assert found == (folder / name).read_bytes()
    types = {name: layers[name]["mediaType"] for name in ("model.safetensors", "config.json", "README.md")}
    assert [kind.rpartition("model.")[2] for kind in types.values()] == [
        "weight.v1.raw",
        "weight.config.v1.raw",
        "doc.v1.raw",
    ]
    assert document(neo(tmp_path, *push, cloud=cloud))["digest"] == pushed["digest"], "it is the same again"


def test_what_lies_in_a_bucket_is_pushed_and_added(
    neocloud_emulator: Emulator, tmp_path: Path, registry: str, new_name: Callable[[], str]
) -> None:
    cloud, bucket, name = neocloud_emulator, new_name(), new_name()
    folder = write_model(tmp_path / "model")
    assert neo(tmp_path, "storage", "bucket", "create", bucket, cloud=cloud).returncode == 0
    sent = neo(tmp_path, "storage", "cp", "-r", str(folder), f"s3://{bucket}/jobs/1/model", cloud=cloud)
    assert sent.returncode == 0, sent.stderr
    target = f"{registry}/deep/bank:v1"
    push = ("model", "push", f"s3://{bucket}/jobs/1/model", target, "-o", "json")
    here = ("model", "push", str(folder), target, "-o", "json")
    pushed = document(neo(tmp_path, *push, cloud=cloud))
    assert document(neo(tmp_path, *here, cloud=cloud))["digest"] == pushed["digest"]
    added = document(neo(tmp_path, "model", "add", name, target, "-o", "json", cloud=cloud))
    assert added["spec"]["source"] == {"artifact": {"name": pushed["name"]}}


UNUSABLE = (
    ("absent", "REGISTRY/bank:v1", "neither a model of the cloud nor a folder"),
    (".", "REGISTRY/bank:v1", "not the folder of a model"),
    (".", "absent/bank:v1", "no registry 'absent'"),
    (".", "REGISTRY/Bank:v1", "names nothing in a registry"),
    (".", "REGISTRY", "names nothing in a registry"),
    (".", "docker.io/library/bank:v1", "no registry"),
    (".", f"REGISTRY/bank@sha256:{'0' * 64}", "names a digest"),
)


def test_what_cannot_be_pushed_is_told(neocloud_emulator: Emulator, tmp_path: Path, registry: str) -> None:
    (tmp_path / "empty").mkdir()
    for model, target, says in UNUSABLE:
        folder = str(tmp_path / "empty") if model == "." else model
        push = ("model", "push", folder, target.replace("REGISTRY", registry))
        ran = neo(tmp_path, *push, cloud=neocloud_emulator)
        assert ran.returncode != 0 and says in ran.stderr and "Traceback" not in ran.stderr, ran.stderr


def test_the_token_goes_to_no_other_host(neocloud_emulator: Emulator, tmp_path: Path, registry: str) -> None:
    cloud, folder = neocloud_emulator, write_adapter(tmp_path / "adapter")
    found = document(neo(tmp_path, "registry", "registry", "get", registry, "-o", "json", cloud=cloud))
    host, _, short = found["status"]["registry_fqdn"].partition("/")
    other = neo(tmp_path, "model", "push", str(folder), f"127.0.0.1:9/{short}/bank:v1", cloud=cloud)
    assert other.returncode != 0 and f"which is {host}" in other.stderr


def test_oras_pulls_what_neo_pushed(neocloud_emulator: Emulator, tmp_path: Path, registry: str) -> None:
    cloud, folder, oras = neocloud_emulator, write_model(tmp_path / "model"), Oras(tmp_path)
    push = ("model", "push", str(folder), f"{registry}/bank:v1", "-o", "json")
    pushed = document(neo(tmp_path, *push, cloud=cloud))
    host, token = pushed["name"].partition("/")[0], cloud.client.tokens.token()
    oras("login", "--username=iam", "--password-stdin", host, given=token)
    oras("pull", "--output", "back", pushed["name"])
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def write_archive(folder: Path, layer: bytes, described: bytes) -> None:
    """Write an image as its script builds it, with the digest of what is described as the layer's."""
    folder.mkdir(parents=True, exist_ok=True)
    diff_ids = [f"sha256:{hashlib.sha256(described).hexdigest()}"]
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = [{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]
    with tarfile.open(folder / "image.tar", "w") as archive:
        add(archive, "manifest.json", json.dumps(manifest).encode())
        add(archive, "config.json", json.dumps(config).encode())
        add(archive, "layer.tar", layer)
    (folder / "image.json").write_text(json.dumps({"version": "v1", "archive": "image.tar"}))


def write_root(folder: Path) -> None:
    """Write an image that is a root file system, as its script builds it."""
    root = folder / "v1" / "rootfs"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_bytes(BUSYBOX.read_bytes())
    (root / "bin" / "tool").chmod(0o4755)
    (root / "bin" / "same").hardlink_to(root / "bin" / "tool")
    (root / "bin" / "link").symlink_to("/bin/tool")
    os.chown(root / "bin", 7, 8)
    (folder / "image.json").write_text(json.dumps({"version": "v1", "rootfs": "v1/rootfs"}))


def test_images_of_the_cloud_are_pulled_by_podman(
    neocloud_emulator: Emulator, tmp_path: Path, registry: str
) -> None:
    cloud, images, layer = neocloud_emulator, neocloud_emulator.home / "images", busybox_layer()
    write_archive(images / "slurm", layer, layer)
    write_root(images / "jail")
    pushed: dict[str, Any] = {}
    for name in ("slurm", "jail"):
        push = ("image", "push", name, f"{registry}/own/{name}:v1", "-o", "json")
        first, again = (neo(tmp_path, *push, cloud=cloud) for _ in range(2))
        pushed[name] = document(first)
        assert "sending" in first.stderr
        assert document(again) == pushed[name] and "sending" not in again.stderr
    refused = neo(tmp_path, "image", "push", "machine", f"{registry}/own/machine:v1", cloud=cloud)
    assert refused.returncode != 0 and "not a container image" in refused.stderr
    with tempfile.TemporaryDirectory(prefix="images-", ignore_cleanup_errors=True) as store:
        (tmp_path / "auth.json").write_text("{}")
        clients = Clients(tmp_path, Path(store), pushed["jail"]["name"].rpartition("/own/")[0])
        clients.login("iam", cloud.client.tokens.token())
        for each in pushed.values():
            clients.podman("pull", PLAIN, each["name"])
            source, copy = f"docker://{each['name']}", f"dir:{tmp_path}/copy"
            clients.skopeo("copy", "--src-tls-verify=false", source, copy)
            assert each["digest"].partition(":")[2] == sha256(tmp_path / "copy" / "manifest.json")
        mounted = Path(clients.podman("image", "mount", pushed["jail"]["name"]).strip())
        tool, same = (mounted / "bin" / name for name in ("tool", "same"))
        assert tool.read_bytes() == BUSYBOX.read_bytes() and tool.stat().st_mode & 0o7777 == 0o4755
        assert tool.stat().st_ino == same.stat().st_ino
        assert os.readlink(mounted / "bin" / "link") == "/bin/tool"
        assert (mounted / "bin").stat().st_uid == 7 and (mounted / "bin").stat().st_gid == 8
        clients.podman("image", "unmount", pushed["jail"]["name"])
    write_archive(images / "slurm", layer + b"damaged", layer)
    damaged = neo(tmp_path, "image", "push", "slurm", f"{registry}/own/slurm:v2", cloud=cloud)
    assert damaged.returncode != 0 and "neo image build slurm --force" in damaged.stderr
    shutil.rmtree(images)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
