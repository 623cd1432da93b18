"""Jobs that train all weights, on preferences and on rewards: settings, memory, and their models."""

import json
from pathlib import Path

import pytest
from neocloud.messages.neocloud.inference.v1 import ModelStatus
from neocloud.messages.neocloud.tuning.v1 import Hyperparameters

from neocloud.core import contract
from neocloud.services.compute.public import preset
from neocloud.services.tuning.rules.hyperparameters import BaseSize, DataSize, fill_in, warnings
from neocloud.services.tuning.rules.memory import choose_shape, fit_on
from neocloud.services.tuning.rules.outcome import Success, read_outcome
from tests.fast.services.tuning.cloud import CHAT, FakeCloud, add_model, create_job, fake_cloud, started_job

DATA, SMALL = DataSize(1000, 500_000, 900), BaseSize(135_000_000, 2048)
LARGE = ModelStatus(parameters=8_000_000_000, kv_bytes_per_token=147_456, adapter_bytes_per_rank=1_000_000)
PREFERENCE = {
    "input": {"messages": CHAT["messages"][:1]},
    "preferred_output": CHAT["messages"][1:],
    "non_preferred_output": [{"role": "assistant", "content": "No."}],
}
GRADER = {
    "type": "string_check",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
TASK = {"messages": CHAT["messages"][:1], "answer": "Good day."}


def test_all_weights_learn_slower_than_an_adapter() -> None:
    adapter, whole = (fill_in(Hyperparameters(lora=lora), DATA, SMALL) for lora in (True, False))
    assert whole.learning_rate == pytest.approx(adapter.learning_rate / 10, rel=0.1)
    assert not whole.lora and not whole.HasField("lora_r") and adapter.lora_r == 16


def test_the_published_body_trains_all_weights_and_says_what_it_does_not_use() -> None:
    asked = Hyperparameters(lora=False, lora_r=8, lora_alpha=8, learning_rate=1e-5)
    [said] = warnings(asked, fill_in(asked, DATA, SMALL))
    assert said.startswith("lora_r, lora_alpha are of LoRA, and not used")


@pytest.mark.parametrize("method", ["dpo", "reinforcement"])
def test_preferences_and_rewards_learn_slower_than_answers(method: str) -> None:
    used, plain = (fill_in(Hyperparameters(), DATA, SMALL, each) for each in (method, "supervised"))
    assert used.learning_rate == plain.learning_rate / 4 and used.n_epochs <= 3 and not used.packing
    assert used.beta == pytest.approx(0.1 if method == "dpo" else 0.0)
    assert used.HasField("num_generations") == (method == "reinforcement")
    if method == "reinforcement":
        assert used.context_length >= 256 + used.max_completion_tokens


def test_all_weights_take_the_memory_of_their_gradients_and_moments() -> None:
    shape = preset("cpu-local", "2vcpu-4gb")
    small = ModelStatus(parameters=135_000_000, kv_bytes_per_token=23_040, adapter_bytes_per_rank=200_000)
    assert (
        fit_on(Hyperparameters(), small, shape).fits
        and fit_on(Hyperparameters(lora=False), small, shape).fits
    )
    found = fit_on(Hyperparameters(lora=False), LARGE, shape)
    assert (
        not found.fits and "29.80 GiB of weights in 32 bits + 89.41 GiB for their gradients" in found.sentence
    )
    kept = fit_on(Hyperparameters(lora=False), LARGE, shape, "dpo")
    assert "59.60 GiB of weights in 32 bits" in kept.sentence, "beside the model that it started from"
    assert choose_shape(Hyperparameters(lora=False), LARGE, None) is None


def test_a_row_of_a_method_has_several_answers() -> None:
    shape = preset("cpu-local", "2vcpu-4gb")
    sentences = [
        fit_on(Hyperparameters(context_length=1000), LARGE, shape, method).sentence
        for method in ("supervised", "dpo", "reinforcement")
    ]
    for sentence, tokens in zip(sentences, ("1,000", "2,000", "8,000"), strict=True):
        assert f"for {tokens} tokens at a time" in sentence


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ({"base_reward": 0.25, "fine_tuned_reward": 0.5}, Success(9, 2, rewards=(0.25, 0.5))),
        (
            {"base_perplexity": 4, "fine_tuned_perplexity": 2, "perplexity_improvement": 50},
            Success(9, 2, 4.0, 2.0, 50.0),
        ),
        ({"base_reward": 0.25}, None),
        ({"base_reward": "1", "fine_tuned_reward": 1}, None),
        ({"base_reward": 1e300, "fine_tuned_reward": 1}, None),
        ({}, None),
    ],
)
def test_an_outcome_has_perplexities_or_rewards(document: dict[str, object], wanted: Success | None) -> None:
    counts = {"state": "succeeded", "trained_tokens": 9, "conversations": 2}
    assert read_outcome({**counts, **document}) == wanted


async def job_on(cloud: FakeCloud, row: object, **spec: object) -> str:
    file_id = cloud.upload(json.dumps(row) + "\n")
    return await started_job(cloud, training_file=file_id, **spec)


async def test_a_job_on_preferences_has_its_settings(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await job_on(cloud, PREFERENCE, method="DPO", hyperparameters={"beta": 0.3})
        wanted = cloud.recipes(job_id).wanted
        assert (wanted["method"], wanted["packing"], wanted["lora"]) == ("dpo", False, True)
        assert wanted["arguments"]["beta"] == 0.3 and wanted["arguments"]["max_length"] == wanted["context"]
        assert "grader" not in wanted


async def test_a_job_on_rewards_ends_with_the_rewards_of_both_models(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await job_on(cloud, TASK, method="REINFORCEMENT", grader=json.dumps(GRADER))
        recipes = cloud.recipes(job_id)
        wanted = recipes.wanted
        assert wanted["grader"] == GRADER and wanted["arguments"]["num_generations"] == 8
        assert wanted["arguments"]["max_completion_length"] == 256
        recipes.begin()
        recipes.reach(20)
        recipes.succeed(measured={"base_reward": 0.1, "fine_tuned_reward": 0.6})
        await cloud.until(job_id, "SUCCEEDED")
        found = (await cloud.job(job_id)).status.evaluation
        assert (found.base_reward, found.fine_tuned_reward, found.conversations) == (0.1, 0.6, 4)


async def test_all_weights_become_a_whole_model(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud, hyperparameters={"lora": False, "early_stopping_patience": 3})
        recipes = cloud.recipes(job_id)
        arguments = recipes.wanted["arguments"]
        assert arguments["lora"] is False and arguments["early_stopping_patience"] == 3
        assert "lora_r" not in arguments and recipes.wanted["lora"] is False
        recipes.begin()
        recipes.reach(20)
        recipes.succeed()
        await cloud.until(job_id, "SUCCEEDED")
        model_id = (await cloud.job(job_id)).status.fine_tuned_model_id
        get = contract.message("neocloud.inference.v1.GetModelRequest")(id=model_id)
        model = await cloud.call("neocloud.inference.v1.ModelService/Get", get)
        assert not model.spec.base_model_id


@pytest.mark.parametrize(
    ("row", "spec", "says"),
    [
        (CHAT, {"method": "DPO"}, "a preference has 'input'"),
        (
            {"messages": CHAT["messages"][:1]},
            {"method": "REINFORCEMENT", "grader": json.dumps(GRADER)},
            "the grader reads 'item.answer'",
        ),
        (CHAT, {"method": "REINFORCEMENT", "grader": json.dumps(GRADER)}, "the model answers it itself"),
        (
            TASK,
            {"method": "REINFORCEMENT", "grader": json.dumps({**GRADER, "operation": "regex"})},
            "operation must be one of",
        ),
    ],
)
async def test_rows_of_another_method_end_a_job_before_it_has_a_pod(
    tmp_path: Path, row: object, spec: dict[str, object], says: str
) -> None:
    async with fake_cloud(tmp_path) as cloud:
        file_id = cloud.upload(json.dumps(row) + "\n")
        job_id = await create_job(cloud, await add_model(cloud), training_file=file_id, **spec)
        await cloud.until(job_id, "FAILED")
        error = (await cloud.job(job_id)).status.error
        assert error.code == "invalid_training_file" and says in error.message
        assert cloud.pod(job_id) is None
