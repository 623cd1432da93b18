"""H6, H10, M2: whose weights a model may be made of, and that they are still those when they are served."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.inference.v1 import Model

from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.services.inference.public import (
    Location,
    ModelFolders,
    WeightsGone,
    weights_digest,
)
from neocloud.services.inference.reconcile import staging
from neocloud.services.inference.reconcile.reader import FolderReader
from neocloud.services.inference.reconcile.weights import BadWeights
from neocloud.services.inference.render import ModelServerView, server_arguments
from neocloud.services.slurm.types import models_folder
from tests.fast.services.inference.cloud import write_adapter, write_model, write_safetensors

PROJECT, MODEL, CLUSTER = "project-e00mine", "inferencemodel-e00mine", "slurmcluster-e00one"
MINE = {"project_id": PROJECT, "model_id": MODEL}
SECRET = "of the host"


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """Return the folder that the operator opened; a tenant can write in it."""
    return tmp_path / "opened"


@pytest.fixture
def folders(tmp_path: Path, opened: Path) -> ModelFolders:
    (tmp_path / "home" / "models").mkdir(parents=True)
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text(SECRET)
    opened.mkdir()
    return ModelFolders(tmp_path / "home" / "models", (opened,))


def model(folder: Path, digest: str = "") -> Any:
    message = Model()
    message.metadata.id, message.metadata.parent_id, message.metadata.name = MODEL, PROJECT, "bank"
    message.spec.source.folder = str(folder)
    message.status.digest = digest
    return message


def inspected(folder: Path) -> Any:
    with Folder.open(folder) as opened:
        return model(folder, weights_digest(opened))


def job_files(tmp_path: Path) -> staging.JobFiles:
    return staging.JobFiles(models_folder(tmp_path / "home", CLUSTER), "/opt", "inferencedeployment-e00one")


@pytest.mark.parametrize(
    "name",
    [
        "slurmcluster-e00one/inferencedeployment-e00one/model",
        "inferencedeployment-e00one/inferencemodel-e00other",
        "project-e00other/x",
        "inferencemodel-e00other",
        ".project-e00mine.partial",
        f"{PROJECT}/.x.partial",
        f"{PROJECT}/.x.partial/deeper",
        f".{MODEL}.partial",
        "anybody",
        "",
        f"{PROJECT}x",
    ],
)
def test_of_the_cloud_s_own_folder_a_project_reads_its_own_alone(folders: ModelFolders, name: str) -> None:
    assert not folders.is_open(folders.own / name, **MINE)
    assert folders.locate(folders.own / name, **MINE) is None


@pytest.mark.parametrize("name", [f"{PROJECT}/x", f"{PROJECT}/x/y", MODEL])
def test_its_own_it_reads(folders: ModelFolders, name: str) -> None:
    assert folders.is_open(folders.own / name, **MINE)
    assert folders.locate(folders.own / name, **MINE) == Location(folders.own / name)


def test_a_link_from_an_opened_folder_leads_into_no_other_project(
    folders: ModelFolders, opened: Path
) -> None:
    other = write_model(folders.own / "project-e00other" / "x")
    (opened / "x").symlink_to(other)
    assert folders.locate(opened / "x", **MINE) is None
    with pytest.raises(WeightsGone):
        folders.locate_known(model(opened / "x"))


def test_a_home_that_is_reached_by_a_link_gives_nothing_away(folders: ModelFolders, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "home")
    again = ModelFolders(linked / "models", (tmp_path,))
    assert again.locate(linked / "models" / "project-e00other", **MINE) is None
    assert again.locate(linked / "models" / PROJECT / "x", **MINE)


def test_what_older_releases_took_from_an_operator_is_served_on(folders: ModelFolders) -> None:
    assert folders.locate_known(model(folders.own / "bank")) == Location(folders.own / "bank")
    with pytest.raises(WeightsGone):
        folders.locate_known(model(folders.own / CLUSTER / "inferencedeployment-e00one" / "model"))


def test_a_folder_that_became_a_link_is_not_opened(
    folders: ModelFolders, opened: Path, tmp_path: Path
) -> None:
    write_model(opened / "alice" / "bank")
    found = folders.locate(opened / "alice" / "bank", **MINE)
    assert found == Location(opened, "alice/bank")
    (opened / "alice").rename(opened / "moved")
    (opened / "alice").symlink_to(tmp_path / "host")
    assert found is not None
    with pytest.raises(UnsafePath), found.folder():
        pass


@pytest.mark.parametrize("target", ["../../host/file", "{host}"])
def test_a_file_that_became_a_link_is_not_staged(
    folders: ModelFolders, opened: Path, tmp_path: Path, target: str
) -> None:
    folder = write_model(opened / "bank")
    known = inspected(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(target.format(host=tmp_path / "host" / "file"))
    with pytest.raises(UnsafePath, match="tokenizer.json"):
        job_files(tmp_path).stage(folders, known, b"key")
    _nothing_leaked(tmp_path)


def test_weights_that_changed_are_not_staged(folders: ModelFolders, opened: Path, tmp_path: Path) -> None:
    folder = write_model(opened / "bank")
    known = inspected(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    with pytest.raises(WeightsGone, match="digest changed"):
        job_files(tmp_path).stage(folders, known, b"key")
    assert not list(models_folder(tmp_path / "home", CLUSTER).glob("*/model"))


def test_weights_that_did_not_change_are_staged_once(
    folders: ModelFolders, opened: Path, tmp_path: Path
) -> None:
    folder = write_model(opened / "bank")
    (folder / "same.json").symlink_to("config.json")
    (folder / "inner").mkdir()
    files = job_files(tmp_path)
    files.stage(folders, inspected(folder), b"key")
    files.stage(folders, inspected(folder), b"other key")
    here = models_folder(tmp_path / "home", CLUSTER) / "inferencedeployment-e00one"
    assert {path.name for path in (here / "model").iterdir()} == {
        *("config.json", "same.json", "tokenizer.json", "chat_template.jinja", "model.safetensors")
    }
    assert not (here / "model" / "same.json").is_symlink()
    assert (here / "key").read_bytes() == b"other key" and (here / "key").stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize("name", staging.ADAPTER_FILES)
async def test_adapters_are_staged_as_they_were_inspected(
    folders: ModelFolders, opened: Path, tmp_path: Path, name: str
) -> None:
    folder, target = (
        write_adapter(opened / "support"),
        tmp_path / "home" / "models" / "inferencedeployment-e00one",
    )
    known = inspected(folder)
    await staging.stage_adapters(folders, target, {"inferencemodel-e00a": known})
    assert sorted(path.name for path in (target / "inferencemodel-e00a").iterdir()) == sorted(
        staging.ADAPTER_FILES
    )
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "host" / "file")
    with pytest.raises(UnsafePath):
        await staging.stage_adapters(folders, target, {"inferencemodel-e00b": known})
    _nothing_leaked(tmp_path)


async def test_a_fifo_in_place_of_a_file_is_refused(opened: Path, folders: ModelFolders) -> None:
    folder = write_model(opened / "bank")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(BadWeights, match="config.json"):
        await FolderReader().read(Location(opened, "bank"), None)


@pytest.mark.parametrize(
    "tensor",
    ["model.layers.0.+a.weight", "model.layers.0.--trust-remote-code.weight", "model.layers.0.a b.weight"],
)
async def test_layers_whose_names_are_options_are_refused(
    opened: Path, folders: ModelFolders, tensor: str
) -> None:
    folder = write_model(opened / "bank")
    layers = {"model.layers.0.self_attn.q_proj.weight": (8, 8), tensor: (8, 8)}
    write_safetensors(folder / "model.safetensors", layers)
    name = tensor.split(".")[3]
    with pytest.raises(BadWeights, match="is not a valid name of a layer") as refused:
        await FolderReader().read(Location(opened, "bank"), None)
    assert repr(name) in str(refused.value)


def test_no_word_of_a_model_becomes_an_option() -> None:
    modules = ("--trust-remote-code", "q_proj", "+a")
    view = ModelServerView(
        "bank",
        2048,
        4,
        1,
        max_adapters=1,
        adapter_rank=8,
        adapted_modules=modules,
    )
    words = server_arguments(view, "/model", host="0.0.0.0", port=1)
    assert "--trust-remote-code" not in words and words[words.index("--lora-target-modules") + 1 :] == [
        "q_proj"
    ]


def test_an_index_of_nonsense_is_no_crash(opened: Path, folders: ModelFolders) -> None:
    folder = write_model(opened / "bank")
    for content in ([], {"weight_map": {"a": 5}}, {"weight_map": []}, {"weight_map": {"a": "../x"}}):
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
        with Folder.open(folder) as found, pytest.raises(ValueError, match="index"):
            weights_digest(found)


def _nothing_leaked(tmp_path: Path) -> None:
    own = tmp_path / "home" / "models"
    files = [path for path in own.rglob("*") if path.is_file()]
    assert not any(path.is_symlink() or SECRET.encode() in path.read_bytes() for path in files)
