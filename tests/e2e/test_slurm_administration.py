"""Administration of Slurm with its own commands: shares, QoS, reservations, suspended jobs. And Slurm's REST
API from outside.

The root user of a login shell is Slurm's administrator (SLURM-22).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster

MANAGE = "sacctmgr --immediate --quiet"
BOTH = ("--nodes=2", "--ntasks-per-node=1", "--exclusive")


@pytest.fixture(autouse=True)
def idle(bank: Cluster) -> None:
    bank.wait_until_idle()


@contextmanager
def managed(bank: Cluster, made: str, removed: str) -> Iterator[None]:
    """Accounting as these commands change it; jobs that are left are cancelled before it is undone."""
    bank.ssh(made)
    try:
        yield
    finally:
        bank.ssh("scancel --user=root")
        wait_until(lambda: bank.ssh("squeue --noheader") == "", "no job is left")
        bank.ssh(removed)


def priority_of(bank: Cluster, job: int, column: str) -> float:
    """A part of a pending job's priority as sprio shows it; 0 until it was computed."""
    said = bank.ssh(f"sprio --noheader --jobs={job} --format=%{column} 2>/dev/null || true").split()
    return float(said[-1]) if said else 0.0


def test_priority_comes_from_qos_then_fair_share(bank: Cluster) -> None:
    """SLURM-22: an account without usage goes before one with usage; a QoS with priority before both."""
    weights = bank.ssh("sprio --weights --noheader --format='%.10F %.10Q %.10A'").split()
    assert all(float(weight) > 0 for weight in weights[-3:]), weights
    made = f"""{MANAGE} add qos urgent Priority=100 && {MANAGE} add account fresh fairshare=10 &&
        {MANAGE} add user root account=fresh && {MANAGE} modify user root set qos+=urgent"""
    removed = f"""{MANAGE} modify user root set defaultaccount=root qos-=urgent; {MANAGE} delete qos urgent;
        {MANAGE} delete user root account=fresh; {MANAGE} delete account fresh"""
    with managed(bank, made, removed):
        user = bank.sbatch("sleep 600", *BOTH, "--account=root")
        wait_until(lambda: bank.job_state(user) == "RUNNING", "the account that has used nodes uses them")
        heavy, light, urgent = (
            bank.sbatch("hostname", *BOTH, *options)
            for options in (["--account=root"], ["--account=fresh"], ["--account=root", "--qos=urgent"])
        )
        # slurmctld computes usage once a minute, and when it reads its configuration.
        bank.ssh("sleep 2; scontrol reconfigure")
        wait_until(
            lambda: priority_of(bank, light, "F") > priority_of(bank, heavy, "F"),
            "the account without usage has the higher fair share",
            seconds=240,
        )
        total = {job: priority_of(bank, job, "Y") for job in (heavy, light, urgent)}
        assert total[heavy] < total[light] < total[urgent]


def test_a_qos_that_may_preempt_takes_nodes_from_a_job_which_runs_again_later(bank: Cluster) -> None:
    """SLURM-22: PreemptType=preempt/qos; the preempted job is requeued, not lost."""
    made = f"""{MANAGE} add qos urgent Preempt=normal Priority=100 &&
        {MANAGE} modify user root set qos+=urgent"""
    removed = f"{MANAGE} modify user root set qos-=urgent; {MANAGE} delete qos urgent"
    with managed(bank, made, removed):
        first = bank.sbatch(
            'echo run; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600', *BOTH, "--open-mode=append"
        )
        wait_until(lambda: bank.job_state(first) == "RUNNING", "the first job runs")
        assert "worker-" in bank.run_job("hostname", *BOTH, "--qos=urgent")
        assert "Restarts=1" in bank.ssh(f"scontrol show job {first}")
        bank.ssh(f"scontrol update jobid={first} starttime=now || true")  # it may run again already
        assert bank.wait_for_job(first) == "COMPLETED"
        assert bank.output_of(first).splitlines().count("run") == 2


def test_a_reserved_node_takes_only_jobs_of_its_reservation(bank: Cluster) -> None:
    """SLURM-22."""
    made = "scontrol create reservation=exam users=root nodes=worker-1 starttime=now duration=60"
    with managed(bank, made, "scontrol delete reservation=exam || true"):
        outside = bank.sbatch("hostname", "--nodelist=worker-1")
        assert bank.run_job("hostname", "--reservation=exam") == "worker-1"
        assert bank.run_job("hostname", "--nodelist=worker-0") == "worker-0"
        assert bank.job_state(outside) == "PENDING"
        bank.ssh("scontrol delete reservation=exam")
        assert bank.wait_for_job(outside) == "COMPLETED"


def test_a_suspended_job_stands_still_and_goes_on(bank: Cluster) -> None:
    """SLURM-22: its processes are stopped, and nothing is lost."""
    go = f"{SHARED}/go-on"
    bank.ssh(f"rm -f {go}")
    with managed(bank, "true", f"rm -f {go}"):
        job = bank.sbatch(f"until [ -e {go} ]; do sleep 0.1; done; echo continued", "--nodelist=worker-1")
        wait_until(lambda: bank.job_state(job) == "RUNNING", "the job runs")
        wait_until(lambda: script_states(bank, job), "its script runs")
        bank.ssh(f"scontrol suspend {job}")
        assert bank.job_state(job) == "SUSPENDED"
        wait_until(lambda: set(script_states(bank, job)) == {"T"}, "its script is stopped")
        bank.ssh(f"touch {go} && scontrol resume {job}")
        assert bank.wait_for_job(job) == "COMPLETED"
        assert bank.output_of(job) == "continued"


def script_states(bank: Cluster, job: int) -> list[str]:
    """The states of the processes that run the job's script on worker-1: R, S or T for stopped."""
    lines = bank.in_pod("worker-1", "ps", "-eo", "state=,args=").splitlines()
    return [line.split()[0] for line in lines if f"job{job:05}/slurm_script" in line]


def test_a_heterogeneous_job_starts_as_soon_as_it_fits(bank: Cluster) -> None:
    """Its parts run on both nodes at once, and steps over both see all tasks."""
    body = "\n".join(
        (
            "#SBATCH --nodes=1 --exclusive",
            "#SBATCH hetjob",
            "#SBATCH --nodes=1 --exclusive",
            "srun --het-group=0,1 bash -c 'echo $SLURM_PROCID on $(hostname)'",
        )
    )
    lines = bank.run_job(body).splitlines()
    assert sorted(line.split()[0] for line in lines) == ["0", "1"]
    assert {line.split()[-1] for line in lines} == {"worker-0", "worker-1"}


def test_one_index_of_an_array_is_cancelled_and_one_is_held(bank: Cluster) -> None:
    """SJOB-10: `scancel ID_INDEX`, `scontrol hold ID_INDEX`, and a limit that is raised while it waits."""
    with managed(bank, "true", "true"):
        array = bank.sbatch("echo $SLURM_ARRAY_TASK_ID", "--array=1-4%1", "--begin=now+1hour")
        bank.ssh(f"scancel {array}_2; scontrol hold {array}_3")
        bank.ssh(f"scontrol update jobid={array} arraytaskthrottle=4 starttime=now")
        wait_until(lambda: index_states(bank, array) == {"3": "PENDING"}, "the others have ended")
        bank.ssh(f"scontrol release {array}_3")
        wait_until(lambda: index_states(bank, array) == {}, "the last has ended")
        said = bank.ssh(f"cat {SHARED}/slurm-{array}_*.out").split()
        assert sorted(said) == ["1", "3", "4"]


def index_states(bank: Cluster, array: int) -> dict[str, str]:
    lines = bank.ssh(f"squeue --noheader --array --jobs={array} --format='%K %T' || true").splitlines()
    return {index: state for index, state in (line.split() for line in lines)}


def test_a_client_of_slurms_rest_api_works_with_a_token_of_the_cloud(bank: Cluster) -> None:
    """SJOB-09: submitted, listed, found in accounting and cancelled, without ssh or a key of Slurm."""
    token = bank.cloud.neo("session", "token").stdout.strip()
    url = f"http://{bank.cloud.server['http'].removeprefix('http://')}/clusters/{bank.id}"
    headers = {"x-slurm-user-token": token, "x-slurm-user-name": "root"}
    job = {"name": "rest", "current_working_directory": SHARED, "environment": ["PATH=/usr/bin:/bin"]}

    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as slurm:

        def submit(script: str) -> int:
            answer = slurm.post("/slurm/v0.0.42/job/submit", json={"script": script, "job": job})
            assert answer.status_code == 200, answer.text
            return answer.json()["job_id"]

        done = submit("#!/bin/bash\nhostname\n")
        assert bank.wait_for_job(done) == "COMPLETED"
        assert bank.output_of(done).startswith("worker-")
        wait_until(
            lambda: slurm.get(f"/slurmdb/v0.0.42/job/{done}").json()["jobs"][0]["name"] == "rest",
            "the job is in accounting",
        )
        stays = submit("#!/bin/bash\nsleep 600\n")
        listed = slurm.get("/slurm/v0.0.42/jobs/").json()["jobs"]
        assert stays in [each["job_id"] for each in listed]
        assert slurm.delete(f"/slurm/v0.0.42/job/{stays}").status_code == 200
        assert bank.wait_for_job(stays) == "CANCELLED"
        nowhere = {"script": "#!/bin/bash\n", "job": {**job, "partition": "nowhere"}}
        refused = slurm.post("/slurm/v0.0.42/job/submit", json=nowhere)
        assert refused.status_code == 500 and refused.json()["errors"]
        assert slurm.get("/slurm/v0.0.42/reconfigure/").status_code == 400


def test_a_job_that_has_just_begun_survives_the_end_of_the_controller(bank: Cluster) -> None:
    """SLURM-20: slurmctld saves its state every five seconds; a job that it launches twice is not held.

    The job waits long enough to be in the saved state; one that is not is lost, as Slurm has it.
    """
    go = f"{SHARED}/controller-is-back"
    with managed(bank, f"rm -f {go}", f"rm -f {go}"):
        script = f"until [ -e {go} ]; do sleep 0.1; done; echo ran"
        job = bank.sbatch(script, "--open-mode=append", "--begin=now+12")
        wait_until(lambda: bank.job_state(job) == "RUNNING", "the job runs")
        bank.kill("controller-0", "controller")
        shown = f"scontrol --oneliner show job {job}"
        wait_until(
            lambda: "JobState=RUNNING" in bank.try_ssh(shown).stdout,
            lambda: f"it runs still, or again; {bank.evidence(job)}",
            seconds=120,
        )
        bank.ssh(f"touch {go}")
        ended = "it ended"
        wait_until(lambda: "JobState=COMPLETED" in bank.try_ssh(shown).stdout, ended, seconds=240)
        assert "ran" in bank.output_of(job)
