"""The tiny base model: a folder like any hub download, made from text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import make_base_model
from chat_tokens import load_tokenizer
from lora_model import load_base
from recipe_errors import RecipeError


def test_the_folder_loads_like_a_hub_model(tiny_model: Path) -> None:
    config = json.loads((tiny_model / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    tokenizer = load_tokenizer(str(tiny_model))
    assert load_base(str(tiny_model)).config.vocab_size == len(tokenizer)
    assert tokenizer.eos_token == "<|im_end|>" != tokenizer.pad_token


def test_any_text_survives_the_tokenizer(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    text = "Grüße, 你好 🙂\n\tmid  spaces"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_conversations_are_read_as_single_messages_and_files_as_paragraphs(
    chats: Path, tmp_path: Path
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("One.\n\nTwo\nlines.\n\n\n", "utf-8")
    texts = make_base_model.read_texts([chats, text])
    assert texts[1] == "Please freeze card 0 in the app." and texts[-2:] == ["One.", "Two\nlines."]


def test_without_text_there_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n", "utf-8")
    with pytest.raises(RecipeError, match="no text"):
        make_base_model.read_texts([tmp_path / "a.txt"])


def test_an_existing_model_is_not_overwritten(
    chats: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_base_model.main([str(chats), "--output", str(tiny_model)]) == 1
    assert "exists already" in capsys.readouterr().err
