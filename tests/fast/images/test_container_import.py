"""The node's program that makes containers: layers of zstd, variables, names of users, hostile paths."""

import hashlib
import importlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import ROOT
from tests.fast.container_images import add, layer, zstd, zstd_chunked

PROGRAM = ROOT / "images/slurm/rootfs/opt/slurm/libexec/container"
MODULES = ("accounts", "files", "image_store", "layers", "names")
DIGEST = "sha256:" + "a1" * 32


Load = Callable[[str], ModuleType]
"""What imports a module of the program by its name."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.syspath_prepend(str(PROGRAM))
    yield importlib.import_module
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (f"ubuntu:24.04@{DIGEST}", f"docker://ubuntu@{DIGEST}"),
        (f"docker://REG.example#ours/tool:v1@{DIGEST}", f"docker://REG.example/ours/tool@{DIGEST}"),
        (f"login-0:5000#ours/tool:v1@{DIGEST}", f"docker://login-0:5000/ours/tool@{DIGEST}"),
        (f"login-0:5000#ours/tool@{DIGEST}", f"docker://login-0:5000/ours/tool@{DIGEST}"),
        (f"localhost:5000/tool:1@{DIGEST}", f"docker://localhost:5000/tool@{DIGEST}"),
        (f"localhost:5000/tool@{DIGEST}", f"docker://localhost:5000/tool@{DIGEST}"),
        (f"nvcr.io/nvidia/pytorch:24.01-py3@{DIGEST}", f"docker://nvcr.io/nvidia/pytorch@{DIGEST}"),
    ],
)
def test_a_digest_counts_and_the_tag_beside_it_does_not(load: Load, name: str, where: str) -> None:
    """Renovate and Dependabot write images in this form. skopeo takes no name with both."""
    name, where = (text.replace("REG.example", "reg.example") for text in (name, where))
    assert load("names").find(name).where == where


def image_as_copied(folder: Path, *layers: bytes) -> None:
    """Write what skopeo copies with `dir:`."""
    folder.mkdir()
    described: list[dict[str, object]] = []
    for content in (b'{"config": {}}', *layers):
        digest = hashlib.sha256(content).hexdigest()
        (folder / digest).write_bytes(content)
        described.append({"mediaType": "whatever", "digest": f"sha256:{digest}", "size": len(content)})
    manifest = {"schemaVersion": 2, "config": described[0], "layers": described[1:]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_layers_of_zstd_become_plain_ones_and_others_stay(load: Load, tmp_path: Path) -> None:
    first, second = (layer(lambda archive, name=name: add(archive, name, b"x")) for name in ("a", "b"))
    stored = (zstd(first), second, zstd_chunked(second), b"\x1f\x8bgzip", zstd(first))
    image_as_copied(tmp_path / "copied", *stored)
    contents = {hashlib.sha256(zstd(first)).hexdigest(): first, hashlib.sha256(stored[2]).hexdigest(): second}
    for command, target in load("layers").oci_layout(tmp_path / "copied", tmp_path / "oci"):
        target.write_bytes(contents.pop(Path(command[-1]).name))  # of each packed layer, once
    assert not contents
    index = json.loads((tmp_path / "oci/index.json").read_text())["manifests"][0]
    blobs = tmp_path / "oci/blobs/sha256"
    manifest = json.loads((blobs / index["digest"].partition(":")[2]).read_text())
    kinds = [entry["mediaType"].rpartition(".v1.")[2] for entry in manifest["layers"]]
    assert kinds == ["tar", "tar", "tar", "tar+gzip", "tar"]
    held = [(blobs / entry["digest"].partition(":")[2]).read_bytes() for entry in manifest["layers"]]
    assert held == [first, second, second, b"\x1f\x8bgzip", first]
    for path in blobs.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "sha512:" + "a" * 128, "", 5, None])
def test_a_digest_that_is_none_names_no_file(load: Load, tmp_path: Path, digest: object) -> None:
    image_as_copied(tmp_path / "copied")
    manifest = {"config": {"digest": digest}, "layers": [{"digest": digest}]}
    (tmp_path / "copied/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises((ValueError, TypeError)):
        list(load("layers").oci_layout(tmp_path / "copied", tmp_path / "oci"))


@pytest.mark.parametrize(
    ("count", "size", "is_taken"), [(30, 1000, True), (70, 1000, False), (300, 1000, False), (9000, 2, False)]
)
def test_an_image_with_more_than_32_kib_of_variables_is_refused_with_words(
    load: Load, count: int, size: int, is_taken: bool
) -> None:
    """A user of somebody else's image must not lose the node by it."""
    source = load("names").find("registry.example#evil")
    variables = {f"V{number}": "x" * size for number in range(count)}
    make = load("image_store")._image
    if is_taken:
        assert make(source, variables, "/").variables == variables
    else:
        with pytest.raises(Exception, match=r"evil sets \d+ KiB of variables; a container takes 32 KiB"):
            make(source, variables, "/")


def names_in(upper: Path, file: str) -> dict[str, str]:
    """The names in a file of accounts, by number."""
    lines = [line.split(":") for line in (upper / "etc" / file).read_text().splitlines()]
    assert all(len(fields) == (7 if file == "passwd" else 4) for fields in lines)
    return {fields[2]: fields[0] for fields in lines}


@pytest.fixture
def container(load: Load, tmp_path: Path) -> tuple[Path, Path, ModuleType]:
    image, upper = tmp_path / "image", tmp_path / "upper"
    image.mkdir()
    upper.mkdir()
    return image, upper, load("accounts")


ME = pwd.getpwuid(os.getuid())


def test_an_image_without_accounts_gets_those_of_root_and_the_user(
    container: tuple[Path, Path, ModuleType],
) -> None:
    image, upper, accounts = container
    accounts.add_user(image, upper)
    assert names_in(upper, "passwd") == {"0": "root", str(ME.pw_uid): ME.pw_name}
    assert names_in(upper, "group")["0"] == "root" and str(ME.pw_gid) in names_in(upper, "group")


@pytest.mark.parametrize("target", ["/nix/passwd", "../nix/passwd", "/nix/away/passwd", "/nix/again"])
def test_a_link_to_the_accounts_of_an_image_becomes_a_file_with_them(
    container: tuple[Path, Path, ModuleType], target: str
) -> None:
    """Nix makes images in this form. A link leads nowhere but into the image: /nix/away leads out of it."""
    image, upper, accounts = container
    for folder in ("etc", "nix"):
        (image / folder).mkdir()
    (image / "nix/passwd").write_text("app:x:77:77::/:/bin/sh")
    (image / "nix/away").symlink_to("/etc")
    (image / "nix/again").symlink_to("passwd")
    (image / "etc/passwd").symlink_to(target)
    accounts.add_user(image, upper)
    app = {} if "away" in target else {"77": "app"}
    assert names_in(upper, "passwd") == {**app, "0": "root", str(ME.pw_uid): ME.pw_name}
    assert not (upper / "etc/passwd").is_symlink()


@pytest.mark.parametrize("kind", ["pipe", "endless link", "folder", "link out"])
def test_accounts_that_are_no_file_are_replaced_and_never_waited_for(
    container: tuple[Path, Path, ModuleType], kind: str
) -> None:
    image, upper, accounts = container
    (image / "etc").mkdir()
    place = image / "etc/passwd"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("passwd" if kind == "endless link" else "../../../../../../../etc/passwd")
    accounts.add_user(image, upper)
    assert names_in(upper, "passwd") == {"0": "root", str(ME.pw_uid): ME.pw_name}


def test_accounts_of_an_image_that_has_the_user_stay_as_they_are(
    container: tuple[Path, Path, ModuleType],
) -> None:
    image, upper, accounts = container
    (image / "etc").mkdir()
    (image / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\nown:x:{ME.pw_uid}:0::/:/bin/sh\n")
    accounts.add_user(image, upper)
    assert not (upper / "etc/passwd").exists()


@pytest.mark.parametrize("name", ["pipe", "layout", "/dev/zero"])
def test_a_path_that_is_no_file_is_refused_at_once(load: Load, tmp_path: Path, name: str) -> None:
    """Reading a pipe would wait for somebody who writes to it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "layout").mkdir()
    os.mkfifo(tmp_path / "layout/index.json")
    with pytest.raises(Exception, match="is not a file|is neither a file") as refused:
        load("names").find(str(tmp_path / name))
    assert type(refused.value).__name__ == "ContainerError"


def test_what_is_removed_is_gone_and_links_are_not_followed(load: Load, tmp_path: Path) -> None:
    kept, made = tmp_path / "kept", tmp_path / "made"
    kept.mkdir()
    (kept / "file").write_text("kept")
    (made / "deep" / "closed").mkdir(parents=True)
    (made / "deep" / "closed" / "file").write_text("x")
    (made / "deep" / "away").symlink_to(kept)
    (made / "deep" / "closed").chmod(0)
    load("files").remove(made)
    assert not made.exists() and (kept / "file").read_text() == "kept"


def test_a_program_that_is_told_to_end_removes_what_it_began(tmp_path: Path) -> None:
    """Its job is over: a registry that does not answer must leave no folder behind."""
    (tmp_path / "bin").mkdir()
    waiting = tmp_path / "bin/unsquashfs"
    waiting.write_text(f"#!/bin/sh\ntouch {tmp_path}/started; exec sleep 600\n")
    waiting.chmod(0o755)
    (tmp_path / "own.sqsh").write_bytes(b"hsqs" + bytes(600))
    variables = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    job = f"7{os.getpid()}"
    command = [
        sys.executable,
        "-I",
        PROGRAM,
        "start",
        job,
        "0",
        "0",
        f"--container-image={tmp_path}/own.sqsh",
    ]
    with subprocess.Popen(command, env=variables) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        store = tmp_path / ".cache/neocloud/containers"
        assert [path.name for path in store.iterdir() if path.is_dir()][0].startswith("importing-")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
    assert not [path for path in store.iterdir() if path.is_dir()]
    shutil.rmtree(f"/tmp/neocloud-containers-{os.getuid()}/{job}")
