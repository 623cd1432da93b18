"""The folders from which a project may read models: open to all, or one project's alone."""

from pathlib import Path

import pytest

from neocloud.control_plane.settings_file import parse_arguments
from neocloud.services.inference.public import ModelFolders


def test_folders_of_projects_and_models_are_theirs_alone(tmp_path: Path) -> None:
    own, shared = tmp_path / "models", tmp_path / "shared"
    folders = ModelFolders(own, (shared,))
    mine = {"project_id": "project-e00mine", "model_id": "inferencemodel-e00mine"}
    assert folders.is_open(shared / "x", **mine) and not folders.is_open(own / "anybody" / "x", **mine)
    assert folders.is_open(own / "project-e00mine" / "x", **mine)
    assert folders.is_open(own / "inferencemodel-e00mine", **mine)
    assert not folders.is_open(own / "project-e00other" / "x", **mine)
    assert not folders.is_open(own / "inferencemodel-e00other", **mine)
    assert not folders.is_open(own / "inferencedeployment-e00other" / "x", **mine)
    assert not folders.is_open(own, **mine) and not folders.is_open(tmp_path, **mine)
    assert folders.is_copy(own / "project-e00mine" / "x", **mine)
    assert not folders.is_copy(own / "project-e00mine", **mine)
    assert not folders.is_copy(own / "anybody", **mine) and not folders.is_copy(shared / "x", **mine)


def test_an_opened_folder_that_holds_the_cloud_s_own_gives_nothing_away(tmp_path: Path) -> None:
    folders = ModelFolders(tmp_path / "models", (tmp_path,))
    other = tmp_path / "models" / "project-e00other" / "x"
    assert not folders.is_open(other, project_id="project-e00mine", model_id="inferencemodel-e00mine")


def test_folders_are_opened_one_by_one_and_never_all() -> None:
    _, settings = parse_arguments(["--model-folder", "/srv/one", "--model-folder", "/srv/two"])
    assert settings.model_folders == (Path("/srv/one"), Path("/srv/two"))
    with pytest.raises(SystemExit):
        parse_arguments(["--model-folder", "/"])
