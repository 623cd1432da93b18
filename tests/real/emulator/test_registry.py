"""The container registry from end to end: registries by the official SDK, images by the programs of users."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.registry.v1 import (
    ArtifactServiceClient,
    CreateRegistryRequest,
    GetRegistryRequest,
    ListArtifactsRequest,
    RegistryServiceClient,
)
from nebius.sdk import SDK

from neocloud.testing.emulator import Emulator
from tests import ROOT
from tests.clients import CLIENTS
from tests.fast.container_images import busybox_layer, write_layout
from tests.fast.object_gateway.work.scan.layers import debian, package
from tests.fast.object_gateway.work.scan.test_advisories import TRACKER
from tests.neo_server import program
from tests.real.emulator.test_object_storage import make_key, until

PLAIN = "--tls-verify=false"


@dataclass
class Clients:
    """skopeo and podman with files of their own."""

    folder: Path
    images: Path
    """Images of podman, whose paths have to be short."""
    address: str
    """How the names of images begin: "127.0.0.1:8902/e00abc"."""

    @property
    def host(self) -> str:
        return self.address.partition("/")[0]

    def run(self, *command: str, given: str = "", fails: bool = False) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            "REGISTRY_AUTH_FILE": str(self.folder / "auth.json"),
        }
        done = subprocess.run(
            command, env=environment, input=given, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode != 0) is fails, f"{command}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def skopeo(self, *arguments: str, fails: bool = False) -> str:
        return self.run("skopeo", "--insecure-policy", *arguments, fails=fails)

    def podman(self, *arguments: str, fails: bool = False) -> str:
        places = ["--root", str(self.images), "--runroot", str(self.images / "run")]
        return self.run("podman", *places, "--storage-driver=vfs", *arguments, fails=fails)

    def buildah(self, *arguments: str) -> str:
        places = ["--root", str(self.images / "built"), "--runroot", str(self.images / "run")]
        return self.run("buildah", *places, "--storage-driver=vfs", *arguments).strip()

    def login(self, user: str, password: str, *, fails: bool = False) -> str:
        options = (PLAIN, "--username", user, "--password-stdin", self.host)
        return self.run("skopeo", "login", *options, given=password, fails=fails)


@pytest.fixture
def registry_id(sdk: SDK, neocloud_emulator: Emulator, new_name: Callable[[], str]) -> str:
    metadata = ResourceMetadata(parent_id=neocloud_emulator.project_id, name=new_name())
    made = RegistryServiceClient(sdk).create(CreateRegistryRequest(metadata=metadata)).wait()
    made.sync_wait()
    return made.resource_id


@pytest.fixture
def clients(sdk: SDK, registry_id: str, tmp_path: Path) -> Iterator[Clients]:
    found = RegistryServiceClient(sdk).get(GetRegistryRequest(id=registry_id)).wait()
    with tempfile.TemporaryDirectory(prefix="images-", ignore_cleanup_errors=True) as images:
        (tmp_path / "auth.json").write_text("{}")
        yield Clients(tmp_path, Path(images), found.status.registry_fqdn)


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """An image of two layers in a folder, one of them with 3 MiB that no compression makes smaller."""
    noise = "".join(hashlib.sha256(str(each).encode()).hexdigest() for each in range(50_000))
    layers = [busybox_layer(), busybox_layer({"opt/noise": noise})]
    return write_layout(tmp_path / "layout", layers, {"Env": ["PATH=/bin"]})


def hashes_in(folder: Path) -> set[str]:
    """Return the hashes of the layers and the config in a folder that skopeo wrote, computed again."""
    found = [each for each in folder.iterdir() if len(each.name) == 64]
    return {hashlib.sha256(each.read_bytes()).hexdigest() for each in found}


def blobs(folder: Path) -> set[str]:
    return {each.name for each in (folder / "blobs" / "sha256").iterdir()}


def test_skopeo_copies_an_image_there_and_back(
    sdk: SDK, neocloud_emulator: Emulator, registry_id: str, clients: Clients, layout: Path
) -> None:
    _, user, secret = make_key(sdk, neocloud_emulator, "editors")
    clients.login(user, secret)
    image = f"docker://{clients.address}/team/tool:v1"
    clients.skopeo("copy", "--dest-tls-verify=false", "--preserve-digests", f"oci:{layout}", image)
    back = clients.folder / "back"
    clients.skopeo("copy", "--src-tls-verify=false", image, f"dir:{back}")
    manifest = (back / "manifest.json").read_bytes()
    assert {hashlib.sha256(manifest).hexdigest(), *hashes_in(back)} == blobs(layout)

    found = json.loads(clients.skopeo("inspect", PLAIN, image))
    assert found["Digest"].removeprefix("sha256:") in blobs(layout) and found["RepoTags"] == ["v1"]
    again = image.replace(":v1", ":v2")
    clients.skopeo("copy", "--src-tls-verify=false", "--dest-tls-verify=false", image, again)
    tags = json.loads(clients.skopeo("list-tags", PLAIN, image.removesuffix(":v1")))
    assert tags["Tags"] == ["v1", "v2"]

    artifacts = ArtifactServiceClient(sdk).list(ListArtifactsRequest(parent_id=registry_id)).wait().items
    assert [(each.name, list(each.tags)) for each in artifacts] == [("team/tool", ["v1", "v2"])]
    clients.skopeo("delete", PLAIN, image)
    assert not ArtifactServiceClient(sdk).list(ListArtifactsRequest(parent_id=registry_id)).wait().items
    assert "manifest unknown" in clients.skopeo("inspect", PLAIN, again, fails=True).lower()


def test_skopeo_copies_as_docker_does_to_two_repositories(
    neocloud_emulator: Emulator, clients: Clients, layout: Path
) -> None:
    """The second one takes the layers that the registry has."""
    clients.login("iam", neocloud_emulator.client.tokens.token())
    for name in ("one", "two"):
        image = f"docker://{clients.address}/{name}:v1"
        clients.skopeo("copy", "--dest-tls-verify=false", "--format=v2s2", f"oci:{layout}", image)
        manifest = json.loads(clients.skopeo("inspect", PLAIN, "--raw", image))
        assert manifest["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
        folder = clients.folder / name
        clients.skopeo("copy", "--src-tls-verify=false", image, f"dir:{folder}")
        assert {each["digest"].removeprefix("sha256:") for each in manifest["layers"]} <= hashes_in(folder)


def test_podman_pushes_pulls_and_is_refused(
    sdk: SDK, neocloud_emulator: Emulator, clients: Clients, layout: Path
) -> None:
    name = f"{clients.address}/podman:latest"
    clients.podman("pull", f"oci:{layout}")
    image = clients.podman("images", "--quiet", "--no-trunc").strip()
    assert "unauthorized" in clients.podman("push", PLAIN, image, name, fails=True).lower()

    clients.login("iam", neocloud_emulator.client.tokens.token())
    clients.podman("push", PLAIN, image, name)
    clients.podman("rmi", "--force", image)
    clients.podman("pull", PLAIN, name)
    assert clients.podman("images", "--quiet", "--no-trunc", name).strip() == image

    _, user, secret = make_key(sdk, neocloud_emulator, "viewers")
    clients.login(user, secret)
    clients.podman("pull", PLAIN, name)
    refused = clients.podman("push", PLAIN, name, fails=True).lower()
    assert "denied" in refused


def test_wrong_passwords_do_not_log_in(clients: Clients) -> None:
    for user, password in (("iam", "no token"), ("NCAKNOBODY", "no secret")):
        assert "invalid username/password" in clients.login(user, password, fails=True)


def neo(cloud: Emulator, *arguments: str) -> str:
    environment = {**os.environ, **cloud.environment}
    command = [program(), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_images_are_counted_listed_and_deleted_by_neo(
    sdk: SDK, neocloud_emulator: Emulator, registry_id: str, clients: Clients, layout: Path
) -> None:
    """CR-01, CR-02, CR-03."""
    clients.login("iam", neocloud_emulator.client.tokens.token())
    clients.skopeo("copy", "--dest-tls-verify=false", f"oci:{layout}", f"docker://{clients.address}/app:v1")
    registries = RegistryServiceClient(sdk)
    until(lambda: registries.get(GetRegistryRequest(id=registry_id)).wait().status.images_count == 1)
    listed = neo(neocloud_emulator, "registry", "artifact", "list", "--parent-id", registry_id)
    (artifact,) = json.loads(
        neo(neocloud_emulator, "registry", "artifact", "list", "--parent-id", registry_id, "-o", "json")
    )
    assert artifact["id"] in listed and artifact["tags"] == ["v1"]
    assert listed.split("\n")[0].split() == ["NAME", "TAGS", "BYTES", "DIGEST", "ID"]
    assert f" {int(artifact['size']) / 2**20:.1f} MiB " in listed
    neo(neocloud_emulator, "registry", "artifact", "delete", artifact["id"], "--yes")
    until(
        lambda: (
            artifact["id"]
            not in neo(neocloud_emulator, "registry", "artifact", "list", "--parent-id", registry_id)
        )
    )


def test_a_registry_goes_with_its_images_only_by_force(
    neocloud_emulator: Emulator, registry_id: str, clients: Clients, layout: Path
) -> None:
    clients.login("iam", neocloud_emulator.client.tokens.token())
    clients.skopeo("copy", "--dest-tls-verify=false", f"oci:{layout}", f"docker://{clients.address}/app:v1")
    registry = ("registry", "registry")
    until(lambda: "images_count: 1" in neo(neocloud_emulator, *registry, "get", registry_id, "-o", "yaml"))
    with pytest.raises(AssertionError, match="holds 1 image. Delete them first"):
        neo(neocloud_emulator, *registry, "delete", registry_id, "--yes")
    assert "is deleted" in neo(neocloud_emulator, *registry, "delete", registry_id, "--force", "--yes")
    assert registry_id not in neo(neocloud_emulator, *registry, "list", "-o", "json")


def test_buildah_pushes_an_index_and_the_cloud_reports_on_its_image(
    neocloud_emulator: Emulator, registry_id: str, clients: Clients
) -> None:
    """The layers, the operator's file and the report go through the processes that run for operators."""
    advisories = neocloud_emulator.home / "advisories"
    advisories.mkdir(exist_ok=True)
    (advisories / "debian.new").write_text(json.dumps(TRACKER))
    (advisories / "debian.new").rename(advisories / "debian.json")
    root = clients.folder / "root"
    for path, content in debian(package("libcurl4", "1.0-1+b2", "curl (1.0-1)")).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    clients.login("iam", neocloud_emulator.client.tokens.token())
    container = clients.buildah("from", "scratch")
    clients.buildah("copy", container, str(root), "/")
    clients.buildah("commit", "--quiet", "--format=oci", container, "tool")
    clients.buildah("manifest", "create", "all")
    clients.buildah("manifest", "add", "all", "tool")
    target = f"docker://{clients.address}/built:v1"
    clients.buildah("manifest", "push", "--all", PLAIN, "all", target)
    index = json.loads(clients.skopeo("inspect", PLAIN, "--raw", target))
    (part,) = index["manifests"]

    listed = ("registry", "artifact", "list", "--parent-id", registry_id, "-o", "json")
    images = {each["digest"]: each["id"] for each in json.loads(neo(neocloud_emulator, *listed))}
    assert len(images) == 2

    def report() -> dict[str, Any]:
        asked = ("registry", "vulnerability-report", "get", images[part["digest"]], "-o", "json")
        return json.loads(neo(neocloud_emulator, *asked))

    until(lambda: report()["state"] == "COMPLETE")
    found = report()
    assert found["release"] == "bookworm"
    assert [each["id"] for each in found["vulnerabilities"]] == [
        "CVE-2026-0001",
        "CVE-2026-0002",
        "CVE-2026-0004",
    ]


ORAS = """
import sys
from oras.client import OrasClient
from oras.oci import Subject

target, user, password, folder = sys.argv[1:]
host = target.partition("/")[0]
client = OrasClient(hostname=host, insecure=True)
client.auth.set_basic_auth(user, password)
container = client.get_container(f"{target}:note")
# It keeps its first token, whatever that was asked for: so the first one is for a push.
assert client.do_request(f"{client.prefix}://{container.upload_blob_url()}", "POST").status_code == 202

options = {"disable_path_validation": True, "quiet": True}
chunks = {"do_chunked": True, "chunk_size": 100_000}
pushed = client.push(target=f"{target}:v1", files=[f"{folder}/weights"], **chunks, **options)
digest, size = pushed.headers["Docker-Content-Digest"], len(pushed.request.body)
subject = Subject("application/vnd.oci.image.manifest.v1+json", digest, size)
client.push(target=f"{target}:note", files=[f"{folder}/note"], subject=subject, **options)
(back,) = client.pull(target=f"{target}:v1", outdir=f"{folder}/back")
assert open(back, "rb").read() == open(f"{folder}/weights", "rb").read()
assert client.get_tags(target) == ["note", "v1"], client.get_tags(target)
referrers = client.do_request(f"{client.prefix}://{host}/v2/{container.api_prefix}/referrers/{digest}")
assert len(referrers.json()["manifests"]) == 1, referrers.text

client.auth.token = None
gone = client.do_request(f"{client.prefix}://{container.manifest_url()}", "DELETE")
client.auth.token = None
assert gone.status_code == 202 and client.get_tags(target) == ["v1"], gone.text
"""


def test_oras_pushes_artifacts_and_what_is_about_them(
    sdk: SDK, neocloud_emulator: Emulator, clients: Clients
) -> None:
    """A client that shares no code with the others."""
    program = CLIENTS / "oras" / "bin" / "python"
    if not program.exists():
        environment = {**os.environ, "PYTHON": sys.executable}
        subprocess.run([ROOT / "scripts" / "install-client", "oras"], env=environment, check=True)
    (clients.folder / "weights").write_bytes(os.urandom(350_000))
    (clients.folder / "note").write_text("made by hand")
    _, user, secret = make_key(sdk, neocloud_emulator, "editors")
    script = clients.folder / "script.py"
    script.write_text(ORAS)
    clients.run(str(program), str(script), f"{clients.address}/models", user, secret, str(clients.folder))
