"""Recipes are scripts, not a package: their folder is put on the path, as when one is run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests import ROOT

RECIPES = ROOT / "recipes"
sys.path.insert(0, str(RECIPES))

import make_base_model  # noqa: E402
from tests.fast.recipes.data_reader import Reader  # noqa: E402

torch.set_num_threads(1)  # models this small gain nothing from more

ALONE = ("--workers", "1")
"""For a script that runs in the tests' process: it has threads, so a forked worker may hang or die."""
CHATS = [
    [
        {"role": "user", "content": f"I lost my card number {number}."},
        {"role": "assistant", "content": f"Please freeze card {number} in the app."},
        {"role": "user", "content": "And then?"},
        {"role": "assistant", "content": "Then order a new one."},
    ]
    for number in range(12)
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of the training libraries about themselves are not ours to fail on."""
    for item in items:
        if item.path.parent.name == "recipes":
            for module in ("transformers", "torch", "peft"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::Warning:{module}"))


def write_chats(path: Path, chats: list[list[dict[str, str]]] = CHATS) -> Path:
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), "utf-8")
    return path


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return write_chats(tmp_path / "chats.jsonl")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model of the smallest size, made by the recipe itself."""
    folder = tmp_path_factory.mktemp("tiny")
    text = write_chats(folder / "text.jsonl")
    output = folder / "base_model"
    size = ["--hidden-size", "64", "--layers", "1", "--vocab-size", "400", "--context", "128"]
    train = ["--max-steps", "3", "--window", "32", "--batch", "2"]
    assert make_base_model.main([str(text), "--output", str(output), *size, *train]) == 0
    return output


@pytest.fixture
def reader(capsys: pytest.CaptureFixture[str]) -> Reader:
    return Reader(capsys)
