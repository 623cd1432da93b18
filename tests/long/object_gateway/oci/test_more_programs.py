"""oras, cosign, crane, containerd, docker and docker-registry as people run them, and the protocol's own
conformance program. `make clients-long` installs them."""

import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from neocloud.object_gateway.oci.upstream_registries import Upstream
from neocloud.testing.waiting import wait_until
from tests.clients import installed
from tests.fast.container_images import busybox_layer, write_layout
from tests.fast.object_gateway.oci.client import Registry, digest_of
from tests.fast.object_gateway.s3.served import Served, serving


class Programs:
    """Programs of a Debian suite with files of their own, signed in at the registry."""

    def __init__(self, registry: Registry, folder: Path, suite: str, sign_in: Sequence[str]) -> None:
        self._programs = installed(suite) / "usr" / "bin"
        self._folder = folder
        host = registry.served.url.removeprefix("http://")
        self.address = f"{host}/{registry.name('models')}"
        user = registry.served.owner.aws_access_key_id
        options = ("--username", user, "--password-stdin", host)
        self(*sign_in, *options, given=registry.served.owner.secret)

    def __call__(self, program: str, *arguments: str, given: str = "") -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "DOCKER_CONFIG": str(self._folder / "docker"),
            "COSIGN_PASSWORD": "only here",
        }
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            env=environment,
            cwd=self._folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def programs(registry: Registry, tmp_path: Path) -> Programs:
    (tmp_path / "weights").write_bytes(os.urandom(7_000_000))
    (tmp_path / "note").write_text("made by hand")
    return Programs(registry, tmp_path, "trixie", ("oras", "login", "--plain-http"))


def test_oras_and_cosign(programs: Programs, tmp_path: Path) -> None:
    model, plain = f"{programs.address}:v1", "--plain-http"
    programs("oras", "push", plain, model, "note", "weights:application/vnd.test.weights")
    programs("oras", "attach", plain, "--artifact-type", "test/note", model, "note")
    assert "test/note" in programs("oras", "discover", plain, model)
    programs("oras", "pull", plain, "--output", "back", model)
    assert (tmp_path / "back" / "weights").read_bytes() == (tmp_path / "weights").read_bytes()
    copy = f"{programs.address}-copy:v2"
    programs("oras", "cp", "--from-plain-http", "--to-plain-http", "--recursive", model, copy)
    assert "test/note" in programs("oras", "discover", plain, copy)
    programs("oras", "manifest", "delete", plain, "--force", copy)
    assert programs("oras", "repo", "tags", plain, copy.removesuffix(":v2")) == ""

    programs("cosign", "generate-key-pair")
    unlogged = ("--tlog-upload=false", "--allow-http-registry", "--yes")
    programs("cosign", "sign", "--key=cosign.key", *unlogged, model)
    programs("cosign", "attest", "--key=cosign.key", *unlogged, "--predicate=note", "--type=custom", model)
    check = ("--insecure-ignore-tlog", "--private-infrastructure", "--allow-http-registry")
    programs("cosign", "verify", "--key=cosign.pub", *check, model)
    programs("cosign", "verify-attestation", "--key=cosign.pub", "--type=custom", *check, model)
    tags = programs("oras", "repo", "tags", plain, programs.address).split()
    assert sorted(tag.rpartition(".")[2] for tag in tags) == ["att", "sig", "v1"]


def test_crane(registry: Registry, tmp_path: Path) -> None:
    crane = Programs(registry, tmp_path, "sid", ("crane", "auth", "login"))
    layout = write_layout(tmp_path / "image", [busybox_layer()], {"Cmd": ["true"]})
    name = f"{crane.address}-crane"
    crane("crane", "push", str(layout), f"{name}:v1")
    digest = crane("crane", "digest", f"{name}:v1").strip()
    assert digest == json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        archive.add(tmp_path / "image" / "oci-layout", "opt/more")
    crane("crane", "append", "--base", f"{name}:v1", "--new_layer", "more.tar", "--new_tag", f"{name}:v2")
    crane("crane", "copy", f"{name}@{digest}", f"{name}-copy:v1")
    crane("crane", "mutate", f"{name}:v2", "--cmd", "false", "--tag", f"{name}:v3")
    assert json.loads(crane("crane", "config", f"{name}:v3"))["config"]["Cmd"] == ["false"]
    assert crane("crane", "ls", name).split() == ["v1", "v2", "v3"]
    crane("crane", "pull", "--format", "oci", f"{name}:v2", "back")
    [listed] = json.loads((tmp_path / "back" / "index.json").read_text())["manifests"]
    assert listed["digest"] == crane("crane", "digest", f"{name}:v2").strip()
    crane("crane", "export", f"{name}:v2", "files.tar")
    with tarfile.open(tmp_path / "files.tar") as files:
        assert {"bin/busybox", "opt/more"} <= set(files.getnames())
    crane("crane", "delete", f"{name}@{digest}")
    assert crane("crane", "ls", name).split() == ["v2", "v3"]


CONTAINERD = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/socket"
[ttrpc]
  address = "{folder}/ttrpc"
"""


@pytest.fixture
def ctr(registry: Registry) -> Iterator[Callable[..., str]]:
    """The command line of a containerd of its own, signed in at the registry."""
    programs, owner = installed("bookworm") / "usr" / "bin", registry.served.owner
    # The path of a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="containerd-") as folder:
        (Path(folder) / "config.toml").write_text(CONTAINERD.format(folder=folder))
        command = [str(programs / "containerd"), "--config", f"{folder}/config.toml"]
        with (Path(folder) / "log").open("wb") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)

        def run(*arguments: str) -> str:
            ctr = [str(programs / "ctr"), "--address", f"{folder}/socket", "images", *arguments]
            done = subprocess.run(ctr, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        try:
            wait_until(lambda: (Path(folder) / "socket").exists(), "containerd listens")
            sign_in = ("--plain-http", "--user", f"{owner.aws_access_key_id}:{owner.secret}")
            yield lambda verb, *more: run(verb, *(sign_in if verb in ("pull", "push") else ()), *more)
        finally:
            daemon.terminate()
            daemon.wait(30)


def test_containerd(registry: Registry, ctr: Callable[..., str], tmp_path: Path) -> None:
    """It pushes an image that was loaded, and pulls it again by its tag and by its digest."""
    layout = write_layout(tmp_path / "image", [busybox_layer(), busybox_layer({"etc/made-by": "ctr"})])
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(layout, ".")
    host = registry.served.url.removeprefix("http://")
    name = f"{host}/{registry.name('containerd')}"
    [listed] = json.loads((layout / "index.json").read_text())["manifests"]
    ctr("import", "--no-unpack", "--index-name", f"{name}:v1", str(tmp_path / "image.tar"))
    ctr("push", f"{name}:v2", f"{name}:v1")
    ctr("remove", f"{name}:v1")
    for reference in (f"{name}:v2", f"{name}@{listed['digest']}"):
        ctr("pull", "--snapshotter", "native", reference)
        assert reference in ctr("list", "--quiet")
    assert "complete (3/3)" in ctr("check")


ELSEWHERE = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def skopeo(*arguments: str, folder: Path) -> str:
    files = {"HOME": str(folder), "REGISTRY_AUTH_FILE": str(folder / "auth")}
    environment = {"PATH": os.environ["PATH"], **files}
    command = ["skopeo", "--insecure-policy", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_registry_of_docker_is_mirrored(tmp_path: Path) -> None:
    """Debian's docker-registry, which has the image, and then is gone."""
    layout = write_layout(tmp_path / "image", [busybox_layer()], {"Cmd": ["true"]})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "config.yml").write_text(ELSEWHERE.format(folder=tmp_path / "elsewhere", port=port))
    program = installed("trixie") / "usr" / "bin" / "docker-registry"
    elsewhere = subprocess.Popen([str(program), "serve", str(tmp_path / "config.yml")])
    upstream = Upstream("docker.example", f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: is_open(port), "docker-registry listens")
        there = f"docker://127.0.0.1:{port}/library/tool:v1"
        skopeo("copy", "--dest-tls-verify=false", f"oci:{layout}", there, folder=tmp_path)
        look = ("inspect", "--tls-verify=false", "--format={{.Digest}}", there)
        digest = skopeo(*look, folder=tmp_path).strip()
        with serving(tmp_path / "objects", upstreams=(upstream,)) as served:
            short = served.call(served.control_plane.make_registry()).id.partition("-")[2]
            here = f"docker://{served.url.removeprefix('http://')}/{short}/docker.example/library/tool:v1"
            user = f"--src-creds={served.owner.aws_access_key_id}:{served.owner.secret}"
            for number in range(2):
                copy = tmp_path / f"copy-{number}"
                skopeo("copy", "--src-tls-verify=false", user, here, f"dir:{copy}", folder=tmp_path)
                assert digest == digest_of((copy / "manifest.json").read_bytes())
                elsewhere.terminate()
                elsewhere.wait(30)
    finally:
        elsewhere.kill()
        elsewhere.wait(30)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


OPTIONAL = {
    "OCI_VERSION": "dev",
    "OCI_DATA_SPARSE": "true",
    "OCI_API_BLOBS_UPLOAD_CANCEL": "true",
    "OCI_API_BLOBS_DIGEST_HEADER": "true",
    "OCI_API_MANIFESTS_DIGEST_HEADER": "true",
    "OCI_API_MANIFESTS_TAG_PARAM": "true",
}


@pytest.mark.parametrize("is_whole", [False, True], ids=["stable", "with all that is optional"])
def test_the_distribution_specification(served: Served, tmp_path: Path, is_whole: bool) -> None:
    """CR-02. The specification's own program: its stable groups in a registry as it is made, and all of them
    where a label allows manifests without their parts."""
    program = installed("oci-conformance") / "bin" / "conformance"
    made = served.call(served.control_plane.make_registry(allows_sparse=is_whole))
    short, owner = made.id.partition("-")[2], served.owner
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OCI_REGISTRY": served.url.removeprefix("http://"),
        "OCI_TLS": "disabled",
        "OCI_REPO1": f"{short}/conformance/one",
        "OCI_REPO2": f"{short}/conformance/two",
        "OCI_USERNAME": owner.aws_access_key_id,
        "OCI_PASSWORD": owner.secret,
        "OCI_RESULTS_DIR": str(tmp_path / "results"),
        **(OPTIONAL if is_whole else {}),
    }
    done = subprocess.run(
        [program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    counted = dict(re.findall(r"^  (Pass|FAIL|Error)\.+: +([0-9]+)$", done.stdout, re.MULTILINE))
    assert (done.returncode, counted["FAIL"], counted["Error"]) == (0, "0", "0"), done.stderr[-4000:]
    assert int(counted["Pass"]) > (1000 if is_whole else 800)


@dataclass
class Docker:
    """The `docker` command, signed in over TLS; its daemon is Podman's service, with a store of its own."""

    environment: Mapping[str, str]
    repository: str
    """With the host before it."""

    def __call__(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            ["docker", *arguments],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Docker]:
    if shutil.which("docker") is None:
        pytest.skip("the docker command is not here")
    with (
        serving(tmp_path / "objects", tls=True) as served,
        tempfile.TemporaryDirectory(prefix="docker-", dir="/tmp") as folder,
    ):
        host = served.url.removeprefix("https://")
        trusted = tmp_path / ".config" / "containers" / "certs.d" / host
        trusted.mkdir(parents=True)
        assert served.authority is not None
        shutil.copy(served.authority, trusted / "ca.crt")
        files = {"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path / "docker")}
        environment = {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{folder}/socket", **files}
        short = served.call(served.control_plane.make_registry()).id.partition("-")[2]
        store = ("--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs")
        service = ("system", "service", "--time", "0", environment["DOCKER_HOST"])
        daemon = subprocess.Popen(["podman", *store, *service], env=environment)
        try:
            wait_until((Path(folder) / "socket").exists, "Podman's service listens")
            found = Docker(environment, f"{host}/{short}/team/app")
            user = served.owner.aws_access_key_id
            found("login", "--username", user, "--password-stdin", host, given=served.owner.secret)
            yield found
        finally:
            daemon.terminate()
            daemon.wait(30)


def test_docker(docker: Docker, tmp_path: Path) -> None:
    """CR-02. It pushes an image that was loaded, and pulls it again by its tag and by its digest."""
    layout = write_layout(tmp_path / "image", [busybox_layer(), busybox_layer({"etc/made-by": "docker"})])
    name = docker.repository
    skopeo("copy", f"oci:{layout}", f"docker-archive:{tmp_path}/image.tar:{name}:v1", folder=tmp_path)
    docker("load", "--input", str(tmp_path / "image.tar"))
    docker("tag", f"{name}:v1", f"{name}:v2")
    for tag in ("v1", "v2"):
        docker("push", f"{name}:{tag}")
    docker("rmi", "--force", f"{name}:v1", f"{name}:v2")
    docker("pull", f"{name}:v2")
    shown = docker("image", "inspect", "--format", "{{index .RepoDigests 0}} {{.Os}}", f"{name}:v2")
    by_digest, system = shown.split()
    assert by_digest.startswith(f"{name}@sha256:") and system == "linux"
    docker("rmi", "--force", f"{name}:v2")
    docker("pull", by_digest)
    assert by_digest.rpartition("@")[2] in docker("images", "--digests")
