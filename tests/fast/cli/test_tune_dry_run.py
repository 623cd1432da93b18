"""`neo tune --dry-run`: what is understood of the data, tokens, and the estimate; nothing is uploaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from neocloud.cli.commands.tuning import data_view
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer
from tests.fast.cli.test_tune import JOBS, MODELS, TRY, Cloud, cloud_with_jobs, uploads

__all__ = ["cloud_with_jobs", "uploads"]
TOKENIZER, ESTIMATE = f"{MODELS}/ReadTokenizer", f"{JOBS}/Estimate"
TEMPLATE = "{% for m in messages %}{{ '\\n' }}<{{ m.role }}> {{ m.content }} <end>{% endfor %}"


def tokenizer_files() -> dict[str, bytes]:
    """A tokenizer of words."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "<end>": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    tokenizer.add_special_tokens(["<end>"])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "chat_template": TEMPLATE}
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


def answered(method: str, **content: Any) -> Any:
    return contract.from_dict(contract.method(method).output, content)


@pytest.fixture
def server(cloud_with_jobs: Cloud) -> FakeServer:
    server = cloud_with_jobs.server

    def attempt(request: Any) -> Any:
        job = contract.message("neocloud.tuning.v1.FineTuningJob")(spec=contract.unpack(request.request).spec)
        return contract.method(TRY).output(resource=contract.pack(job))

    def estimate(request: Any) -> Any:
        used = {"n_epochs": 3, "batch_size": 4, "context_length": 256, "learning_rate": 0.001}
        answer = {"hyperparameters": used, "trained_tokens": 3 * request.data.tokens}
        known = {"measured_job_id": "finetuningjob-e00old", "tokens_per_second": 10.0, "seconds": 7200}
        return answered(ESTIMATE, **answer, **(known if request.spec.preset else {}))

    server.serve(TRY, attempt)
    server.serve(ESTIMATE, estimate)
    price = "nebius.billing.v1.CalculatorService/EstimateBatch"
    cost = {"aggregation_unit": {"unit": "hour"}, "general": {"total": {"cost": "0.25"}}}
    server.serve(price, answered(price, currency="USD", total_costs=[cost]))
    return server


DryRun = Callable[..., Any]


@pytest.fixture
def dry_run(signed_in: Neo, server: FakeServer, uploads: list[Path], tmp_path: Path) -> DryRun:
    def call(rows: list[dict[str, Any]], *options: str) -> Any:
        data = tmp_path / "chats.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        ran = signed_in("tune", str(data), "--base", "bank", "--dry-run", *options)
        assert not uploads and not server.asked(f"{JOBS}/Create")
        return ran

    return call


ROWS = [{"prompt": f"Hello {n}", "completion": "Good day", "topic": "a"} for n in range(4)]


def test_data_tokens_examples_and_estimate(dry_run: DryRun, server: FakeServer) -> None:
    """Without a terminal, marks stand around what is learnt."""
    files = [{"name": name, "content": content} for name, content in tokenizer_files().items()]
    message = contract.method(TOKENIZER).output()
    for each in files:
        message.files.add(**each)
    server.serve(TOKENIZER, message)
    ran = dry_run([*ROWS, {"prompt": "I am ana@bank.example", "completion": "Hi", "topic": "b"}])
    assert ran.code == 0, ran.err
    out = [" ".join(line.split()) for line in ran.out.splitlines()]
    for line in (
        "Training data: chats.jsonl (jsonl)", "Rows 5", "Messages 5 user, 5 assistant", "prompt user",
        "topic not used", "e-mail addresses 1 1 line 5",
        "Evaluation data: a tenth of the training data is held out.",
        "--- line 1", "<user> Hello 0 <end>", "<assistant> {+Good day <end>+}", "Passes 3", "Truncated none",
    ):  # fmt: skip
        assert line in out, line
    assert "I am [e-mail address] <end>" in ran.out and "ana@" not in ran.out + ran.err
    assert any(line.startswith("Duration about 2 h 00 min, at 10 tokens a second as job") for line in out)
    assert "Cost about 0.5 USD" in out
    [first, second] = server.asked(ESTIMATE)
    size = first.data
    assert (size.conversations, size.tokens, second.data.tokens > 30) == (5, 0, True)
    assert server.asked(TOKENIZER)[0].id == "inferencemodel-e00bank"


def test_programs_get_the_same_as_json(dry_run: DryRun) -> None:
    """A part that could not be run says so."""
    ran = dry_run(ROWS, "-o", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["data"]["training"]["conversations"] == 4 and found["price"]["hour"] == "0.25"
    assert found["tokens"]["state"] == "not_run" and "tokenizer cannot be had" in found["tokens"]["reason"]
    assert found["estimate"]["state"] == "done" and found["estimate"]["are_tokens_counted"] is False
    assert found["estimate"]["seconds"] == "7200" and found["resource"]["spec"]["model_id"]


def test_bad_rows_are_listed_by_their_reasons(dry_run: DryRun) -> None:
    bad = {"prompt": "Hi", "completion": ""}
    ran = dry_run([ROWS[0], bad, bad, bad])
    assert ran.code == 2 and "The data cannot be trained on: chats.jsonl: line 2" in ran.err
    assert "error: message 2 (assistant) has no content" in ran.out and "line 2, line 3, line 4" in ran.out
    assert "Tokens: not_run: the data cannot be trained on" in ran.err


def test_an_evaluation_on_the_training_data_is_told(dry_run: DryRun, tmp_path: Path) -> None:
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps({"prompt": "hello 0", "completion": "GOOD  day"}) + "\n")
    ran = dry_run(ROWS, "--validation", str(held_out))
    assert ran.code == 0 and "1 of 1 conversations are in the training data, too, first: line 1" in ran.err


def test_personal_data_are_refused_when_asked(dry_run: DryRun) -> None:
    rows = [ROWS[0], {"prompt": "Card 4111 1111 1111 1111", "completion": "Thanks"}]
    assert dry_run(rows).code == 0
    ran = dry_run(rows, "--refuse-personal-data")
    assert ran.code == 2 and "hold personal data" in ran.err and "4111" not in ran.out + ran.err


def test_data_in_a_bucket_are_not_read(signed_in: Neo, server: FakeServer) -> None:
    ran = signed_in("tune", "s3://data-sets/chats.jsonl", "--base", "bank", "--dry-run")
    assert ran.code == 0, ran.err
    assert "not_run: the data lie in a bucket" in ran.err and not server.asked(ESTIMATE)


def test_a_job_refuses_personal_data_before_the_upload(
    signed_in: Neo, cloud_with_jobs: Cloud, uploads: list[Path], tmp_path: Path
) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text(json.dumps({"prompt": "Card 4111 1111 1111 1111", "completion": "Thanks"}) + "\n")
    ran = signed_in("tune", str(data), "--base", "bank")
    assert ran.code == 0 and "personal data: 1 card number in 1 conversation, first: line 1" in ran.err
    ran = signed_in("tune", str(data), "--base", "bank", "--refuse-personal-data")
    assert ran.code == 2 and "holds personal data: 1 card number" in ran.err.lower()
    assert len(uploads) == 1 and "4111" not in ran.err
    ran = signed_in("tune", "s3://data-sets/chats.jsonl", "--base", "bank", "--refuse-personal-data")
    requests = cloud_with_jobs.server.asked(f"{JOBS}/Create")
    assert ran.code == 0 and requests[-1].spec.refuse_personal_data is True


def test_a_terminal_shows_what_is_learnt_in_colour_and_obeys_no_text() -> None:
    """The words of a data set cannot move the cursor or forge marks of their own kind."""
    learnt = data_view._span("a\x1b[2Jb\u202e", "learnt", is_coloured=True)
    assert learnt.plain == "a\\x1b[2Jb\\u202e" and str(learnt.style) == data_view.STYLES["learnt"]
    assert data_view._span("a", "context", is_coloured=True).style == ""
    assert data_view._span("a", "cut", is_coloured=False).plain == "[-a-]"


CALLED = {"id": "c1", "type": "function", "function": {"name": "get_rate", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "get_rate"}}


def test_tools_that_a_template_drops_end_a_dry_run(dry_run: DryRun, server: FakeServer) -> None:
    message = contract.method(TOKENIZER).output()
    for name, content in tokenizer_files().items():
        message.files.add(name=name, content=content)
    server.serve(TOKENIZER, message)
    asked = [{"role": "user", "content": "Which rate?"}, {"role": "assistant", "tool_calls": [CALLED]}]
    ran = dry_run([{"messages": asked, "tools": [TOOL]}] * 2)
    assert ran.code and "does not show the tool 'get_rate'" in ran.err
    assert "in 2 conversations, 2 calls" in ran.out


def test_a_dry_run_of_preferences_and_of_tasks(dry_run: DryRun, server: FakeServer, tmp_path: Path) -> None:
    message = contract.method(TOKENIZER).output()
    for name, content in tokenizer_files().items():
        message.files.add(name=name, content=content)
    server.serve(TOKENIZER, message)
    preference = {"prompt": "Hello?", "chosen": "Good day", "rejected": "What?"}
    ran = dry_run([{**preference, "prompt": f"Hello {n}?"} for n in range(3)], "--method", "dpo")
    assert ran.code == 0, ran.err
    assert "<assistant> {+Good day <end>+}" in " ".join(ran.out.split()) and "chosen" in ran.out
    grader = tmp_path / "grader.json"
    check = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}"}
    grader.write_text(json.dumps({**check, "reference": "{{item.answer}}"}))
    tasks = [{"prompt": f"Hello {n}?", "answer": "Good day"} for n in range(3)]
    options = ("--method", "reinforcement", "--grader", str(grader))
    ran = dry_run(tasks, *options)
    assert ran.code == 0 and "the model writes the answers while it trains" in ran.out + ran.err, ran.err
    ran = dry_run([{"prompt": "Hello?"}, *tasks], *options)
    assert ran.code and "the grader reads 'item.answer'" in ran.err
