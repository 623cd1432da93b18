"""AIS-13: jobs as batch jobs of a cluster, with a scripted Slurm whose shared root is a folder here.

Commands for the login node are really run, on that folder; what the recipes leave there, tests write.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from neocloud.core import contract
from neocloud.core.readers import ServiceRegistry
from neocloud.services.slurm.types import (
    MODELS_MOUNT_PATH,
    BatchJob,
    BatchJobs,
    ClusterUnreachable,
    CommandResult,
    NewJob,
    PrintedText,
    SubmissionUnknown,
    models_folder,
)
from neocloud.services.tuning.reconcile import slurm_files
from neocloud.services.tuning.render import SCRIPT, WORK_ROOT
from neocloud.services.tuning.types import work_folder
from neocloud.testing.waiting import until
from tests.fast.services.tuning.cloud import (
    FakeCloud,
    Recipes,
    StateEnum,
    add_model,
    create_job,
    fake_cloud,
)


class ScriptedJobs:
    """A BatchJobs whose jobs do what the test says."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self.all: list[BatchJob] = []
        self.submitted: list[NewJob] = []
        self.signalled: list[str] = []
        self.crash: Exception | None = None
        """What the next submission ends with after Slurm has taken the job."""

    async def submit(self, cluster_id: str, job: NewJob) -> int:
        self.submitted.append(job)
        self.adds(job.name, submission=job.submission)
        if self.crash is not None:
            crash, self.crash = self.crash, None
            raise crash
        return len(self.all)

    def adds(self, name: str, *, user_id: int = 0, submission: str = "") -> None:
        number = len(self.all) + 1
        job = BatchJob(number, name, "PENDING", False, "Resources", user_id=user_id, submission=submission)
        self.all.append(job)

    async def jobs(self, cluster_id: str) -> list[BatchJob]:
        return [job for job in self.all if job.state != "forgotten"]

    async def cancel(self, cluster_id: str, job_id: int) -> None:
        self.becomes(job_id, "CANCELLED")

    async def tail(self, cluster_id: str, job_id: int, lines: int) -> PrintedText:
        return PrintedText()

    async def printed(self, cluster_id: str, job_id: int, offset: int) -> PrintedText:
        return PrintedText()

    async def run(
        self, cluster_id: str, command: Sequence[str], *, max_output_bytes: int = 2**20
    ) -> CommandResult:
        if command[0] == "scancel":
            self.signalled.append(command[-1])
            return CommandResult(0, b"", b"")
        here = [word.replace(str(WORK_ROOT), str(self.shared)) for word in command]
        done = await asyncio.to_thread(subprocess.run, here, capture_output=True, check=False)
        if len(done.stdout) + len(done.stderr) > max_output_bytes:
            raise ClusterUnreachable("it printed too much")
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def becomes(self, job_id: int, state: str, **changes: Any) -> None:
        has_ended = state not in ("PENDING", "RUNNING", "COMPLETING")
        self.all[job_id - 1] = replace(self.all[job_id - 1], state=state, has_ended=has_ended, **changes)

    def starts(self, cloud: FakeCloud, job_id: str, number: int) -> Recipes:
        """Begin as the job's script does: the folder on the shared root is there, with what is wanted."""
        name, attempt = self.submitted[number - 1].name.rsplit(".", 1)
        assert name == job_id
        (cluster,) = (cloud.home / "models").glob("slurmcluster-*")
        recipes = Recipes(self.shared / job_id)
        recipes.folder.mkdir(parents=True, exist_ok=True)
        wanted = (cluster / job_id / f"job-{attempt}.json").read_bytes()
        (recipes.folder / "job.json").write_bytes(wanted)
        self.becomes(number, "RUNNING", node="worker-0")
        return recipes


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedJobs:
    monkeypatch.setattr("neocloud.services.tuning.reconcile.backends.RETRY_SECONDS", 0.02)
    monkeypatch.setattr("neocloud.services.tuning.reconcile.scope.CLUSTER_RESYNC_SECONDS", 0.02)
    return ScriptedJobs(tmp_path / "shared")


async def add_cluster(cloud: FakeCloud) -> str:
    """Two nodes; whether they ever run is not asked here."""
    request = contract.message("neocloud.slurm.v1.CreateClusterRequest")()
    request.metadata.parent_id, request.metadata.name = cloud.project_id, "lab"
    request.spec.node_sets.add(name="worker", platform="cpu-local", preset="2vcpu-4gb", count=2)
    return (await cloud.call("neocloud.slurm.v1.ClusterService/Create", request)).resource_id


async def submitted_job(cloud: FakeCloud, jobs: ScriptedJobs, **spec: Any) -> str:
    cluster_id = await add_cluster(cloud)
    place = {"slurm_cluster_id": cluster_id, "platform": "", "preset": ""}
    job_id = await create_job(cloud, await add_model(cloud), **place, **spec)
    await until(lambda: bool(jobs.submitted))
    return job_id


async def test_it_is_submitted_watched_and_its_model_comes_back(tmp_path: Path, jobs: ScriptedJobs) -> None:
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs, nodes=2)
        (job,) = jobs.submitted
        assert {"--nodes=2", "--cpus-per-task=2", "--constraint=models", "--requeue"} <= {*job.options}
        assert job.arguments == (f"{MODELS_MOUNT_PATH}/{job_id}", f"{WORK_ROOT}/{job_id}", "1")
        await cloud.until(job_id, "QUEUED")
        recipes = jobs.starts(cloud, job_id, 1)
        assert (
            recipes.wanted["model"] == f"{MODELS_MOUNT_PATH}/{job_id}/model" and recipes.wanted["nodes"] == 2
        )
        arguments = recipes.wanted["arguments"]
        assert arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] == 2
        recipes.reach(10)
        recipes.save(10)
        running = await cloud.until(job_id, "RUNNING")
        assert running.status.step == 10
        found = await cloud.job_call("ListCheckpoints", "ListFineTuningCheckpointsRequest", id=job_id)
        assert [each.step_number for each in found.items] == [10]
        recipes.succeed()
        jobs.becomes(1, "COMPLETED")
        done = await cloud.until(job_id, "SUCCEEDED")
        model_id = done.status.fine_tuned_model_id
        await cloud.until(model_id, "READY")
        weights = cloud.home / "models" / cloud.project_id / job_id / "adapter_model.safetensors"
        assert weights.read_bytes() == b"weights" and len(jobs.submitted) == 1
        shown = models_folder(cloud.home, done.spec.slurm_cluster_id) / job_id
        await until(lambda: not shown.exists())
        await cloud.job_call("Delete", "DeleteFineTuningJobRequest", id=job_id)
        await cloud.gone(job_id)
        assert not recipes.folder.exists() and not work_folder(cloud.home, job_id).exists()


async def test_pause_waits_for_the_checkpoint_and_resume_submits_another(
    tmp_path: Path, jobs: ScriptedJobs
) -> None:
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs)
        recipes = jobs.starts(cloud, job_id, 1)
        recipes.reach(5)
        await cloud.until(job_id, "RUNNING")
        await cloud.job_call("Pause", "PauseFineTuningJobRequest", id=job_id)
        await until(lambda: "1" in jobs.signalled)
        assert (await cloud.job(job_id)).status.state != StateEnum.Value("PAUSED")
        recipes.end("stopped")
        jobs.becomes(1, "FAILED", exit_code=75)
        await cloud.until(job_id, "PAUSED")
        await cloud.job_call("Resume", "ResumeFineTuningJobRequest", id=job_id)
        await until(lambda: len(jobs.submitted) == 2)
        assert jobs.submitted[1].name == f"{job_id}.2"
        assert jobs.starts(cloud, job_id, 2).wanted["attempt"] == 2
        await cloud.until(job_id, "RUNNING")


async def test_what_slurm_requeues_is_not_submitted_again(tmp_path: Path, jobs: ScriptedJobs) -> None:
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs)
        recipes = jobs.starts(cloud, job_id, 1)
        recipes.reach(5)
        await cloud.until(job_id, "RUNNING")
        jobs.becomes(1, "PENDING", node="", reason="BeginTime")
        await cloud.until(job_id, "QUEUED")
        jobs.becomes(1, "RUNNING", node="worker-1")
        recipes.reach(9)
        await cloud.until(job_id, "RUNNING")
        assert len(jobs.submitted) == 1


async def test_a_job_that_ends_without_a_word_goes_on_but_not_for_ever(
    tmp_path: Path, jobs: ScriptedJobs
) -> None:
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs)
        for number, ending in enumerate(("OUT_OF_MEMORY", "forgotten", "FAILED", "FAILED"), start=1):
            await until(lambda number=number: len(jobs.submitted) == number)
            jobs.starts(cloud, job_id, number)
            jobs.becomes(number, ending, exit_code=1)
        job = await cloud.until(job_id, "FAILED")
        assert job.status.error.code == "worker_lost" and "Slurm job 4" in job.status.error.message
        assert len({each.name for each in jobs.submitted}) == 4


async def test_cancel_ends_the_job_and_another_project_has_no_say(tmp_path: Path, jobs: ScriptedJobs) -> None:
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs)
        await cloud.job_call("Cancel", "CancelFineTuningJobRequest", id=job_id)
        await until(lambda: jobs.all[0].state == "CANCELLED")
        job = await cloud.job(job_id)
        cluster_id = job.spec.slurm_cluster_id
        refused = (
            ({"slurm_cluster_id": "slurmcluster-e00nobody"}, "There is no resource"),
            ({"slurm_cluster_id": cluster_id, "nodes": 3}, "has 2 nodes"),
            ({"slurm_cluster_id": cluster_id, "platform": "cpu-local", "preset": "1vcpu-4gb"}, "own"),
        )
        for spec, word in refused:
            with pytest.raises(grpc.aio.AioRpcError, match=word):
                await create_job(
                    cloud, job.spec.model_id, training_file=job.spec.training_file,
                    **{"platform": "", "preset": "", **spec},
                )  # fmt: skip


async def test_a_job_of_the_same_name_by_another_user_says_nothing(
    tmp_path: Path, jobs: ScriptedJobs
) -> None:
    """Its end does not end the tuning job, and it is not cancelled with it."""
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs)
        real = jobs.all[0]
        jobs.adds(real.name, user_id=5001, submission=real.submission)
        jobs.becomes(2, "FAILED", exit_code=1)
        jobs.adds(f"{job_id}.0", user_id=5001)
        jobs.starts(cloud, job_id, 1).reach(5)
        running = await cloud.until(job_id, "RUNNING")
        assert running.status.step == 5 and len(jobs.submitted) == 1
        await cloud.job_call("Cancel", "CancelFineTuningJobRequest", id=job_id)
        await until(lambda: jobs.all[0].state == "CANCELLED")
        assert jobs.all[2].state == "PENDING"


async def test_a_job_that_was_submitted_just_before_a_crash_is_found(
    tmp_path: Path, jobs: ScriptedJobs
) -> None:
    jobs.crash = SubmissionUnknown("the login node fell silent")
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs)
        jobs.starts(cloud, job_id, 1).reach(5)
        await cloud.until(job_id, "RUNNING")
        assert len(jobs.submitted) == 1 and "--dependency=singleton" in jobs.submitted[0].options


async def test_jobs_of_an_earlier_release_are_found_if_they_are_roots(
    tmp_path: Path, jobs: ScriptedJobs
) -> None:
    async with fake_cloud(tmp_path, others=ServiceRegistry().add(BatchJobs, jobs)) as cloud:
        job_id = await submitted_job(cloud, jobs)
        jobs.starts(cloud, job_id, 1).reach(5)
        await cloud.until(job_id, "RUNNING")
        await cloud.job_call("Pause", "PauseFineTuningJobRequest", id=job_id)
        await until(lambda: "1" in jobs.signalled)
        earlier = {"wish": "run", "attempt": 1, "lost": 0, "lost_step": 0, "slurm_jobs": [1]}
        jobs.becomes(1, "RUNNING", submission="")
        jobs.adds(f"{job_id}.1", user_id=5001)
        content = json.dumps(earlier).encode()
        await cloud.running.store.write(lambda tx: tx.put_secret(job_id, "tuning", content))
        await cloud.job_call("Cancel", "CancelFineTuningJobRequest", id=job_id)
        await until(lambda: jobs.all[0].state == "CANCELLED")
        assert jobs.all[1].state == "PENDING" and len(jobs.submitted) == 1


async def test_only_known_plain_files_come_back(tmp_path: Path) -> None:
    there, work = tmp_path / "there", tmp_path / "work"
    (there / "finetune" / "checkpoint-000010").mkdir(parents=True)
    (there / "finetune" / "checkpoint-000010" / "adapter_model.safetensors").write_bytes(b"large")
    (there / "result").mkdir()
    (there / "result" / "weights").write_bytes(b"0123456789")
    (there / "result" / "link").symlink_to("/etc/passwd")
    (there / "events.jsonl").write_text("{}\n")
    (there / "outcome.json").symlink_to("/etc/passwd")
    (there / "authorized_keys").write_text("no")
    (work / "finetune" / "checkpoint-000005").mkdir(parents=True)

    command = partial(ScriptedJobs(there).run, "")
    await slurm_files.read_back(command, WORK_ROOT, work)
    found = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
    assert found == ["events.jsonl", "finetune", "finetune/checkpoint-000010"]
    await slurm_files.fetch_result(command, WORK_ROOT, work)
    assert [path.name for path in (work / "result").iterdir()] == ["weights"]


@pytest.mark.parametrize("part", ["", "job", "job/result"])
@pytest.mark.parametrize("how", ["link", "owner"])
async def test_nothing_is_read_from_a_folder_that_another_user_made(
    tmp_path: Path, part: str, how: str
) -> None:
    """Root of the cluster has opened /home/shared to everybody."""
    if how == "owner" and os.geteuid():
        pytest.skip("only root can give a folder to another user")
    shared, real = tmp_path / "shared", tmp_path / "real"
    (real / "job" / "result").mkdir(parents=True)
    (real / "job" / "events.jsonl").write_text("{}")
    (real / "job" / "result" / "weights").write_bytes(b"secret")
    real.rename(shared)
    if how == "owner":
        os.chown(shared / part, 65534, 65534)
    else:
        (shared / part).rename(real)
        (shared / part).symlink_to(real)
    command, work = partial(ScriptedJobs(shared).run, ""), tmp_path / "work"
    work.mkdir()
    if part != "job/result":
        await slurm_files.read_back(command, WORK_ROOT / "job", work)
        assert not list(work.iterdir())
    with pytest.raises(ClusterUnreachable):
        await slurm_files.fetch_result(command, WORK_ROOT / "job", work)
    assert not list(work.rglob("weights"))


@pytest.mark.parametrize("which", ["above", "itself"])
def test_the_script_writes_into_no_folder_that_a_link_leads_to(tmp_path: Path, which: str) -> None:
    elsewhere, work = tmp_path / "elsewhere", tmp_path / "tuning" / "job"
    elsewhere.mkdir()
    if which == "above":
        work.parent.symlink_to(elsewhere)
    else:
        work.parent.mkdir()
        work.symlink_to(elsewhere)
    command = ["bash", "-s", str(tmp_path / "shown"), str(work), "1"]
    done = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "is a link" in done.stderr
    assert not [path for path in elsewhere.rglob("*") if path.is_file()]


async def test_a_large_file_comes_back_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_files, "CHUNK_BYTES", 4)
    (tmp_path / "there" / "result").mkdir(parents=True)
    (tmp_path / "there" / "result" / "weights").write_bytes(b"0123456789")
    run = partial(ScriptedJobs(tmp_path / "there").run, "")
    (tmp_path / "work").mkdir()
    await slurm_files.fetch_result(run, WORK_ROOT, tmp_path / "work")
    assert (tmp_path / "work" / "result" / "weights").read_bytes() == b"0123456789"


def test_the_script_lays_files_and_runs_the_recipes(tmp_path: Path) -> None:
    shown, work, tools = tmp_path / "shown", tmp_path / "work", tmp_path / "bin"
    shown.mkdir()
    (shown / "training_file.jsonl").write_text("chats")
    (shown / "job-3.json").write_text("{}")
    tools.mkdir()
    (tools / "python3").write_text('#!/bin/sh\necho "$@" $OMP_NUM_THREADS $SRUN_CPUS_PER_TASK\n')
    (tools / "python3").chmod(0o755)
    variables = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_GPUS_ON_NODE": "2",
    }
    command = ["bash", "-s", str(shown), str(work), "3"]
    done = subprocess.run(command, input=SCRIPT, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"{shown}/code/tuning_job.py {work} 4 8\n"
    assert sorted(path.name for path in work.iterdir()) == ["job.json", "training_file.jsonl"]
