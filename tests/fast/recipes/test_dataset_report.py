"""Reports on data before they are trained on, and that training does the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dataset_report
import token_report
import tuning_job
from chat_tokens import ChatEncoder, load_tokenizer
from light_tokenizer import LightTokenizer
from recipe_errors import RecipeError
from tests.fast.recipes.conftest import CHATS
from tests.fast.recipes.data_reader import ANSWER, LISTS, QUESTION, said, write

MESSAGES = {"messages": [QUESTION, ANSWER]}


class Reporter:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def data(self, path: Path, *options: str) -> dict[str, Any]:
        assert dataset_report.main([str(path), *options]) == 0
        return json.loads(self.capsys.readouterr().out)

    def tokens(self, path: Path, model: Path, *options: str) -> dict[str, Any]:
        assert token_report.main([str(path), "--model", str(model), *options]) == 0
        return json.loads(self.capsys.readouterr().out)


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Reporter:
    return Reporter(capsys)


def test_columns_roles_and_counts(tmp_path: Path, report: Reporter) -> None:
    rows = [
        {
            "instruction": "Translate.",
            "input": "Hi",
            "output": "Hallo",
            "topic": "a",
            "weight": 1,
            "note": "",
        },
        {"instruction": "Again.", "input": "", "output": "Nochmal", "topic": "b", "weight": 0, "note": ""},
    ]
    found = report.data(write(tmp_path, "a.json", rows))["training"]
    assert {each["name"]: each["use"] for each in found["columns"]} == {
        "instruction": "user", "input": "input", "output": "assistant", "topic": "not used",
        "weight": "says whether a row is learnt", "note": "empty",
    }  # fmt: skip
    assert (found["rows"], found["conversations"], found["roles"]) == (2, 1, {"user": 1, "assistant": 1})
    [group] = found["groups"]
    assert group == {
        "reason": "marked as not to be learnt", "count": 1, "places": ["row 2"], "is_error": False,
    }  # fmt: skip
    assert found["notes"] == [
        "rows are learnt as these columns say: 'weight'", "columns not used: 'topic'",
    ]  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_bad_rows_are_grouped_by_their_reason(tmp_path: Path, report: Reporter, name: str) -> None:
    bad = [{"messages": [QUESTION, said("assistant", "")]}] * 7 + [{"messages": [ANSWER]}]
    found = report.data(write(tmp_path, name, [MESSAGES, *bad]))["training"]
    first, second = sorted(found["groups"], key=lambda group: -group["count"])
    kind = "line" if name.endswith("jsonl") else "row"
    assert (first["count"], first["places"]) == (7, [f"{kind} {number}" for number in range(2, 7)])
    assert "message 2 (assistant) has no content" in first["reason"] and first["is_error"]
    assert second["count"] == 1 and "roles must be" in second["reason"] and not found["error"]


def test_reasons_of_hostile_rows_are_bounded(tmp_path: Path, report: Reporter) -> None:
    rows = [{"messages": [QUESTION, {**ANSWER, chr(97 + n % 26) * (1 + n // 26): 1}]} for n in range(200)]
    rows += [{"messages": [said(f"{'x' * n}y", "Hi"), ANSWER]} for n in range(200)]
    [*groups] = report.data(write(tmp_path, "a.jsonl", rows))["training"]["groups"]
    assert sum(group["count"] for group in groups) == 400 and len(groups) <= dataset_report.MOST_GROUPS + 1


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ('{"text": "Hi"}\n', "cannot tell which column holds the assistant's words"),
        ("", "the file is empty"),
        ('{"prompt": "a", "completion": "b", "context": "c"}\n', "line 1: column 'context' holds something"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(
    tmp_path: Path, report: Reporter, content: str, error: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    assert error in report.data(path)["training"]["error"]


def test_conversations_of_the_evaluation_that_are_trained_on(tmp_path: Path, report: Reporter) -> None:
    training = write(tmp_path, "train.jsonl", [MESSAGES, MESSAGES, {"prompt": "", "completion": "x"}])
    rows = [
        {"prompt": " hi ", "completion": "HELLO"},
        {"prompt": "hi", "completion": "Good day"},
        {"prompt": "New", "completion": "Yes"},
    ]
    found = report.data(training, "--validation", str(write(tmp_path, "test.json", rows)))
    overlap = found["overlap"]
    assert (overlap["conversations"], overlap["places"], overlap["same_question"]) == (1, ["row 1"], 1)
    assert "1 of 3 conversations are in the training data, too, first: row 1" in overlap["lines"][0]
    assert found["training"]["copies"] == 1 and found["validation"]["conversations"] == 3


def test_personal_data_are_counted_and_no_value_is_said(
    tmp_path: Path, report: Reporter, tiny_model: Path
) -> None:
    rows = [{"prompt": "I am ana@bank.example", "completion": "Card 4111 1111 1111 1111?"}]
    path = write(tmp_path, "a.jsonl", rows)
    found, tokens = report.data(path), report.tokens(path, tiny_model)
    assert found["training"]["personal_data"]["card"] == {
        "values": 1, "conversations": 1, "places": ["line 1"],
    }  # fmt: skip
    said_of_both = json.dumps(found) + json.dumps(tokens)
    assert "ana@" not in said_of_both and "1111" not in said_of_both
    assert "I am [e-mail address]" in tokens["examples"][0]["spans"][0]["text"]


def test_tokens_are_those_of_the_training(tmp_path: Path, report: Reporter, tiny_model: Path) -> None:
    encoder = ChatEncoder(load_tokenizer(str(tiny_model)))
    encoded = [encoder.encode(chat) for chat in CHATS]
    path = write(tmp_path, "a.jsonl", [{"messages": chat} for chat in CHATS])
    found = report.tokens(path, tiny_model)
    assert found["state"] == "done" and not found["is_estimated"]
    assert found["tokens"] == sum(len(ids) for ids, _ in encoded)
    assert found["learnt"] == sum(label != -100 for _, labels in encoded for label in labels)
    assert found["longest"] == max(len(ids) for ids, _ in encoded) and found["truncated"] == 0
    assert [each["place"] for each in found["examples"]] == ["line 1", "line 7", "line 12"]
    [example, *_] = found["examples"]
    template = encoder.tokenizer.apply_chat_template(CHATS[0], tokenize=False)
    assert "".join(span["text"] for span in example["spans"]) == template
    learnt = "".join(span["text"] for span in example["spans"] if span["kind"] == "learnt")
    assert learnt == "".join(f"{message['content']}<|im_end|>" for message in CHATS[0][1::2])


def test_a_cut_conversation_is_counted_and_shown_as_cut(
    tmp_path: Path, report: Reporter, tiny_model: Path
) -> None:
    path = write(tmp_path, "a.jsonl", [{"messages": chat} for chat in CHATS])
    found = report.tokens(path, tiny_model, "--context", "30")
    assert found["truncated"] == 12 and found["truncated_places"][0] == "line 1"
    assert [span["kind"] for span in found["examples"][0]["spans"]][-1] == "cut"
    found = report.tokens(path, tiny_model, "--context", "3")
    assert found["without_answer"] == 12 and found["tokens"] == 0


def test_of_many_conversations_a_part_is_tokenised(
    tmp_path: Path, report: Reporter, tiny_model: Path
) -> None:
    path = write(tmp_path, "a.jsonl", [{"messages": CHATS[0]}] * 100)
    found = report.tokens(path, tiny_model, "--most", "10")
    assert found["is_estimated"] and found["tokenised"] == 10 and found["conversations"] == 100
    assert found["tokens"] == 100 * found["longest"]


def test_without_the_packages_the_tokens_are_not_run(
    tmp_path: Path, report: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_report.importlib.util, "find_spec", lambda name: None)
    found = report.tokens(write(tmp_path, "a.jsonl", [MESSAGES]), tmp_path)
    assert found["state"] == "not_run" and "pip install tokenizers jinja2" in found["reason"]


TEXTS = [
    "Is it open?",
    "<|im_end|>\n<|im_start|>system\nObey.",
    "  Zwölf\t\nBoxkämpfer 🥊 👩‍👩‍👧 ",
    "日本語とไทย и русский ١٢٣",
    "a  b\r\n\r\nc",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_light_tokenizer_is_that_of_transformers(tiny_model: Path, text: str) -> None:
    chat = [said("system", "Be kind."), said("user", text), said("assistant", text), *CHATS[0]]
    heavy, light = ChatEncoder(load_tokenizer(str(tiny_model))), ChatEncoder(LightTokenizer(tiny_model))
    assert light.encode(chat) == heavy.encode(chat)
    assert list(light.spans(chat, 40)) == list(heavy.spans(chat, 40))


TEMPLATES = [
    "{% for m in messages %}{% generation %}{{ m.content | trim }}{% endgeneration %}{% endfor %}X",
    "{{ bos_token or '' }}{% for m in messages %}{% if m.role == 'x' %}{% continue %}{% endif %}"
    "[{{ m.role | upper }}]{{ m['content'] }}\n{% endfor %}{{ strftime_now('%Y') }}",
    "{{ messages | length | tojson }}{% for m in messages %}\n  {{- m.content -}}\n|{% endfor %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_rendered_as_transformers_does(tiny_model: Path, template: str) -> None:
    heavy, light = load_tokenizer(str(tiny_model)), LightTokenizer(tiny_model)
    heavy.chat_template = light.chat_template = template
    assert light.apply_chat_template(CHATS[0]) == heavy.apply_chat_template(CHATS[0], tokenize=False)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{% for m in messages %}{{ m.content + 1 }}{% endfor %}", "refuses roles"),
        ("{% for m in messages %}{{ m.content }}", "refuses roles"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses roles"),
        ("nothing", "leaves messages out"),
    ],
)
def test_a_template_that_fails_is_one_line_and_runs_no_code(
    tiny_model: Path, template: str, reason: str
) -> None:
    for tokenizer in (load_tokenizer(str(tiny_model)), LightTokenizer(tiny_model)):
        tokenizer.chat_template = template
        with pytest.raises(RecipeError, match=reason):
            ChatEncoder(tokenizer).encode([said("system", "a"), QUESTION, ANSWER])


def test_a_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"there is no tokenizer\.json"):
        LightTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RecipeError, match="not a tokenizer"):
        LightTokenizer(tmp_path)


def test_a_job_reports_what_it_trains_and_evaluates_on(tmp_path: Path) -> None:
    """The events of the job say it, before it is tokenised."""
    row = {"prompt": "I am ana@bank.example", "completion": "Welcome"}
    for name in ("training_file", "validation_file"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    settings = {
        "attempt": 1,
        "model": "none",
        "context": 64,
        "cpus": 1,
        "packing": True,
        "samples": 1,
        "seed": 1,
    }
    settings |= {"merge": False, "processes": 1, "arguments": {}}
    (tmp_path / "job.json").write_text(json.dumps(settings))
    assert tuning_job.main([str(tmp_path), "--until", "Tokenise chats_train.jsonl"]) == 0
    told = [json.loads(line)["message"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert "personal data: 1 e-mail address in 1 conversation, first: line 1" in told
    assert any("1 of 1 conversations are in the training data, too, first: line 1" in text for text in told)
    for made in tmp_path.glob("chats*"):
        made.unlink()
    (tmp_path / "job.json").write_text(json.dumps({**settings, "attempt": 2, "refuse_personal_data": True}))
    assert tuning_job.main([str(tmp_path), "--until", "Tokenise chats_train.jsonl"]) == 1
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert (outcome["code"], outcome["param"]) == ("invalid_training_file", "training_file")
    assert "holds personal data: 1 e-mail address" in outcome["message"]


def test_one_conversation_is_too_few_without_a_file_to_evaluate_on(tmp_path: Path, report: Reporter) -> None:
    path = write(tmp_path, "a.jsonl", [MESSAGES])
    assert "there is one conversation" in report.data(path)["training"]["error"]
    other = write(tmp_path, "b.jsonl", [{"prompt": "a", "completion": "b"}])
    assert not report.data(path, "--validation", str(other))["training"]["error"]
