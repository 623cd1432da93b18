"""A gate of a fine-tuning job decides on its evaluation: a model that fails is kept and not served."""

import json
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.services.tuning.cloud import FakeCloud, add_model, create_job, fake_cloud, started_job

pytestmark = pytest.mark.slow

RULES = [
    {"rule": "better", "metric": "perplexity", "percent": 10},
    {"rule": "not_worse", "metric": "accuracy", "confidence": 95},
]
GATE = json.dumps({"rules": RULES})


def score(base: float, finetuned: float, bounds: list[float]) -> dict[str, Any]:
    change = {"value": finetuned - base, "bounds": {"95": bounds}}
    percent = {"value": (finetuned - base) / base * 100, "bounds": {"95": bounds}}
    return {
        "base_model": {"value": base},
        "finetuned_model": {"value": finetuned},
        "difference": change,
        "percent": percent,
    }


def report(least: float) -> str:
    """A report whose accuracy changed by at least this much."""
    scores = {"perplexity": score(10, 8, [-3, -1]), "accuracy": score(0.5, 0.6, [least, 0.2])}
    return json.dumps({"details": {"scores": scores}})


async def ended(cloud: FakeCloud, text: str, **spec: Any) -> tuple[Any, Any]:
    """Return a job with the gate that has left this report, and its model."""
    job_id = await started_job(cloud, gate=GATE, **spec)
    cloud.recipes(job_id).succeed(report=text)
    job = await cloud.until(job_id, "SUCCEEDED")
    row = await cloud.running.store.read(lambda tx: tx.get(job.status.fine_tuned_model_id))
    assert row is not None
    spec_class = contract.message("neocloud.inference.v1.ModelSpec")
    return job, spec_class.FromString(row.spec)


async def test_a_model_that_passes_is_as_any_other(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job, model = await ended(cloud, report(0.0))
        assert job.status.gate.passed and len(job.status.gate.rules) == 2
        assert model.withheld_by == ""
        assert cloud.recipes(job.metadata.id).wanted["accuracy"] is True


async def test_a_model_that_fails_is_kept_and_withheld_with_each_reason(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job, model = await ended(cloud, report(-0.1))
        assert not job.status.gate.passed and job.status.fine_tuned_model
        assert [rule.passed for rule in job.status.gate.rules] == [True, False]
        assert "with 95 % confidence" in job.status.gate.rules[1].why
        assert model.withheld_by == job.metadata.id
        path, model_id = "neocloud.tuning.v1.LineageService/GetLineage", job.status.fine_tuned_model_id
        graph = await cloud.call(path, id=model_id)
        assert graph.record.gate == job.status.gate
        assert {each.name: each.value for node in graph.nodes for each in node.facts}["gate"] == "failed"
        events = await cloud.job_call("ListEvents", "ListFineTuningEventsRequest", id=job.metadata.id)
        [said] = [event for event in events.items if "failed the gate" in event.message]
        assert said.level == "warn" and "accuracy not worse" in said.message


@pytest.mark.parametrize("text", ["broken", '{"details": {"scores": 3}}'])
async def test_an_evaluation_that_cannot_be_read_passes_no_gate(tmp_path: Path, text: str) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job, model = await ended(cloud, text)
        assert not job.status.gate.passed and model.withheld_by == job.metadata.id


async def test_a_link_in_place_of_the_evaluation_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(report(0.1))
    async with fake_cloud(tmp_path / "home") as cloud:
        job_id = await started_job(cloud, gate=GATE)
        recipes = cloud.recipes(job_id)
        (recipes.folder / "report.json").symlink_to(tmp_path / "good.json")
        recipes.succeed(report=None)
        job = await cloud.until(job_id, "FAILED")
        assert job.status.error.code == "bad_result"


async def test_a_gate_with_a_mistake_is_refused_with_the_request(tmp_path: Path) -> None:
    mistakes = {
        "{}": "missing required field `rules`",
        '{"rules": []}': "length >= 1",
        '{"rules": [{"rule": "at_least", "metric": "judge_preference", "value": 1}]}': "there is no metric",
        "[" * 9000: "no JSON of a gate",
    }
    async with fake_cloud(tmp_path) as cloud:
        model_id = await add_model(cloud)
        for gate, complaint in mistakes.items():
            refused = await cloud.refusal(
                "neocloud.tuning.v1.FineTuningJobService/Create",
                metadata={"parent_id": cloud.project_id},
                spec={"model_id": model_id, "training_file": "file-none", "gate": gate},
            )
            assert refused.code is contract.Code.INVALID_ARGUMENT
            assert "spec.gate" in refused.message and complaint in refused.message
        job_id = await create_job(cloud, model_id)
        assert not (await cloud.job(job_id)).status.HasField("gate")
