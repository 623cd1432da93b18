"""Replicas as jobs of a cluster, with a scripted Slurm: which job is which replica, what becomes of each."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from neocloud.core.reconcile.reconciler import Failed, RetryLater
from neocloud.services.inference.public import ModelFolders
from neocloud.services.inference.reconcile.scope import DeploymentScope
from neocloud.services.inference.reconcile.slurm_backend import SlurmBackend
from neocloud.services.inference.reconcile.slurm_job import SCRIPT
from neocloud.services.slurm.types import (
    MODELS_MOUNT_PATH,
    BatchJob,
    ClusterUnreachable,
    JobRefused,
    models_folder,
)
from tests.fast.services.inference.cloud import write_adapter
from tests.fast.services.inference.scripted_slurm import (
    CLUSTER,
    DEPLOYMENT,
    KEY,
    STARTED,
    PlainContext,
    ScriptedJobs,
)


async def test_a_job_asks_for_what_the_spec_says_and_runs_the_engine_by_arguments(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, tmp_path: Path
) -> None:
    await backend.start(scope, ["replica-0", "replica-1"])
    first, second = jobs.submitted
    assert first.script == SCRIPT
    assert {"--partition=main", "--cpus-per-task=2", "--mem=4G", "--constraint=models", "--requeue"} <= {
        *first.options
    }
    there = f"{MODELS_MOUNT_PATH}/{DEPLOYMENT}"
    port = str(20_000 + 3 * 64)
    assert list(first.arguments[:5]) == [f"{there}/key", port, "vllm", "serve", f"{there}/model"]
    assert "bank; rm -rf /" in first.arguments and "rm -rf" not in first.script + first.name
    assert second.arguments[1] == str(int(port) + 1)
    assert first.environment["OMP_NUM_THREADS"] == "2"
    everything = str(jobs.submitted)
    assert KEY.decode() not in everything
    here = models_folder(tmp_path, CLUSTER) / DEPLOYMENT
    assert ((here / "key").read_bytes(), (here / "key").stat().st_mode & 0o777) == (KEY, 0o400)
    weights = here / "model" / "model.safetensors"
    assert os.path.samefile(weights, tmp_path / "weights" / "model.safetensors")  # no second copy


async def test_the_job_of_a_named_worker_waits_for_the_worker_that_replaces_it(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, well: set[str]
) -> None:
    """FT-14: worker-4 serves. Slurm requeues the job and starts it on the next worker of that name."""
    scope.deployment.spec.slurm_resources.worker = "worker-4"
    scope.desired = 1
    await backend.start(scope, ["replica-0"])
    assert "--nodelist=worker-4" in jobs.submitted[0].options and "--requeue" in jobs.submitted[0].options
    jobs.becomes(1, "RUNNING", node="worker-4", address="10.89.3.4", started_at=STARTED)
    jobs.becomes(1, "PENDING", node="", address="", reason="ReqNodeNotAvail")
    (waiting,) = await backend.observe(scope)
    assert not waiting.has_ended and "ReqNodeNotAvail" in waiting.message
    await backend.start(scope, ["replica-0"])
    assert len(jobs.submitted) == 1, "it is still in the queue"
    jobs.becomes(1, "RUNNING", node="worker-4", address="10.89.3.9", started_at=STARTED)
    (again,) = await backend.observe(scope)
    assert again.is_running and again.address.startswith("10.89.3.9:") and again.job_id == 1
    scope.deployment.spec.slurm_resources.worker = "worker-3"
    (outdated,) = await backend.observe(scope)
    assert outdated.is_outdated, "another worker is another job"


async def test_a_job_is_a_replica_from_the_queue_to_its_end(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, well: set[str]
) -> None:
    await backend.start(scope, ["replica-0"])
    (waiting,) = await backend.observe(scope)
    assert (waiting.is_running, waiting.job_id, waiting.message) == (False, 1, "job 1 is PENDING (Resources)")
    jobs.runs(1)
    (loading,) = await backend.observe(scope)
    address = "10.89.3.4:20192"
    assert (loading.is_running, loading.is_healthy, loading.address) == (True, False, address)
    well.add(address)
    (ready,) = await backend.observe(scope)
    assert ready.is_healthy and ready.started_at == STARTED and not ready.is_outdated
    await backend.start(scope, ["replica-0"])
    assert len(jobs.submitted) == 1  # it is there


async def test_a_requeued_job_is_the_same_replica_elsewhere(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    await backend.start(scope, ["replica-0"])
    jobs.runs(1)
    jobs.becomes(1, "PENDING", node="", address="", reason="BeginTime")
    (queued,) = await backend.observe(scope)
    assert (queued.is_running, queued.has_ended, queued.address) == (False, False, "")
    jobs.runs(1, "10.89.3.5")
    (again,) = await backend.observe(scope)
    assert again.address == "10.89.3.5:20192" and len(jobs.submitted) == 1


async def test_the_end_of_a_job_is_told_once_and_then_it_is_gone(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    await backend.start(scope, ["replica-0"])
    scope.record("replica-0").job_id = 1
    jobs.becomes(1, "OUT_OF_MEMORY", exit_code=137)
    (ended,) = await backend.observe(scope)
    assert ended.has_ended and ended.message == "job 1 ended OUT_OF_MEMORY, exit code 137"
    scope.record("replica-0").next_try_at.FromDatetime(STARTED)  # as the reconciler notes it
    assert not await backend.observe(scope)
    scope.record("replica-0").ClearField("next_try_at")
    await backend.start(scope, ["replica-0"])
    (another,) = await backend.observe(scope)
    assert (another.job_id, another.has_ended) == (2, False)


async def test_a_job_that_somebody_cancelled_is_no_failure(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    await backend.start(scope, ["replica-0"])
    scope.record("replica-0").job_id = 1
    jobs.becomes(1, "CANCELLED")
    assert not await backend.observe(scope)


async def test_another_desired_state_ends_the_job_first_since_both_want_its_port(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    await backend.start(scope, ["replica-0"])
    jobs.runs(1)
    scope.deployment.spec.slurm_resources.cpus = 4
    (seen,) = await backend.observe(scope)
    assert seen.is_outdated
    with pytest.raises(RetryLater):
        await backend.start(scope, ["replica-0"])
    assert (jobs.cancelled, len(jobs.submitted)) == ([1], 1)
    jobs.becomes(1, "CANCELLED")
    await backend.start(scope, ["replica-0"])
    assert len(jobs.submitted) == 2


async def test_stopping_waits_until_the_jobs_have_ended_and_leaves_others(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, tmp_path: Path
) -> None:
    jobs.all.append(BatchJob(1, "training", "RUNNING", False))
    jobs.all.append(BatchJob(2, f"{DEPLOYMENT}-other.replica-0.x", "RUNNING", False))
    await backend.start(scope, ["replica-0", "replica-1"])
    with pytest.raises(RetryLater):
        await backend.stop(scope, ["replica-1"])
    assert jobs.cancelled == [4]
    with pytest.raises(RetryLater):
        await backend.clear(scope)
    assert jobs.cancelled == [4, 3, 4]
    jobs.becomes(3, "CANCELLED")
    jobs.becomes(4, "CANCELLED")
    await backend.clear(scope)
    assert not (models_folder(tmp_path, CLUSTER) / DEPLOYMENT).exists()


async def test_adapters_are_laid_where_jobs_see_them(
    backend: SlurmBackend, scope: DeploymentScope, tmp_path: Path
) -> None:
    write_adapter(ModelFolders(tmp_path / "models").of_deployment(DEPLOYMENT) / "inferencemodel-e00a")
    path = backend.adapter_path(scope, "inferencemodel-e00a")
    assert path == f"{MODELS_MOUNT_PATH}/{DEPLOYMENT}/adapters/inferencemodel-e00a"
    here = models_folder(tmp_path, CLUSTER) / DEPLOYMENT / "adapters" / "inferencemodel-e00a"
    assert (here / "adapter_model.safetensors").is_file()


async def test_what_slurm_or_the_cluster_do_not_allow_is_said(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    jobs.refusal = ClusterUnreachable("cluster lab is STOPPED, not READY")
    with pytest.raises(RetryLater, match="STOPPED"):
        await backend.observe(scope)
    jobs.refusal = JobRefused("Invalid feature specification")
    with pytest.raises(Failed, match="Scale the cluster down and up"):
        await backend.observe(scope)
    jobs.refusal = None
    scope.context = PlainContext(subnet_id="vpcsubnet-e00one")  # type: ignore[assignment]
    with pytest.raises(Failed, match="subnet"):
        await backend.start(scope, ["replica-0"])


async def test_jobs_go_with_their_cluster(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    jobs.refusal = ClusterUnreachable("there is no such cluster")
    scope.context = PlainContext(has_cluster=False)  # type: ignore[assignment]
    assert not await backend.observe(scope)
    await backend.stop(scope, ["replica-0"])
    await backend.clear(scope)
    with pytest.raises(Failed, match="gone"):
        await backend.start(scope, ["replica-0"])


# The job's script, run by the real shell


def script(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "key").write_text("secret")
    (folder / "script").write_text(SCRIPT)
    command = ["bash", str(folder / "script"), str(folder / "key"), "20192", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_the_script_hands_on_key_arguments_and_exit_code(tmp_path: Path) -> None:
    program = 'echo "$VLLM_API_KEY|$1|$2"; exit 7'
    with script(tmp_path, "bash", "-c", program, "engine", "a b", "$(echo c)") as running:
        output, _ = running.communicate(timeout=60)
    assert (output, running.returncode) == ("secret|a b|$(echo c)\n", 7)


def test_the_script_hands_on_the_signal_that_ends_it(tmp_path: Path) -> None:
    program = "trap 'echo draining; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    with script(tmp_path, "bash", "-c", program) as running:
        assert running.stdout is not None and running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.readline() == "draining\n"
        assert running.wait(timeout=60) == 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)  # the watcher's sleep, where it has not ended yet


def test_without_its_key_no_engine_starts(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPT)
    command = ["bash", str(tmp_path / "script"), str(tmp_path / "key"), "20192", "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
