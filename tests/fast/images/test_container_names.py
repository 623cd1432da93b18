"""SLURM-09: what `--container-image` means, with the names and the credentials of enroot and Pyxis."""

import importlib
import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

PROGRAM = ROOT / "images/slurm/rootfs/opt/slurm/libexec/container"
DIGEST = "sha256:" + "a1" * 32


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module of the node's program, for a user who has a home folder of nothing."""
    for variable in ("XDG_CONFIG_HOME", "ENROOT_CONFIG_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(PROGRAM))
    yield importlib.import_module("names")
    for module in ("names", "files", "image_store"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("ubuntu:24.04", "docker://ubuntu:24.04"),
        ("nvidia/cuda:12.4.1-base-ubuntu22.04", "docker://nvidia/cuda:12.4.1-base-ubuntu22.04"),
        ("docker://alpine", "docker://alpine"),
        ("nvcr.io#nvidia/pytorch:24.01-py3", "docker://nvcr.io/nvidia/pytorch:24.01-py3"),
        ("docker://nvcr.io#nvidia/pytorch", "docker://nvcr.io/nvidia/pytorch"),
        ("nvcr.io/nvidia/pytorch:24.01-py3", "docker://nvcr.io/nvidia/pytorch:24.01-py3"),
        ("login-0:5000#ours/model:1", "docker://login-0:5000/ours/model:1"),
        (f"ubuntu@{DIGEST}", f"docker://ubuntu@{DIGEST}"),
        (f"registry.example#ours/model@{DIGEST}", f"docker://registry.example/ours/model@{DIGEST}"),
    ],
)
def test_a_name_is_where_skopeo_finds_the_image(names: Any, name: str, where: str) -> None:
    found = names.find(name)
    assert (found.where, found.sign_in, found.is_squashfs) == (where, "", False)


@pytest.mark.parametrize(
    "name",
    [
        *("--help", "a b", "", "#", "@", "a#b#c", "ubuntu@sha256:12", "docker://", "UBUNTU", "-rf"),
        *("oci:/etc", "dir:/", "https://registry.example/x", "$(id)", "a;b", "a\nb"),
        *("u s@registry#image", "user@", f"@{DIGEST}"),
    ],
)
def test_what_is_no_name_is_refused(names: Any, name: str) -> None:
    with pytest.raises(Exception, match="is not the name of an image") as refused:
        names.find(name)
    assert type(refused.value).__name__ == "ContainerError"


def test_the_name_of_a_file_without_a_path_says_how_to_write_it(names: Any) -> None:
    with pytest.raises(Exception, match=r"write \./own\.sqsh if it is a file"):
        names.find("own.sqsh")
    assert names.find("docker://own.sqsh").where == "docker://own.sqsh"


def test_a_squashfs_file_is_known_by_what_it_holds(
    names: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.sqsh").write_bytes(b"hsqs" + bytes(600))
    monkeypatch.chdir(tmp_path)
    found = names.find("./own.sqsh")
    assert found.is_squashfs and found.where == str(tmp_path / "own.sqsh")


CREDENTIALS = """\
# of NVIDIA
machine nvcr.io login $oauthtoken password first
machine auth.docker.io login ann password hub:secret
machine registry.example login ann password hers
machine registry.example login bob password his
machine broken.example login
"""


@pytest.mark.parametrize(
    ("name", "host", "login"),
    [
        ("nvcr.io#nvidia/pytorch", "nvcr.io", "$oauthtoken:first"),
        ("docker://$oauthtoken@nvcr.io#nvidia/pytorch", "nvcr.io", "$oauthtoken:first"),
        ("registry.example#image", "registry.example", "ann:hers"),
        ("bob@registry.example#image:1", "registry.example", "bob:his"),
        ("registry.example/image", "registry.example", "ann:hers"),
        ("ann@ubuntu", "docker.io", "ann:hub:secret"),
        (f"ann@ubuntu@{DIGEST}", "docker.io", "ann:hub:secret"),
    ],
)
def test_a_user_of_a_registry_has_the_password_of_enroots_credentials(
    names: Any, tmp_path: Path, name: str, host: str, login: str
) -> None:
    write_credentials(tmp_path)
    assert json.loads(names.find(name).sign_in) == {
        "auths": {host: {"auth": b64encode(login.encode()).decode()}}
    }


@pytest.mark.parametrize("name", ["carol@registry.example#image", "ann@broken.example#image", "bob@ubuntu"])
def test_a_user_without_a_password_is_told_where_to_write_it(names: Any, tmp_path: Path, name: str) -> None:
    write_credentials(tmp_path)
    with pytest.raises(Exception, match=r'write "machine \S+ login \w+ password \.\.\." to .*/\.credentials'):
        names.find(name)


def write_credentials(home: Path) -> None:
    folder = home / ".config" / "enroot"
    folder.mkdir(parents=True)
    (folder / ".credentials").write_text(CREDENTIALS)


def test_a_program_that_fills_the_disk_and_cleans_up_after_it_is_told_as_an_image_too_large(
    names: Any, tmp_path: Path
) -> None:
    """The disk has space again by the time one looks."""
    images = importlib.import_module("image_store")
    source = names.find("registry#grows")
    filled = "echo 'write rootfs/large: no space left on device' >&2; exit 1"
    with pytest.raises(Exception, match="is larger than the space for images; remove files and try again"):
        images._watched(source, ["sh", "-c", filled], tmp_path, tmp_path)
    with pytest.raises(Exception, match="cannot be imported: invalid tar header"):
        images._watched(source, ["sh", "-c", "echo 'invalid tar header' >&2; exit 1"], tmp_path, tmp_path)
