"""A user of a cluster who gives a job the name, comment and port of a replica does not become the replica."""

from dataclasses import replace

import pytest

from neocloud.core.reconcile.reconciler import RetryLater
from neocloud.services.inference.reconcile.replica_log import LogPosition, ReplicaLog
from neocloud.services.inference.reconcile.scope import DeploymentScope
from neocloud.services.inference.reconcile.slurm_backend import SlurmBackend
from neocloud.services.inference.reconcile.slurm_submissions import SECRET_NAME
from neocloud.services.slurm.types import UNKNOWN_USER_ID, ClusterUnreachable, SubmissionUnknown
from tests.fast.services.inference.scripted_slurm import DEPLOYMENT, PlainStore, ScriptedJobs

MALLORY = 5001


async def started(backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope) -> None:
    scope.desired = 1
    await backend.start(scope, ["replica-0"])
    jobs.runs(1)


@pytest.mark.parametrize("user_id", [MALLORY, UNKNOWN_USER_ID])
async def test_a_newer_job_of_the_same_name_and_token_is_another_users(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, well: set[str], user_id: int
) -> None:
    await started(backend, jobs, scope)
    real = jobs.all[0]
    forged = jobs.adds(real.name, user_id=user_id, submission=real.submission)
    jobs.runs(forged, "10.89.3.66")
    well |= {"10.89.3.66:20192", "10.89.3.4:20192"}
    (seen,) = await backend.observe(scope)
    assert (seen.job_id, seen.address, seen.is_healthy) == (1, "10.89.3.4:20192", True)
    assert (await backend.log(DEPLOYMENT, "replica-0", 9)).text == "9 lines of job 1"
    followed = await backend.log_after(DEPLOYMENT, LogPosition("replica-0", "1", 40))
    assert (followed.text, str(followed.end)) == ("job 1 from 40\n", "replica-0/1/50")
    of_earlier_job = LogPosition("replica-0", str(forged), 40)
    assert (await backend.log_after(DEPLOYMENT, of_earlier_job)).text == "job 1 from 0\n"
    gone = LogPosition("replica-7", "1", 40)
    assert await backend.log_after(DEPLOYMENT, gone) == ReplicaLog("", gone)
    with pytest.raises(RetryLater):
        await backend.clear(scope)
    assert jobs.cancelled == [1]


async def test_a_job_of_root_that_somebody_named_so_is_no_replica_either(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    await started(backend, jobs, scope)
    jobs.runs(jobs.adds(jobs.all[0].name), "10.89.3.66")
    jobs.runs(jobs.adds(f"{DEPLOYMENT}.replica-1.x"), "10.89.3.66")
    assert [each.job_id for each in await backend.observe(scope)] == [1]


async def test_a_forged_job_is_not_taken_while_the_number_is_unknown(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, store: PlainStore
) -> None:
    """Between the token and the number, after a crash: a user cannot know the token before root has used it,
    and may copy it from then on."""
    jobs.crash = SubmissionUnknown("the login node fell silent")
    with pytest.raises(RetryLater):
        await backend.start(scope, ["replica-0"])
    real = jobs.all[0]
    jobs.all[0] = replace(real, user_id=MALLORY)
    assert not await backend.observe(scope)
    jobs.all[0] = real
    assert [each.job_id for each in await backend.observe(scope)] == [1]


async def test_a_job_that_was_submitted_just_before_a_crash_is_found(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, store: PlainStore
) -> None:
    jobs.crash = KeyboardInterrupt()  # as kill -9: nothing runs after it
    with pytest.raises(KeyboardInterrupt):
        await backend.start(scope, ["replica-0"])
    assert store.secrets[DEPLOYMENT, SECRET_NAME].endswith(b", 0]}")
    await backend.start(scope, ["replica-0"])
    assert len(jobs.submitted) == 1
    (seen,) = await backend.observe(scope)
    assert seen.job_id == 1 and store.secrets[DEPLOYMENT, SECRET_NAME].endswith(b", 1]}")


async def test_a_job_that_comes_late_is_a_repeat_and_is_cancelled(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    jobs.crash = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await backend.start(scope, ["replica-0"])
    late = jobs.all.pop()
    await backend.start(scope, ["replica-0"])
    assert [job.submission for job in jobs.submitted] == [late.submission] * 2
    jobs.adds(late.name, submission=late.submission)
    (seen,) = await backend.observe(scope)
    assert (seen.job_id, jobs.cancelled) == (1, [2])


async def test_jobs_of_an_earlier_release_are_found_by_name_if_they_are_roots(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope, store: PlainStore
) -> None:
    earlier, forged = (
        jobs.adds(f"{DEPLOYMENT}.replica-0.old"),
        jobs.adds(f"{DEPLOYMENT}.replica-0.old", user_id=MALLORY),
    )
    jobs.runs(earlier)
    jobs.runs(forged, "10.89.3.66")
    (seen,) = await backend.observe(scope)
    assert (seen.job_id, seen.is_outdated) == (1, True)
    assert store.secrets[DEPLOYMENT, SECRET_NAME] == b'{"replica-0": ["", 1]}'
    jobs.runs(jobs.adds(f"{DEPLOYMENT}.replica-0.old"), "10.89.3.67")  # names count no more
    assert [each.job_id for each in await backend.observe(scope)] == [1]


async def test_nothing_is_sent_while_slurm_does_not_answer(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    await started(backend, jobs, scope)
    jobs.refusal = ClusterUnreachable("Slurm does not answer")
    with pytest.raises(RetryLater):
        await backend.start(scope, ["replica-0"])
    jobs.refusal = None
    await backend.start(scope, ["replica-0"])
    assert len(jobs.submitted) == 1
