"""EVAL-01, TCO-07: `neo evaluate` and `neo tco --measure` ask a real vLLM through the gateway."""

from pathlib import Path

import pytest

from tests.e2e.inference.served import Served, conversation


def test_a_model_is_as_good_as_itself(served: Served, tmp_path: Path) -> None:
    data = tmp_path / "chats_test.jsonl"
    data.write_text("".join(f"{conversation(number)}\n" for number in range(12)))
    both = ("--base", served.name, "--candidate", served.name)
    few = ("--limit", "4", "--samples", "4", "--max-new-tokens", "16", "--batch", "4")
    report = served.cloud.neo_json("evaluate", *both, "--data", str(data), *few)
    base, candidate, details = report["base_model"], report["finetuned_model"], report["details"]
    assert details["is_complete"] and details["test_conversations"] == 4
    for each in (details["base_model"], details["finetuned_model"]):
        assert not each["errors"] and not each["remarks"], each
        assert each["tokens_per_second"] > 0 and 0 < each["tokens_per_message"] <= 16
    assert 1 < base["perplexity"] < 2000, "of a vocabulary of 1424 tokens"
    assert candidate["perplexity"] == pytest.approx(base["perplexity"], rel=0.02)
    assert len(base["sample_generations"]) == 4


def test_what_a_conversation_costs_at_the_speed_it_is_served(served: Served) -> None:
    found = served.cloud.neo_json("tco", "--measure", served.name)
    rows = {row["scenario"]: row for row in found["serving"]}
    speeds = [float(rows[f"{served.name}, {streams} at a time"]["tokens_per_second"]) for streams in (1, 16)]
    assert min(speeds) > 0  # on a busy machine either may be the greater
