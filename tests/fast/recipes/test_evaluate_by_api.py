"""`neo evaluate` through the API says what the recipe says inside a job: the same keys and numbers, on the
same model and data. EVAL-01, EVAL-02, EVAL-04, FORM-04."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import conversations as recipe_conversations
import evaluator
from chat_tokens import ChatEncoder, load_tokenizer
from generation import generate, perplexity
from lora_model import load_base
from neocloud.cli.evaluation import scores
from neocloud.cli.evaluation.conversations import choose_questions, read_conversations
from neocloud.cli.main import run
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, Profiles, config_file, write_profiles
from tests.fast.cli.evaluation.served_model import KEY, ServedModel, running
from tests.fast.recipes.conftest import CHATS, write_chats

UMLAUTS = [
    {"role": "system", "content": "Answer für the bank – briefly."},
    {"role": "user", "content": "Überweisung nach Köln?"},
    {"role": "assistant", "content": "Öffnen Sie „Senden“ – fünf € genügen."},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chats(tmp_path_factory.mktemp("data") / "chats_test.jsonl", [*CHATS[:5], UMLAUTS])


@pytest.fixture(scope="module")
def served(tiny_model: Path) -> Iterator[ServedModel]:
    with running(ServedModel(tiny_model)) as model:
        yield model


@pytest.fixture
def fresh(served: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    """A person with a profile, and a model that does nothing wrong yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("NEOCLOUD_HOME", raising=False)
    write_profiles(Profiles().with_profile(Profile("test", "127.0.0.1:1", "none")), config_file())
    served.refuse_every, served.gives_logprobs = 0, True
    served.requests.clear()
    return served


def evaluate(served: ServedModel, data: Path, *more: str) -> int:
    names = [
        "evaluate",
        "--base",
        "tiny",
        "--candidate",
        "bank",
        "--data",
        str(data),
        "--gateway",
        served.url,
    ]
    return run([*names, "--max-new-tokens", "6", "--batch", "4", "--output", "json", *more])


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_perplexity_and_answers_are_those_of_the_recipe(
    fresh: ServedModel, data: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(fresh, data, "--metrics", "perplexity", "--metrics", "generation", "--show", "50") == 0
    by_api = report(capsys)["base_model"]

    chats = recipe_conversations.read_conversations(data)
    encoder = ChatEncoder(load_tokenizer(str(tiny_model)))
    model = load_base(str(tiny_model), torch.float32).eval()
    pad_id = encoder.tokenizer.pad_token_id
    assert by_api["perplexity"] == pytest.approx(
        perplexity(model, [encoder.encode(chat) for chat in chats], pad_id), rel=1e-5
    )
    questions = evaluator.choose_questions(chats, 32, 42, encoder)
    answers = generate(model, encoder, [one.prompt for one in questions], 6, 4)
    assert by_api["sample_generations"] == [
        {"input": one.input, "reference": one.reference, "generated": text}
        for one, text in zip(questions, answers.texts, strict=True)
    ]
    assert by_api["message_length_avg"] == sum(map(len, answers.texts)) / len(answers.texts)


def test_the_report_has_the_recipe_s_keys(
    fresh: ServedModel, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(fresh, data, "--limit", "3", "--samples", "2") == 0
    found = report(capsys)
    assert list(found) == ["base_model", "finetuned_model", "comparison", "details"]
    assert list(found["base_model"]) == ["perplexity", "message_length_avg", "sample_generations"]
    assert list(found["comparison"]) == ["perplexity", "speed", "message_length"]
    assert found["comparison"]["perplexity"] == found["comparison"]["message_length"] == 0.0
    assert found["details"]["base_model"]["tokens_per_second"] > 0
    assert found["details"]["comparison_signs"] == evaluator.SIGNS
    assert found["details"]["is_complete"] is True
    assert {request["model"] for request in fresh.requests} == {"tiny", "bank"}


@pytest.mark.parametrize("seed", [1, 42])
def test_the_same_questions_are_drawn(data: Path, tiny_model: Path, seed: int) -> None:
    encoder = ChatEncoder(load_tokenizer(str(tiny_model)))
    chats = recipe_conversations.read_conversations(data)
    shuffled = random.Random(seed).sample(chats, len(chats))[:4]
    by_recipe = evaluator.choose_questions(shuffled, 3, seed, encoder)
    by_api = choose_questions(read_conversations(data, 4, seed), 3, seed)
    assert [(one.input, one.reference) for one in by_api] == [(one.input, one.reference) for one in by_recipe]


def test_the_comparison_has_the_published_signs() -> None:
    pairs = {
        "perplexity": (7.033111572265625, 4.704128742218018),
        "speed": (22.99, 3.8),
        "length": (671.0, 125.1),
    }
    assert scores.comparison(**pairs)["perplexity"] == pytest.approx(33.11454405517637, abs=1e-12)
    assert scores.comparison(**pairs)["message_length"] == pytest.approx(-81.35618479880775, abs=1e-12)


def test_refused_requests_are_counted_and_said(
    fresh: ServedModel, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.refuse_every = 3
    assert evaluate(fresh, data, "--metrics", "perplexity") == 0
    printed = capsys.readouterr()
    [(words, count)] = json.loads(printed.out)["details"]["base_model"]["errors"].items()
    assert (words, count) == ("No replica is ready.", 2)
    assert "tiny: 2 of its requests failed: No replica is ready." in printed.err


def test_an_engine_without_log_probabilities_still_answers(
    fresh: ServedModel, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.gives_logprobs = False
    assert evaluate(fresh, data, "--metrics", "perplexity", "--metrics", "generation", "--samples", "1") == 0
    found = report(capsys)
    assert found["base_model"]["perplexity"] is None
    assert found["comparison"]["perplexity"] is None
    assert "no log-probabilities of prompts" in found["details"]["base_model"]["remarks"][0]


def test_the_scaling_from_one_to_sixteen_requests(
    fresh: ServedModel, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVAL-06."""
    monkeypatch.setattr("neocloud.cli.evaluation.client.SPEED_TOKENS", 2)
    assert evaluate(fresh, data, "--metrics", "scaling", "--samples", "2") == 0
    found = report(capsys)["details"]["finetuned_model"]["scaling"]
    assert found["percent_of_linear"] == pytest.approx(found["16_requests"] / found["one_request"] / 16 * 100)
    assert len(fresh.requests) == 2 * 2 * (1 + 16)


def gate_file(folder: Path, *rules: dict[str, object]) -> list[str]:
    path = folder / "gate.json"
    path.write_text(json.dumps({"rules": rules}))
    return ["--gate", str(path)]


def test_a_gate_decides_by_an_exit_code_of_its_own(
    fresh: ServedModel, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = gate_file(tmp_path, {"rule": "not_worse", "metric": "perplexity"})
    assert evaluate(fresh, data, "--metrics", "perplexity", *fine) == 0
    assert report(capsys)["details"]["gate"]["passed"] is True
    rules = (
        {"rule": "better", "metric": "perplexity", "percent": 10},
        {"rule": "at_most", "metric": "longest_message", "value": 10_000},
    )
    assert evaluate(fresh, data, "--metrics", "perplexity", *gate_file(tmp_path, *rules)) == 8
    printed = capsys.readouterr()
    verdict = json.loads(printed.out)["details"]["gate"]
    assert verdict["passed"] is False and [rule["passed"] for rule in verdict["rules"]] == [False, True]
    assert "FAILED: perplexity at least 10 % better. Measured:" in printed.err
    assert "passed: longest_message at most 10,000" in printed.err and "The gate FAILED." in printed.err


def test_a_gate_with_a_mistake_is_refused_before_anything_is_asked(
    fresh: ServedModel, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = gate_file(tmp_path, {"rule": "not_worse", "metric": "niceness"})
    assert evaluate(fresh, data, *unknown) == 2
    assert 'there is no metric "niceness" here; there are accuracy, bleu' in capsys.readouterr().err
    judged = gate_file(tmp_path, {"rule": "at_least", "metric": "judge_preference", "value": 0.5})
    assert evaluate(fresh, data, *judged) == 2
    assert evaluate(fresh, data, "--gate", str(tmp_path / "none.json")) == 2
    assert not fresh.requests


def test_a_judge_reads_the_answers_of_both(
    fresh: ServedModel, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(fresh, data, "--metrics", "generation", "--samples", "2", "--judge", "umpire") == 0
    printed = capsys.readouterr()
    judge = json.loads(printed.out)["details"]["judge"]
    assert judge["model"] == "umpire" and judge["judged"] + judge["unparsable"] == 2
    asked = [body["messages"] for body in fresh.requests if body["model"] == "umpire"]
    assert len(asked) == 4 and all("Answer B:" in messages[-1]["content"] for messages in asked)


def test_nothing_measured_is_a_failure(
    fresh: ServedModel, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.refuse_every = 1
    assert evaluate(fresh, data) == 5
    assert "Nothing could be measured of tiny: No replica is ready" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(
    fresh: ServedModel, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ServedModel.answer

    def answer(self: ServedModel, body: dict[str, Any]) -> dict[str, Any]:
        if body["model"] == "bank":
            raise AssertionError("never asked")
        return asked(self, body)

    def interrupted(*_: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServedModel, "answer", answer)
    monkeypatch.setattr("neocloud.cli.evaluation.client.Model.tokens_per_second", interrupted)
    assert evaluate(fresh, data) == 130
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["base_model"]["perplexity"] > 1
    assert found["finetuned_model"]["perplexity"] is None
    assert found["details"]["is_complete"] is False
    assert "interrupted" in printed.err


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"messages": [}', "line 2: broken JSON"),
        ('{"messages": []}', "line 2: 'messages' must be a list"),
        ('{"messages": [{"role": "user", "content": " "}]}', "line 2, message 1: the content is missing"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "line 2, message 1: the role must be one of"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "line 2: roles must be an optional system"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = write_chats(tmp_path / "bad.jsonl", CHATS[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ClientError, match=complaint.replace("(", r"\(")):
        read_conversations(path, 0, 42)
