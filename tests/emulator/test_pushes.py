"""`neo model push` as people run it, and other programs that read and write the same artifacts."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.testing.emulator import Emulator
from tests.emulator.test_storage_commands import neo
from tests.objects.oci.oras import Oras
from tests.services.inference.cloud import write_adapter, write_model

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
