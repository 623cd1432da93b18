"""EVAL-01..05: base against fine-tuned, as JSON with the known keys on stdout."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import dataset_tokenize
import evaluator
import finetune
import report_table
from chat_tokens import ChatEncoder, load_tokenizer
from generation import generate, perplexity, until_end
from lora_model import load_base
from tests.fast.recipes.conftest import ALONE, CHATS, write_chats

INTENTS = [
    [{"role": "user", "content": text}, {"role": "assistant", "content": intent}]
    for number in range(8)
    for text, intent in ((f"my card {number} is lost", "lost"), (f"pay {number} euros", "pay"))
]


@pytest.fixture(scope="module")
def classifier(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Test data with two intents, and an adapter that has learnt them."""
    folder = tmp_path_factory.mktemp("classifier")
    data = write_chats(folder / "intents.jsonl", INTENTS)
    assert dataset_tokenize.main([str(data), "--model", str(tiny_model), "--context", "64", *ALONE]) == 0
    settings = ["max_steps=60", "learning_rate=0.02", "per_device_train_batch_size=8", "save_steps=0"]
    flags = [word for setting in settings for word in ("--set", setting)]
    places = ["--model", str(tiny_model), "--data", str(data.with_suffix(".arrow"))]
    assert finetune.main([*places, *flags, "--output-dir", str(folder)]) == 0
    return data, folder / "adapter"


@pytest.fixture(scope="module")
def report(classifier: tuple[Path, Path], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, adapter = classifier
    args = evaluator.parser().parse_args(
        ["--model", str(tiny_model), "--adapter", str(adapter), "--data", str(data)]
        + ["--accuracy", "--scaling", "--samples", "6", "--show", "2", "--max-new-tokens", "8"]
        + ["--speed-tokens", "4"]
    )
    path = tmp_path_factory.mktemp("report") / "report.json"
    path.write_text(json.dumps(evaluator.evaluate(args)), "utf-8")
    return path


def test_the_report_has_exactly_the_known_keys_and_ours_apart(report: Path) -> None:
    found = json.loads(report.read_text("utf-8"))
    assert list(found) == ["base_model", "finetuned_model", "comparison", "details"]
    for model in ("base_model", "finetuned_model"):
        assert list(found[model]) == ["perplexity", "message_length_avg", "sample_generations"]
        assert len(found[model]["sample_generations"]) == 2
        assert list(found[model]["sample_generations"][0]) == ["input", "reference", "generated"]
    assert list(found["comparison"]) == ["perplexity", "speed", "message_length"]


def test_the_comparison_follows_from_the_two_models(report: Path) -> None:
    found = json.loads(report.read_text("utf-8"))
    base, finetuned = found["base_model"], found["finetuned_model"]
    fell = (base["perplexity"] - finetuned["perplexity"]) / base["perplexity"] * 100
    assert found["comparison"]["perplexity"] == pytest.approx(fell) and fell > 0
    speeds = [found["details"][model]["tokens_per_second"] for model in ("base_model", "finetuned_model")]
    assert found["comparison"]["speed"] == pytest.approx((speeds[1] - speeds[0]) / speeds[0] * 100)


def test_the_fine_tuned_model_names_the_intents_and_the_base_does_not(report: Path) -> None:
    details = json.loads(report.read_text("utf-8"))["details"]
    assert details["intents_in_test"] == 2 and details["accuracy_by_chance"] == 0.5
    assert details["base_model"]["accuracy"] == 0 and details["finetuned_model"]["accuracy"] > 0.9


def test_the_answers_shown_are_of_questions_asked_alone(report: Path) -> None:
    answers = json.loads(report.read_text("utf-8"))["details"]["right_answers"]
    assert answers["asked"] == 6 and answers["base_model"] == 0 < answers["finetuned_model"]
    assert {"input", "reference", "base", "generated"} == answers["learnt"][0].keys()


def test_scores_have_intervals_and_the_report_has_the_scaling(report: Path) -> None:
    details = json.loads(report.read_text("utf-8"))["details"]
    accuracy, scaling = details["scores"]["accuracy"], details["finetuned_model"]["scaling"]
    assert accuracy["samples"] == 16 and accuracy["difference"]["low"] > 0
    assert details["scores"]["perplexity"]["percent"]["bounds"]["95"][1] < 0
    assert scaling["percent_of_linear"] == pytest.approx(
        scaling["16_requests"] / scaling["one_request"] / 16 * 100
    )
    assert details["regressions"]["among"] == 6


def test_only_json_goes_to_stdout(
    classifier: tuple[Path, Path], tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, adapter = classifier
    places = ["--model", str(tiny_model), "--adapter", str(adapter), "--data", str(data)]
    assert evaluator.main([*places, "--samples", "1", "--limit", "2", "--max-new-tokens", "4"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["details"]["test_conversations"] == 2
    assert "fine-tuned model: measured in" in captured.err


def test_the_table_shows_both_models(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluator.main(["--table", str(report)]) == 0
    shown = capsys.readouterr().out
    assert report_table.main([str(report)]) == 0
    assert capsys.readouterr().out == shown
    assert "perplexity" in shown and "accuracy, exact match" in shown and "customer:" in shown
    assert "right answers of 6" in shown


def test_a_file_that_is_no_report_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text("{}", "utf-8")
    assert evaluator.main(["--table", str(tmp_path / "report.json")]) == 1
    assert "not a report" in capsys.readouterr().err


def test_what_is_missing_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluator.main(["--model", "m"]) == 1
    assert "needs --adapter --data" in capsys.readouterr().err


def test_an_adapter_folder_without_adapter_is_told(
    chats: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--model", str(tiny_model), "--adapter", str(tmp_path), "--data", str(chats)]
    assert evaluator.main([*places, "--samples", "1", "--max-new-tokens", "2"]) == 1
    assert "no adapter_config.json" in capsys.readouterr().err


def test_perplexity_is_that_of_the_labels_alone_and_ignores_batching(tiny_model: Path) -> None:
    model = load_base(str(tiny_model)).eval()
    encoder = ChatEncoder(load_tokenizer(str(tiny_model)))
    examples = [encoder.encode(messages) for messages in CHATS]
    losses = []
    with torch.inference_mode():
        for ids, labels in examples:
            scores = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
            losses += [-float(scores[place - 1, label]) for place, label in enumerate(labels) if label >= 0]
    expected = math.exp(sum(losses) / len(losses))
    assert perplexity(model, examples, 0) == pytest.approx(expected, rel=1e-4)


def test_an_answer_does_not_depend_on_its_neighbours_in_the_batch(tiny_model: Path) -> None:
    model = load_base(str(tiny_model)).eval()
    encoder = ChatEncoder(load_tokenizer(str(tiny_model)))
    prompts = [encoder.prompt(messages[:1]) for messages in (CHATS[0], INTENTS[1], INTENTS[0])]
    together = generate(model, encoder, prompts, 12, batch_size=3)
    alone = [generate(model, encoder, [prompt], 12, batch_size=1).texts[0] for prompt in prompts]
    assert together.texts == alone and together.tokens <= 36


def test_tokens_after_the_end_of_an_answer_do_not_count() -> None:
    assert until_end([5, 6, 2, 0, 0], {2, 0}) == [5, 6, 2]
    assert until_end([5, 6], {2}) == [5, 6]
