"""IAC-03: pages on models, followed with a real vLLM: one is asked a question, and one is fine-tuned."""

from pathlib import Path

from tests.e2e.inference.adapter import write_adapter
from tests.e2e.inference.served import Served, conversation
from tests.e2e.reader import follow
from tests.real.guides.session import Reader


def test_a_question_is_asked(served: Served, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "bank", served.model)
    served.cloud.neo("model", "add", "bank", str(adapter), "--base", "tiny")
    try:
        served.wait_for_adapters("bank")
        said = follow(served.cloud, "docs/guides/chat.md", tmp_path, runs=("neo chat bank --once",))
    finally:
        served.cloud.neo("model", "delete", "bank")
    assert " tokens in, " in said, "figures follow the answer"
    served.wait_for_adapters()


def test_a_file_becomes_a_model_that_answers(served: Served, tmp_path: Path) -> None:
    """With few conversations, so that it takes few steps."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "chats.jsonl").write_text("".join(f"{conversation(number)}\n" for number in range(12)))
    (work / "held-out.jsonl").write_text("".join(f"{conversation(number)}\n" for number in range(12, 14)))
    rows = [f"Question {number}?,Answer {number}." for number in range(12)]
    (work / "chats.csv").write_text("\n".join(["question,answer", *rows, ""]))
    looks = ("neo tuning job list", "neo tuning job get", "neo tuning job events", "neo tuning job logs")
    reader = Reader(stands_for={"--base smollm2": "--base tiny"})
    said = follow(served.cloud, "docs/guides/tuning.md", tmp_path, runs=("neo tune ", *looks), reader=reader)
    (name,) = (line.split()[-1] for line in said.splitlines() if line.startswith("New model: "))
    assert f"\n{name}: " in said and "\nChat with it: neo chat " in said
    assert "SUCCEEDED" in said
    assert "This was a trial: nothing was created" in said and "question" in said
    served.cloud.neo("model", "delete", name)
    served.wait_for_adapters()
