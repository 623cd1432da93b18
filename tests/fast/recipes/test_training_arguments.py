"""FT-09: one documented schema for the configuration, checked before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_errors import RecipeError
from tests.fast.recipes.conftest import RECIPES
from training_arguments import (
    FIELDS,
    TrainingArguments,
    create_training_arguments,
    explain,
    main,
    parse_overrides,
    require_places,
)

PLACES = {"model": "m", "data": "d", "output_dir": "o"}


def create(tmp_path: Path, **values: object) -> TrainingArguments:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PLACES | values), "utf-8")
    return create_training_arguments(path)


def test_values_come_from_the_file_and_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PLACES | {"lora_r": 4, "learning_rate": 1}), "utf-8")
    arguments = create_training_arguments(path, {"model": "other", "data": None, "lora_r": 8})
    assert (arguments.model, arguments.data, arguments.lora_r) == ("other", "d", 8)
    assert arguments.learning_rate == 1.0


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'learning_rat'; did you mean 'learning_rate'"):
        create(tmp_path, learning_rat=1e-4)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lora_r", "16", "expected int"),
        ("lora_r", True, "expected int"),
        ("lora_r", 0, "at least 1"),
        ("num_train_epochs", -1, "at least"),
        ("warmup_ratio", 2, "between 0 and 1"),
        ("mixed_precision", "fp8", "auto, no, bf16, fp16"),
        ("modules_to_save", "lm_head", "expected list"),
        ("load_in_4bit", "yes", "expected bool"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path: Path, key: str, value: object, message: str) -> None:
    with pytest.raises(RecipeError, match=f"{key} .*{message}"):
        create(tmp_path, **{key: value})


def test_model_data_and_output_must_be_given(tmp_path: Path) -> None:
    require_places(create(tmp_path))
    with pytest.raises(RecipeError, match="pass --output-dir"):
        require_places(create(tmp_path, output_dir=""))


@pytest.mark.parametrize(("text", "message"), [("{\n,", "line 2"), ("[]", "expected an object")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, "utf-8")
    with pytest.raises(RecipeError, match=message):
        create_training_arguments(path)


def test_overrides_are_json_or_text() -> None:
    pairs = ["lora_r=8", "target_modules=all-linear", 'modules_to_save=["lm_head"]']
    values = {"lora_r": 8, "target_modules": "all-linear", "modules_to_save": ["lm_head"]}
    assert parse_overrides(pairs) == values
    with pytest.raises(RecipeError, match="key=value"):
        parse_overrides(["lora_r"])


def test_the_readme_holds_the_schema_as_it_is() -> None:
    assert explain() in (RECIPES / "README.md").read_text("utf-8")
    assert all(field.metadata["help"] for field in FIELDS.values())


@pytest.mark.parametrize("path", sorted(RECIPES.glob("config_*.json")), ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path: Path) -> None:
    assert create_training_arguments(path, PLACES) is not None


def test_as_a_script_it_checks_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RECIPES / "config_tiny.json")]) == 0
    (tmp_path / "wrong.json").write_text('{"lora_rank": 8}', "utf-8")
    assert main([str(tmp_path / "wrong.json")]) == 1
    assert "did you mean 'lora_r'" in capsys.readouterr().err
