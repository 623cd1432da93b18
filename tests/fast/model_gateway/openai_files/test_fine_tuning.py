"""Fine-tuning jobs in OpenAI's words and in those of the published Nebius body (AIS-01, AIS-13)."""

import json
from typing import Any

import httpx
import pytest

from neocloud.model_gateway.composition import OpenAiFiles
from tests.fast.model_gateway.openai_files.conftest import client, upload
from tests.fast.model_gateway.openai_files.jobs import Jobs

CONVERSATION = {
    "messages": [{"role": "user", "content": "May I?"}, {"role": "assistant", "content": "You may."}]
}
GOOD = json.dumps(CONVERSATION).encode() + b"\n"
NEBIUS = {
    **{"batch_size": 8, "learning_rate": 1e-5, "n_epochs": 3, "warmup_ratio": 0, "weight_decay": 0},
    **{"packing": True, "max_grad_norm": 1, "context_length": 8192, "lora": False, "lora_r": 8},
    **{"lora_alpha": 8, "lora_dropout": 0},
}


async def make(http: httpx.AsyncClient, content: bytes = GOOD, **over: Any) -> httpx.Response:
    file_id = await upload(http, content, "fine-tune")
    return await http.post("fine_tuning/jobs", json={"model": "bank", "training_file": file_id, **over})


async def test_openais_body(alice: httpx.AsyncClient, jobs: Jobs) -> None:
    supervised = {"hyperparameters": {"n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": 1.5}}
    made = await make(
        alice,
        suffix="shop",
        seed=7,
        metadata={"team": "a"},
        method={"type": "supervised", "supervised": supervised},
        neocloud={"platform": "cpu-local", "merge": True},
    )
    assert made.status_code == 200, made.text
    job = made.json()
    assert (job["object"], job["status"], job["model"]) == ("fine_tuning.job", "validating_files", "bank")
    assert job["method"]["supervised"]["hyperparameters"] == {"n_epochs": 2, "learning_rate_multiplier": 1.5}
    assert job["hyperparameters"]["batch_size"] == "auto"
    [row] = jobs.jobs.values()
    assert row.metadata.parent_id == "project-a"
    assert row.metadata.name.startswith("ft-shop-")
    assert (row.spec.model_id, row.spec.seed, row.spec.merge) == ("inferencemodel-bank", 7, True)
    assert not row.spec.hyperparameters.HasField("batch_size")
    assert jobs.authorizations == {"Bearer alice"}


async def test_an_object_of_a_bucket_is_left_to_the_job(alice: httpx.AsyncClient, jobs: Jobs) -> None:
    """The control plane checks the caller's right to it."""
    url = "s3://data-sets/chats.jsonl"
    body = {"model": "bank", "training_file": url, "validation_file": url}
    made = await alice.post("fine_tuning/jobs", json=body)
    assert made.status_code == 200, made.text
    assert made.json()["training_file"] == url
    [row] = jobs.jobs.values()
    assert (row.spec.training_file, row.spec.validation_file) == (url, url)
    assert jobs.authorizations == {"Bearer alice"}


async def test_a_gate_is_an_object_and_its_verdict_is_returned(alice: httpx.AsyncClient, jobs: Jobs) -> None:
    gate = {"rules": [{"rule": "better", "metric": "perplexity", "percent": 10}]}
    made = (await make(alice, neocloud={"gate": gate})).json()
    assert made["gate"] is None
    [row] = jobs.jobs.values()
    assert json.loads(row.spec.gate) == gate
    row.status.gate.rules.add(asked="perplexity", measured="10 to 9.5", passed=False, why="too little")
    found = (await alice.get(f"fine_tuning/jobs/{made['id']}")).json()["gate"]
    rule = {"asked": "perplexity", "measured": "10 to 9.5", "passed": False, "why": "too little"}
    assert found == {"passed": False, "rules": [rule]}


PREFERENCE = {
    "input": {"messages": CONVERSATION["messages"][:1]},
    "preferred_output": CONVERSATION["messages"][1:],
    "non_preferred_output": [{"role": "assistant", "content": "No."}],
}
GRADER = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}


async def test_a_job_on_preferences(alice: httpx.AsyncClient, jobs: Jobs) -> None:
    wanted = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": "auto"}}}
    made = await make(alice, json.dumps(PREFERENCE).encode(), method=wanted)
    assert made.status_code == 200, made.text
    assert made.json()["method"] == {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}}
    [row] = jobs.jobs.values()
    assert row.spec.Method.Name(row.spec.method) == "DPO" and not row.spec.grader
    refused = await make(alice, GOOD, method=wanted)
    assert refused.json()["error"]["code"] == "invalid_training_file"
    assert "Line 1: a preference has 'input'" in refused.json()["error"]["message"]


async def test_a_job_on_rewards(alice: httpx.AsyncClient, jobs: Jobs) -> None:
    settings = {"grader": GRADER, "hyperparameters": {"num_generations": 4, "compute_multiplier": "auto"}}
    wanted = {"type": "reinforcement", "reinforcement": settings}
    task = json.dumps({"messages": CONVERSATION["messages"][:1], "answer": "You may."}).encode()
    made = await make(alice, task, method=wanted)
    assert made.status_code == 200, made.text
    found = made.json()["method"]["reinforcement"]
    assert found == {"grader": GRADER, "hyperparameters": {"num_generations": 4}}
    [row] = jobs.jobs.values()
    row.status.evaluation.base_reward, row.status.evaluation.fine_tuned_reward = 0.25, 0.5
    row.status.evaluation.conversations = 8
    shown = (await alice.get(f"fine_tuning/jobs/{made.json()['id']}")).json()["evaluation"]
    assert shown == {"base_reward": 0.25, "fine_tuned_reward": 0.5, "conversations": 8}
    without = await make(alice, task.replace(b"answer", b"other"), method=wanted)
    assert "the grader reads 'item.answer'" in without.json()["error"]["message"]


async def test_the_nebius_body(alice: httpx.AsyncClient, jobs: Jobs) -> None:
    made = await make(alice, hyperparameters=NEBIUS)
    assert made.status_code == 200, made.text
    [row] = jobs.jobs.values()
    got = {field.name: value for field, value in row.spec.hyperparameters.ListFields()}
    assert got == NEBIUS


@pytest.mark.parametrize(
    ("over", "param"),
    [
        ({"model": "none"}, "model"),
        ({"training_file": "file-none"}, "training_file"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]}, "integrations"),
        ({"method": {"type": "distillation"}}, "method"),
        ({"method": {"type": "dpo", "dpo": {"grader": {}}}}, "grader"),
        ({"method": {"type": "dpo", "supervised": {}}}, "supervised"),
        ({"method": {"type": "dpo"}, "hyperparameters": {"n_epochs": 1}}, "hyperparameters"),
        (
            {
                "method": {
                    "type": "reinforcement",
                    "reinforcement": {"hyperparameters": {"reasoning_effort": "low"}},
                }
            },
            "reasoning_effort",
        ),
        (
            {"method": {"type": "reinforcement", "reinforcement": {"grader": "x"}}},
            "method.reinforcement.grader",
        ),
        ({"hyperparameters": {"n_epochs": 1.5}}, "n_epochs"),
        ({"hyperparameters": {"packing": 1}}, "packing"),
        ({"hyperparameters": {"learning_rate": "fast"}}, "learning_rate"),
        ({"hyperparameters": {"momentum": 1}}, "momentum"),
        ({"from_checkpoint": "x"}, "from_checkpoint"),
        ({"neocloud": {"gpus": 1}}, "gpus"),
        ({"neocloud": {"gate": "strict"}}, "neocloud.gate"),
        ({"seed": "x"}, "seed"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    alice: httpx.AsyncClient, jobs: Jobs, over: dict[str, Any], param: str
) -> None:
    refused = await make(alice, **over)
    assert refused.status_code in (400, 404)
    assert refused.json()["error"]["param"] == param
    assert jobs.jobs == {}


async def test_a_bad_line_is_named_before_a_job_is_made(alice: httpx.AsyncClient, jobs: Jobs) -> None:
    bad = {"messages": [*CONVERSATION["messages"], {"role": "user", "content": "And?"}]}
    refused = await make(alice, GOOD + json.dumps(bad).encode())
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (
        400,
        "invalid_training_file",
        "training_file",
    )
    assert "Line 2: column 'messages': the last message must have the role assistant" in error["message"]
    assert jobs.jobs == {}


async def test_a_file_for_batches_is_refused(alice: httpx.AsyncClient) -> None:
    file_id = await upload(alice, GOOD, "batch")
    refused = await alice.post("fine_tuning/jobs", json={"model": "bank", "training_file": file_id})
    assert refused.json()["error"]["message"].endswith('upload it with the purpose "fine-tune".')


async def test_cancel_pause_resume(alice: httpx.AsyncClient) -> None:
    job_id = (await make(alice)).json()["id"]
    for verb, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        assert (await alice.post(f"fine_tuning/jobs/{job_id}/{verb}")).json()["status"] == status


async def test_lists(alice: httpx.AsyncClient) -> None:
    ids = [(await make(alice, metadata={"n": str(n)})).json()["id"] for n in range(3)]
    first = (await alice.get("fine_tuning/jobs", params={"limit": 2})).json()
    assert ([job["id"] for job in first["data"]], first["has_more"]) == (ids[:0:-1], True)
    found = (await alice.get("fine_tuning/jobs", params={"metadata[n]": "0"})).json()["data"]
    assert [job["id"] for job in found] == ids[:1]
    events = (await alice.get(f"fine_tuning/jobs/{ids[0]}/events", params={"limit": 1})).json()
    [event] = events["data"]
    assert (event["data"], event["type"]) == ({"step": 10, "train_loss": 2.5}, "metrics")
    checkpoints = (await alice.get(f"fine_tuning/jobs/{ids[0]}/checkpoints")).json()["data"]
    assert [each["metrics"] for each in checkpoints] == [
        {"step": 20, "train_loss": 1.5, "valid_loss": 1.75},
        {"step": 10, "train_loss": 2.5},
    ]


async def test_a_job_of_another_tenant_does_not_exist(alice: httpx.AsyncClient, objects: OpenAiFiles) -> None:
    job_id = (await make(alice)).json()["id"]
    async with client(objects, "mallory") as mallory:
        for verb, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/events")):
            answer = await mallory.request(verb, f"fine_tuning/jobs/{job_id}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")
    assert (await alice.get(f"fine_tuning/jobs/{job_id}")).json()["status"] == "validating_files"
