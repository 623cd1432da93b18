"""FT-07: labels only where the assistant speaks, whatever the chat template looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from chat_tokens import IGNORED, ChatEncoder, load_tokenizer
from recipe_errors import RecipeError

from .conftest import CHATS

# The essence of Qwen3's template: an empty reasoning block before the last answer only.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)


@pytest.fixture
def encoder(tiny_model: Path) -> ChatEncoder:
    return ChatEncoder(load_tokenizer(str(tiny_model)))


def spoken(encoder: ChatEncoder, messages: list[dict[str, str]]) -> str:
    _, labels = encoder.encode(messages)
    return encoder.tokenizer.decode([label for label in labels if label != IGNORED])


def test_labels_are_the_assistants_words_and_the_end_of_each_turn(encoder: ChatEncoder) -> None:
    first, second = CHATS[0][1]["content"], CHATS[0][3]["content"]
    assert spoken(encoder, CHATS[0]) == f"{first}<|im_end|>{second}<|im_end|>"


def test_the_ids_are_those_of_the_template(encoder: ChatEncoder) -> None:
    ids, labels = encoder.encode(CHATS[0])
    text = encoder.tokenizer.apply_chat_template(CHATS[0], tokenize=False)
    assert ids == encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(labels) == len(ids)


def test_words_that_look_like_the_template_do_not_move_the_labels(encoder: ChatEncoder) -> None:
    chat = [
        {"role": "user", "content": "assistant"},
        {"role": "assistant", "content": "user"},
        {"role": "user", "content": "@@1@@"},
        {"role": "assistant", "content": "assistant"},
    ]
    assert spoken(encoder, chat) == "user<|im_end|>assistant<|im_end|>"


def test_a_reasoning_block_of_the_template_is_not_learnt(encoder: ChatEncoder) -> None:
    encoder.tokenizer.chat_template = THINKING
    assert "think" not in spoken(encoder, CHATS[0])
    assert spoken(encoder, CHATS[0]).endswith("Then order a new one.<|im_end|>")
    assert encoder.prompt(CHATS[0][:3]).endswith("assistant\n<think>\n\n</think>\n\n")


def test_a_prompt_and_its_answer_are_what_training_saw(encoder: ChatEncoder) -> None:
    ids, _ = encoder.encode(CHATS[0])
    prompt = encoder.prompt(CHATS[0][:3])
    assert encoder.tokenizer.decode(ids).startswith(prompt + CHATS[0][3]["content"])
    assert encoder.turn_end() == "<|im_end|>"


def test_a_template_that_refuses_or_drops_messages_is_told(encoder: ChatEncoder) -> None:
    encoder.tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(RecipeError, match="refuses roles user, assistant.*no system role"):
        encoder.encode(CHATS[0])
    encoder.tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(RecipeError, match="leaves messages out"):
        encoder.encode(CHATS[0])


def test_a_folder_that_holds_no_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot load a tokenizer"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_without_a_chat_template_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_bytes((tiny_model / name).read_bytes())
    with pytest.raises(RecipeError, match="no chat template"):
        load_tokenizer(str(tmp_path))
