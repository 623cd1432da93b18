"""AIS-13: jobs on a fake engine; what the recipes leave is written by the tests."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from neocloud.core import contract
from neocloud.engines.base import Reference
from neocloud.services.tuning.render import ATTEMPT_LABEL, POD
from neocloud.services.tuning.types import work_folder
from neocloud.testing.waiting import until
from tests.fast.services.tuning.cloud import (
    JOBS,
    FakeCloud,
    add_model,
    create_job,
    fake_cloud,
    started_job,
)

pytestmark = pytest.mark.slow


def attempt_of(cloud: FakeCloud, job_id: str) -> str:
    pod = cloud.pod(job_id)
    return pod.manifest.labels[ATTEMPT_LABEL] if pod else ""


async def test_a_file_becomes_a_model_that_outlives_its_job(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud, suffix="bank", seed=7)
        recipes = cloud.recipes(job_id)
        assert recipes.wanted["seed"] == 7 and recipes.wanted["arguments"]["learning_rate"] == 5e-3
        recipes.reach(20)
        recipes.save(20)
        recipes.succeed()
        job = await cloud.until(job_id, "SUCCEEDED")
        assert job.status.fine_tuned_model == f"tiny:ft-bank-{job_id[-8:]}"
        assert job.status.trained_tokens == 2000 and job.status.evaluation.fine_tuned_perplexity == 2.5
        assert len(job.status.result_files) == 2 and not job.status.HasField("error")
        model_id = job.status.fine_tuned_model_id
        model = await cloud.row_when(model_id, lambda row: row is not None and row.state == "READY")
        assert model is not None and model.owner_id == ""
        await until(lambda: cloud.pod(job_id) is None)
        events = await cloud.job_call("ListEvents", "ListFineTuningEventsRequest", id=job_id)
        said = [event.message for event in events.items]
        assert said[0].startswith("The job was created") and said[-1].startswith("New fine-tuned model")
        checkpoints = await cloud.job_call("ListCheckpoints", "ListFineTuningCheckpointsRequest", id=job_id)
        assert [each.step_number for each in checkpoints.items] == [20]
        await cloud.job_call("Delete", "DeleteFineTuningJobRequest", id=job_id)
        await cloud.gone(job_id)
        assert not recipes.folder.exists()
        assert await cloud.running.store.read(lambda tx: tx.get(model_id)) is not None


async def test_a_bad_line_fails_the_job_with_its_place(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await create_job(cloud, await add_model(cloud))
        await until(lambda: cloud.pod(job_id) is not None)
        cloud.recipes(job_id).end(
            "failed",
            code="invalid_training_file",
            param="training_file",
            message="line 7: broken JSON",
            line=7,
        )
        job = await cloud.until(job_id, "FAILED")
        error = job.status.error
        assert (error.code, error.param) == ("invalid_training_file", "training_file")
        assert "line 7" in error.message
        await until(lambda: cloud.pod(job_id) is None)


async def test_pause_waits_for_the_checkpoint_and_resume_goes_on(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud)
        recipes = cloud.recipes(job_id)
        recipes.reach(5)
        of_earlier_release = {
            name: value for name, value in recipes.wanted["arguments"].items() if name != "save_keep_every"
        }
        (recipes.folder / "job.json").write_text(
            json.dumps({**recipes.wanted, "arguments": of_earlier_release})
        )
        await cloud.job_call("Pause", "PauseFineTuningJobRequest", id=job_id)
        await cloud.until(job_id, "PAUSED")
        assert cloud.pod(job_id) is None
        await cloud.job_call("Resume", "ResumeFineTuningJobRequest", id=job_id)
        await until(lambda: attempt_of(cloud, job_id) == "2")
        await cloud.until(job_id, "RUNNING")
        assert recipes.wanted["attempt"] == 2
        assert recipes.wanted["arguments"] == of_earlier_release, "the recipes on a cluster may be older"


async def test_a_killed_pod_goes_on_by_itself_but_not_for_ever(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud)
        cloud.recipes(job_id).reach(5)
        for attempt in range(1, 5):
            await until(lambda attempt=attempt: attempt_of(cloud, job_id) == str(attempt))
            cloud.engine.kill(Reference("Pod", job_id, POD))
        job = await cloud.until(job_id, "FAILED")
        assert job.status.error.code == "worker_lost" and "4 times" in job.status.error.message
        await cloud.job_call("Resume", "ResumeFineTuningJobRequest", id=job_id)
        job = await cloud.until(job_id, "RUNNING")
        assert not job.status.HasField("error")


async def test_an_attempt_that_was_stopped_with_the_cloud_goes_on(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud)
        cloud.recipes(job_id).end("stopped")
        await until(lambda: attempt_of(cloud, job_id) == "2")
        await cloud.until(job_id, "RUNNING")


async def test_the_control_plane_may_go_away_meanwhile(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id, world = await started_job(cloud), cloud.world
    async with fake_cloud(tmp_path, world) as cloud:
        cloud.recipes(job_id).reach(20)
        cloud.recipes(job_id).succeed()
        job = await cloud.until(job_id, "SUCCEEDED")
        assert job.status.fine_tuned_model_id and cloud.recipes(job_id).wanted["attempt"] == 1


async def test_cancel_ends_it_for_good(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud)
        await cloud.job_call("Cancel", "CancelFineTuningJobRequest", id=job_id)
        job = await cloud.until(job_id, "CANCELLED")
        assert job.status.HasField("finished_at")
        await until(lambda: cloud.pod(job_id) is None)
        with pytest.raises(grpc.aio.AioRpcError, match="start another"):
            await cloud.job_call("Resume", "ResumeFineTuningJobRequest", id=job_id)


async def test_a_job_that_does_not_say_where_gets_the_smallest_that_fits(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud, platform="", preset="")
        spec = (await cloud.job(job_id)).spec
        assert (spec.platform, spec.preset) == ("cpu-local", "1vcpu-2gb")
        limits = cloud.pod(job_id).manifest.containers[0].limits
        assert limits == {"cpu": "1", "memory": "2048Mi"}


async def test_progress_is_told_while_it_runs(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud)
        recipes = cloud.recipes(job_id)
        recipes.reach(5, at=1_700_000_000.0)
        recipes.reach(10, loss=1.25, at=1_700_000_010.0)
        await cloud.until(job_id, "RUNNING")
        job = await until(
            lambda: cloud.job(job_id), holds=lambda job: job.status.step >= 10, poll_seconds=0.02
        )
        assert job.status.total_steps == 20 and job.status.HasField("estimated_finish")
        first = await cloud.job_call("ListEvents", "ListFineTuningEventsRequest", id=job_id, page_size=1)
        rest = await cloud.job_call(
            "ListEvents", "ListFineTuningEventsRequest", id=job_id, page_token=first.next_page_token
        )
        steps = [event for event in (*first.items, *rest.items) if event.type == "metrics"]
        assert [event.message for event in steps] == [
            "Step 5/20: training loss=1.5000",
            "Step 10/20: training loss=1.2500",
        ]


async def test_the_log_is_followed_by_whole_lines_to_its_end(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        job_id = await started_job(cloud)
        log = work_folder(cloud.home, job_id) / "log.txt"
        log.write_text("step 1\nstep 2\n")

        async def read(after: str = "", lines: int = 0) -> Any:
            fields = {"id": job_id, "after": after, "lines": lines}
            return await cloud.job_call("ReadLog", "ReadFineTuningLogRequest", **fields)

        first = await read(lines=1)
        assert (first.text, first.is_complete) == ("step 2\n", False)
        with log.open("a") as file:
            file.write("step 3\nste")
        second = await read(first.next_position)
        assert (second.text, second.is_complete) == ("step 3\n", False)
        with log.open("a") as file:
            file.write("p 4")
        assert (await read(second.next_position)).text == ""
        await cloud.job_call("Cancel", "CancelFineTuningJobRequest", id=job_id)
        await cloud.until(job_id, "CANCELLED")
        last = await read(second.next_position)
        assert (last.text, last.is_complete) == ("step 4", True)
        log.write_text("other\n")
        assert (await read(last.next_position)).text == "other\n"
        for forged in ("-1", "x", "1/2", "9" * 19, "\0"):
            refused = await cloud.refusal(f"{JOBS}/ReadLog", id=job_id, after=forged)
            assert refused.code is contract.Code.INVALID_ARGUMENT
        assert (await read("9" * 18)).text == "other\n"


REFUSED = (
    ({"hyperparameters": {"lora": False}, "merge": True}, "whole already"),
    ({"hyperparameters": {"beta": 0.1}}, "of the method dpo and reinforcement, not of supervised"),
    ({"method": "DPO", "hyperparameters": {"packing": True}}, "joins conversations"),
    ({"method": "DPO", "hyperparameters": {"early_stopping_patience": 2}}, "of the method supervised"),
    ({"method": "DPO", "grader": "{}"}, "grader"),
    ({"method": "REINFORCEMENT"}, "reinforcement needs one"),
    ({"method": "REINFORCEMENT", "grader": '{"type": "python"}'}, "runs code of a user"),
    ({"method": "REINFORCEMENT", "grader": "x"}, "is no JSON"),
    ({"method": "REINFORCEMENT", "grader": '{"type": "x"}'}, "one of string_check"),
    ({"hyperparameters": {"learning_rate": 1e-4, "learning_rate_multiplier": 2.0}}, "automatic rate"),
    ({"hyperparameters": {"context_length": 4096}}, "2,048 tokens at most"),
    ({"preset": "9vcpu-1gb"}, "preset"),
    ({"training_file": "file-nobody"}, "file-nobody"),
    ({"validation_file": "file-nobody"}, "file-nobody"),
    ({"nodes": 2}, "one pod"),
    ({"hyperparameters": {"lora_r": 128}}, "rank above 64"),
    ({"platform": "cpu-local", "preset": ""}, "preset"),
)


async def test_what_cannot_work_is_refused_by_name(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        model_id = await add_model(cloud)
        for spec, word in REFUSED:
            with pytest.raises(grpc.aio.AioRpcError, match=word) as refused:
                await create_job(cloud, model_id, **spec)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, spec
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await create_job(cloud, "inferencemodel-e00none")
