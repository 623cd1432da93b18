"""Building images by their scripts: progress, reasons of failure, and clean interruption."""

import os
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.machine import images
from neocloud.client.errors import ClientError
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer

HEAD = "import json, pathlib, signal, sys, time\nhome = pathlib.Path(sys.argv[2])\n"
BUILDS = """
folder = home / "slurm"
folder.mkdir(parents=True, exist_ok=True)
print("[slurm 1/1] install Debian ...", flush=True)
(folder / "image.json").write_text(json.dumps({"version": "abc123"}))
"""
FAILS = """
print("fetching", flush=True)
sys.exit("error: mmdebstrap is missing. Install it: apt-get install mmdebstrap")
"""
HANGS = """
(home / "pid").write_text(str(__import__("os").getpid()))
signal.signal(signal.SIGTERM, lambda *_: ((home / "cleaned").touch(), sys.exit(143)))
print("working", flush=True)
signal.pause()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "state" / "images").mkdir(parents=True)
    return tmp_path / "state"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The build script of the only image there is."""
    script = tmp_path / "recipes" / "slurm" / "build"
    script.parent.mkdir(parents=True)
    monkeypatch.setattr(images, "_recipes", lambda: tmp_path / "recipes")
    return script


def test_each_line_of_the_script_is_progress(recipe: Path, home: Path) -> None:
    recipe.write_text(HEAD + BUILDS)
    shown: list[str] = []
    images.build_image("slurm", home, shown.append)
    assert shown == ["install Debian ..."]
    assert images.built_version("slurm", home) == "abc123"


def test_caches_of_a_build_go_with_it(
    recipe: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["PIP_CACHE_DIR", "CARGO_HOME", "RUSTUP_HOME", "XDG_CACHE_HOME"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    recipe.write_text(
        f"{HEAD}import os\n"
        f"for name in {names}:\n"
        "    folder = pathlib.Path(os.environ[name])\n"
        "    folder.mkdir(exist_ok=True)\n"
        "    print(folder, flush=True)\n"
    )
    shown: list[str] = []
    images.build_image("slurm", home, shown.append)
    assert len(set(shown)) == 4 and all(Path(each).is_relative_to(home) for each in shown)
    assert list((home / "images").iterdir()) == [], "they are gone"
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "own"))
    images.build_image("slurm", home, shown.append)
    assert shown[4] == str(tmp_path / "own"), "chosen by the person"


def test_images_may_be_a_link_to_a_folder_that_is_not_there_yet(
    recipe: Path, home: Path, tmp_path: Path
) -> None:
    """Images may be on another disk; a first build makes the folder."""
    (home / "images").rmdir()
    (home / "images").symlink_to(tmp_path / "disk" / "images")
    recipe.write_text(HEAD + BUILDS)
    images.build_image("slurm", home, lambda _: None)
    assert images.built_version("slurm", home) == "abc123"


def test_a_failure_is_told_in_the_scripts_own_words(recipe: Path, home: Path) -> None:
    recipe.write_text(HEAD + FAILS)
    with pytest.raises(ClientError, match="mmdebstrap is missing. Install it") as caught:
        images.build_image("slurm", home, lambda line: None)
    assert "neo image build slurm" in caught.value.next_step
    assert images.built_version("slurm", home) == ""


def test_an_interrupted_build_cleans_up_and_counts_as_not_built(recipe: Path, home: Path) -> None:
    recipe.write_text(HEAD + HANGS)

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        images.build_image("slurm", home, interrupt)
    assert (home / "images" / "cleaned").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((home / "images" / "pid").read_text()), 0)
    assert images.built_version("slurm", home) == ""


MEETS = """
name = pathlib.Path(sys.argv[0]).parent.name
(home / name).touch()
while not all((home / each).exists() for each in ("jail", "slurm")):
    time.sleep(0.01)
print(f"[{name} 1/1] met", flush=True)
"""


def second(recipe: Path, text: str) -> None:
    (recipe.parents[1] / "jail").mkdir()
    (recipe.parents[1] / "jail" / "build").write_text(text)


def test_two_images_are_built_at_the_same_time(recipe: Path, home: Path) -> None:
    recipe.write_text(HEAD + MEETS)
    second(recipe, HEAD + MEETS)
    shown: list[str] = []
    images.build_images(["jail", "slurm"], home, shown.append)
    assert sorted(shown) == ["jail: met", "slurm: met"]


def test_where_one_of_two_builds_fails_the_other_stops_and_cleans_up(recipe: Path, home: Path) -> None:
    recipe.write_text(HEAD + HANGS)
    second(recipe, HEAD + "while not (home / 'pid').exists(): time.sleep(0.01)\n" + FAILS)
    with pytest.raises(ClientError, match="Building the image jail failed: mmdebstrap is missing"):
        images.build_images(["jail", "slurm"], home, lambda line: None)
    assert (home / "images" / "cleaned").exists()


def test_a_forced_build_starts_from_nothing(recipe: Path, home: Path) -> None:
    recipe.write_text(HEAD + "print(sys.argv[3:])")
    shown: list[str] = []
    images.build_image("slurm", home, shown.append, force=True)
    images.build_image("slurm", home, shown.append, only="tiny")
    assert shown == ["['--force']", "['--only', 'tiny']"]


def test_what_only_some_need_is_not_built_by_up(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`neo up` must not wait for disks of machines."""
    recipe.touch()
    for name in images.ON_DEMAND:
        (recipe.parents[1] / name).mkdir()
        (recipe.parents[1] / name / "build").touch()
    assert images.image_names() == ["slurm"]
    assert images.all_image_names() == sorted(["slurm", *images.ON_DEMAND])
    assert len(images.ON_DEMAND) == 5


def test_an_unknown_image_lists_the_known_ones(recipe: Path, neo: Neo) -> None:
    recipe.touch()
    ran = neo("image", "build", "slrum")
    assert ran.code == 3
    assert ran.err == "neo: There is no image named 'slrum'. There are: slurm.\n"


def test_the_list_says_what_is_built(recipe: Path, neo: Neo, home: Path) -> None:
    recipe.write_text(HEAD + BUILDS)
    assert neo("image", "list").out.splitlines()[1].split() == ["slurm", "not", "built", "container", "image"]
    images.build_image("slurm", home, lambda line: None)
    assert neo("image", "list").out.splitlines()[1].split() == ["slurm", "abc123", "container", "image"]


REGISTRIES = "nebius.registry.v1.RegistryService"
FQDN = "cr.local:8902/e00team"


@pytest.fixture
def registry(cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A registry by the name of `team`, and what was pushed to it: target, and name of the image."""
    found = contract.message("nebius.registry.v1.Registry")()
    found.metadata.id, found.status.registry_fqdn = "registry-e00team", FQDN

    def by_name(request: Any) -> Any:
        if request.name != "team":
            raise contract.not_found("registry", request.name)
        return found

    cloud.serve(f"{REGISTRIES}/GetByName", by_name)
    cloud.serve(f"{REGISTRIES}/Get", found)
    pushed: list[tuple[str, str]] = []

    class Client:
        def __init__(self, _: object, name: object) -> None:
            self.name = str(name)

        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *_: object) -> None: ...

    def push(registry: Client, folder: Path, image: object, name: str, show: object) -> str:
        pushed.append((registry.name, name))
        return "sha256:5e0b"

    monkeypatch.setattr("neocloud.cli.registry.client.RegistryClient", Client)
    monkeypatch.setattr("neocloud.cli.registry.images.push_image", push)
    monkeypatch.setattr("neocloud.cli.commands.image.check_machine", lambda: None)
    return pushed


@pytest.mark.parametrize(
    ("push", "target"),
    [("team/neocloud-slurm:v1", f"{FQDN}/neocloud-slurm:v1"), ("team", f"{FQDN}/slurm:abc123")],
)
def test_a_build_pushes_what_it_has_built(
    recipe: Path, signed_in: Neo, registry: list[tuple[str, str]], push: str, target: str
) -> None:
    recipe.write_text(HEAD + BUILDS)
    ran = signed_in("image", "build", "slurm", "--push", push)
    assert ran.code == 0, ran.err
    assert registry == [(target, "slurm")]
    assert "sha256:5e0b" in ran.err


@pytest.mark.parametrize(
    ("names", "push", "said"),
    [
        (["machine"], "team", "disks of machines"),
        (["slurm", "jail"], "team/all:v1", "names one image, and 2 are built"),
        (["slurm"], "taem", "taem"),
    ],
)
def test_nothing_is_built_that_cannot_be_pushed(
    recipe: Path,
    signed_in: Neo,
    home: Path,
    registry: list[tuple[str, str]],
    names: list[str],
    push: str,
    said: str,
) -> None:
    for name in ("slurm", "jail", "machine", "launcher"):
        (recipe.parents[1] / name).mkdir(exist_ok=True)
        (recipe.parents[1] / name / "build").write_text(HEAD + BUILDS)
    ran = signed_in("image", "build", *names, "--push", push)
    assert ran.code != 0 and said in ran.err
    assert registry == [] and images.built_version("slurm", home) == ""
