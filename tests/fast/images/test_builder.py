"""When an image is built, and what an interrupted build leaves behind."""

import fcntl
import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import ROOT

IMAGES = ROOT / "images"


@pytest.fixture
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("builder", IMAGES / "builder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["builder"] = module
    spec.loader.exec_module(module)
    return module


def options_of(builder: ModuleType, folder: Path, version: str = "v1", force: bool = False):
    return builder.Options("thing", version, folder / "thing", force)


def test_a_recipe_changes_its_version_with_any_file_and_any_mode(builder, tmp_path):
    file = tmp_path / "finish"
    file.write_text("echo one")
    first = builder.recipe_version(tmp_path)
    assert builder.recipe_version(tmp_path) == first
    file.chmod(0o755)
    second = builder.recipe_version(tmp_path)
    file.write_text("echo two")
    assert len({first, second, builder.recipe_version(tmp_path)}) == 3
    assert builder.recipe_version(tmp_path, said="torch==2") != builder.recipe_version(tmp_path)


def test_a_moved_checkout_has_the_same_version(builder, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "finish").write_text("echo one")
    assert builder.recipe_version(tmp_path / "here") == builder.recipe_version(tmp_path / "there")


def test_a_build_counts_from_its_description_on(builder, tmp_path):
    options = options_of(builder, tmp_path)
    with builder.workspace(options) as work:
        (work / "image.tar").write_text("")
        assert not options.is_built()
        builder.describe(options.folder, version="v1")
    assert options.is_built()
    assert not options_of(builder, tmp_path, version="v2").is_built()


def test_what_is_built_is_not_built_again_unless_forced(builder, tmp_path, capsys):
    builder_options = options_of(builder, tmp_path)
    with builder.workspace(builder_options):
        builder.describe(builder_options.folder, version="v1")
    with builder.workspace(builder_options) as work:
        assert work is None
    assert "already built" in capsys.readouterr().out
    with builder.workspace(options_of(builder, tmp_path, force=True)) as work:
        assert work is not None


def test_an_interrupted_build_leaves_no_scratch_and_no_image(builder, tmp_path):
    options = options_of(builder, tmp_path)
    with pytest.raises(KeyboardInterrupt), builder.workspace(options) as work:
        (work / "root").mkdir()
        raise KeyboardInterrupt
    assert not options.is_built()
    assert [path.name for path in options.folder.iterdir()] == [".lock"]


def test_what_a_killed_build_left_is_cleared_by_the_next(builder, tmp_path):
    options = options_of(builder, tmp_path)
    (options.folder / ".building" / "root").mkdir(parents=True)
    with builder.workspace(options) as work:
        assert list(work.iterdir()) == []


def test_two_builds_of_one_image_take_turns(builder, tmp_path):
    options = options_of(builder, tmp_path)
    with (
        builder.workspace(options),
        (options.folder / ".lock").open() as lock,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_failing_command_is_told_with_its_last_words(builder):
    with pytest.raises(builder.BuildError, match=r"sh failed with exit code 3:\n.*no such mirror"):
        builder.run(["sh", "-c", "echo no such mirror; exit 3"])


@pytest.mark.parametrize("image", ["slurm", "jail", "launcher", "machine", "metrics"])
def test_check_tells_by_exit_code_and_changes_nothing(image, tmp_path):
    command = [sys.executable, str(IMAGES / image / "build"), "--check", "--output", str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_the_output_goes_below_the_state_folder(builder, tmp_path, monkeypatch):
    monkeypatch.setenv("NEOCLOUD_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["build"])
    assert builder.options("thing", "v1", "").folder == tmp_path / "images" / "thing"


@pytest.mark.parametrize(
    ("image", "entrypoint"),
    [
        ("slurm", "/usr/local/sbin/neocloud-entrypoint"),
        ("launcher", "/usr/local/bin/neocloud-launcher"),
    ],
)
def test_packing_gives_an_archive_with_name_and_entrypoint(image, entrypoint, tmp_path):
    """The engine loads the archive as it is; nothing else says how a role is started."""
    source = (IMAGES / image / "build").read_text().replace("builder.main(build)", "")
    recipe: dict = {"__file__": str(IMAGES / image / "build"), "__name__": "recipe"}
    exec(compile(source, "build", "exec"), recipe)
    root = IMAGES / image / "rootfs"
    archive = recipe["container_image"].pack("localhost/thing:v1", root, recipe["CONFIGURATION"], tmp_path)
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", unpacked], check=True)
    (manifest,) = json.loads((unpacked / "manifest.json").read_text())
    assert manifest["RepoTags"] == ["localhost/thing:v1"]
    configuration = json.loads((unpacked / manifest["Config"]).read_text())
    assert configuration["config"]["Entrypoint"][-1] == entrypoint
    listed = subprocess.run(
        ["tar", "-tf", unpacked / "layer.tar"], capture_output=True, text=True, check=True
    )
    assert f".{entrypoint}" in listed.stdout.splitlines()


def test_the_shared_roots_files_are_chosen_for_its_own_python_and_libc():
    """Whichever Python builds it: Debian 13 has 3.13, the root 3.11."""
    source = (IMAGES / "jail" / "build").read_text().replace("builder.main(build)", "")
    recipe: dict = {"__file__": str(IMAGES / "jail" / "build"), "__name__": "recipe"}
    exec(compile(source, "build", "exec"), recipe)
    options = recipe["of_the_image"]()
    assert "--python-version=3.11" in options
    platforms = {option.removeprefix("--platform=") for option in options if "platform" in option}
    machine = platform.machine()
    assert {f"manylinux_2_36_{machine}", f"manylinux2014_{machine}", f"linux_{machine}"} <= platforms
    assert f"manylinux_2_37_{machine}" not in platforms
