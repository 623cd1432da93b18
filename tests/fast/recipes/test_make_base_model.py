"""The tiny base model: a folder like any hub download, made from text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

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
    sampling = json.loads((tiny_model / "generation_config.json").read_text("utf-8"))
    assert 0 < sampling["temperature"] < 0.5 and sampling["do_sample"]


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


def train_small_model(chats: Path, output: Path, *arguments: str) -> bytes:
    """Train for a few steps with the recipe; return the weights."""
    size = ["--hidden-size", "64", "--layers", "1", "--vocab-size", "400", "--context", "128"]
    batch = ["--window", "32", "--batch", "2"]
    assert make_base_model.main([str(chats), "--output", str(output), *size, *batch, *arguments]) == 0
    return (output / "model.safetensors").read_bytes()


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds_a_look: int) -> None:
    ticks = itertools.count(step=seconds_a_look)
    monkeypatch.setattr(make_base_model, "time", SimpleNamespace(monotonic=lambda: next(ticks)))


def test_a_slow_machine_trains_the_same_model(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_clock(monkeypatch, 1)
    fast = train_small_model(chats, tmp_path / "fast", "--max-steps", "6")
    set_clock(monkeypatch, 200)
    assert train_small_model(chats, tmp_path / "slow", "--max-steps", "6") == fast
    printed = capsys.readouterr().err
    assert printed.count("base step 6 of 6 ") == 2 and "warning" not in printed


def test_a_training_that_its_time_limit_ends_says_so(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_clock(monkeypatch, 10)
    train_small_model(chats, tmp_path / "model", "--max-steps", "6", "--max-seconds", "25")
    assert "stopped by --max-seconds 25 after 3 of 6 steps" in capsys.readouterr().err


def test_a_training_without_steps_is_refused(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_base_model.main([str(chats), "--output", str(tmp_path / "model"), "--max-steps", "0"]) == 1
    assert "--max-steps 0: must be at least 1" in capsys.readouterr().err
