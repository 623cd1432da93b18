"""Batch jobs the way Slurm users run them, over ssh, and the way `neo` does without."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import NEO
from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.conftest import ROOT


@pytest.fixture(autouse=True, scope="module")
def overdue(bank: Cluster) -> int:
    """A job with a limit of one minute, Slurm's shortest; it runs out while the other tests run."""
    bank.wait_until_idle()
    return bank.sbatch("sleep 600", "--time=1", "--mem=50M", "--nodelist=worker-1")


def test_a_file_goes_in_by_scp_a_job_reads_it_and_its_result_comes_out(bank: Cluster, tmp_path: Path) -> None:
    """SJOB-01, SJOB-10: scp, sbatch, squeue and sacct by the user's key."""
    (tmp_path / "in.txt").write_text("words to count\n")
    bank.copy_in(tmp_path / "in.txt", f"{SHARED}/in.txt")
    job = bank.sbatch(f"wc -w < {SHARED}/in.txt > {SHARED}/out.txt", "--job-name=count")
    assert bank.wait_for_job(job) == "COMPLETED"
    bank.copy_out(f"{SHARED}/out.txt", tmp_path)
    assert (tmp_path / "out.txt").read_text().strip() == "3"
    wait_until(
        lambda: bank.ssh(f"sacct -nXP -j {job} -o JobName,State,ExitCode") == "count|COMPLETED|0:0",
        "the job is in accounting",
    )
    assert bank.ssh(f"squeue --noheader --jobs={job} || true") == ""


def test_neo_submits_lists_follows_and_cancels_jobs_without_ssh(bank: Cluster, tmp_path: Path) -> None:
    """SJOB-02."""
    script = tmp_path / "talk.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\n"
        'echo "hello $1 $COLOUR"; srun hostname | sort; while [ ! -e ~/go ]; do sleep 0.2; done; echo bye\n'
    )
    neo = bank.cloud.neo
    said = neo("slurm", "job", "submit", "bank", str(script), "--env", "COLOUR=blue", "--", "world")
    job = said.stdout.split()[-1]
    with subprocess.Popen(
        [str(NEO), "slurm", "job", "logs", "bank", job, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=bank.cloud.environment,
    ) as follower:
        assert follower.stdout is not None
        assert [next(follower.stdout).strip() for _ in range(3)] == [
            "hello world blue",
            "worker-0",
            "worker-1",
        ]
        listed = {str(item["id"]): item for item in bank.cloud.neo_json("slurm", "job", "list", "bank")}
        assert (listed[job]["name"], listed[job]["state"]) == ("talk", "RUNNING")
        bank.ssh("touch ~/go")
        assert follower.stdout.read().strip() == "bye"
    bank.ssh("rm ~/go")
    assert bank.wait_for_job(job) == "COMPLETED"
    again = neo("slurm", "job", "submit", "bank", str(script), "--", "again").stdout.split()[-1]
    neo("slurm", "job", "cancel", "bank", again)
    assert bank.wait_for_job(again) == "CANCELLED"
    refused = neo("slurm", "job", "cancel", "bank", again, code=1)
    assert "has ended already" in refused.stderr


def test_a_script_keeps_its_own_name_and_folder_until_the_command_says_otherwise(bank: Cluster) -> None:
    """SJOB-02."""
    bank.ssh("mkdir -p /home/shared/own")
    options = "#SBATCH --job-name=own --chdir=/home/shared/own"
    script = f"#!/bin/bash\n{options}\n{{ echo $SLURM_JOB_NAME; pwd; }} > said\n"
    submit = ("slurm", "job", "submit", "bank", "-", "--wait")
    bank.cloud.neo(*submit, stdin=script)
    bank.cloud.neo(*submit, "--name", "other", "--chdir", "/home/shared", stdin=script)
    assert bank.ssh("cat /home/shared/own/said").split() == ["own", "/home/shared/own"]
    assert bank.ssh("cat /home/shared/said; rm /home/shared/said").split() == ["other", "/home/shared"]


def test_neo_waits_for_a_job_and_fails_when_the_job_fails(bank: Cluster) -> None:
    """SJOB-02."""
    neo = bank.cloud.neo
    neo("slurm", "job", "submit", "bank", "-", "--wait", stdin="#!/bin/bash\nexit 0\n")
    failed = neo("slurm", "job", "submit", "bank", "-", "--wait", stdin="#!/bin/bash\nexit 3\n", code=1)
    assert "ended as FAILED" in failed.stderr and "neo slurm job logs bank" in failed.stderr
    job = failed.stdout.split()[-1]
    assert bank.cloud.neo_json("slurm", "job", "get", "bank", job)["exit_code"] == "3"


def test_a_script_that_slurm_refuses_is_refused_in_slurms_words(bank: Cluster) -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=99\nhostname\n"
    said = bank.cloud.neo("slurm", "job", "submit", "bank", "-", stdin=script, code=2)
    assert "sbatch: error" in said.stderr and "Traceback" not in said.stderr


def test_jobs_wait_for_those_they_depend_on_and_do_not_run_when_these_fail(bank: Cluster) -> None:
    """SJOB-10: a chain of three, and one that can never run."""
    write = f"echo $SLURM_JOB_NAME >> {SHARED}/chain.txt"
    bank.ssh(f"rm -f {SHARED}/chain.txt")
    first = bank.sbatch(f"sleep 1; {write}", "--job-name=first")
    second = bank.sbatch(write, "--job-name=second", f"--dependency=afterok:{first}")
    third = bank.sbatch(write, "--job-name=third", f"--dependency=afterok:{second}")
    failing = bank.sbatch("exit 1", f"--dependency=afterany:{third}")
    never = bank.sbatch(write, f"--dependency=afterok:{failing}", "--kill-on-invalid-dep=yes")
    assert bank.wait_for_job(third) == "COMPLETED"
    assert bank.ssh(f"cat {SHARED}/chain.txt").split() == ["first", "second", "third"]
    assert bank.wait_for_job(never) == "CANCELLED"


def test_an_array_job_runs_each_index_once(bank: Cluster) -> None:
    """SJOB-10."""
    job = bank.sbatch("echo index $SLURM_ARRAY_TASK_ID", "--array=1-6%4", "--output=array_%A_%a.out")
    wait_until(lambda: bank.ssh(f"squeue --noheader --jobs={job} || true") == "", "the array ended")
    lines = bank.ssh(f"cat {SHARED}/array_{job}_*.out").splitlines()
    assert sorted(lines) == [f"index {index}" for index in range(1, 7)]


def test_steps_of_one_job_run_at_the_same_time(bank: Cluster) -> None:
    """SJOB-10: each step ends only when it has seen the other."""
    step = "touch step-{me}; until [ -e step-{other} ]; do sleep 0.1; done; hostname"
    body = "\n".join(
        (
            'cd "$(mktemp -d -p .)"',
            f"srun --exact -N1 -n1 bash -c '{step.format(me=1, other=2)}' &",
            f"srun --exact -N1 -n1 bash -c '{step.format(me=2, other=1)}' &",
            "wait",
        )
    )
    output = bank.run_job(body, "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--time=1")
    assert set(output.split()) <= {"worker-0", "worker-1"} and len(output.split()) == 2


def test_a_heterogeneous_job_has_both_its_parts_at_once(bank: Cluster) -> None:
    """SJOB-10: `#SBATCH hetjob`. Its parts are scheduled by backfill only, so it may wait a little."""
    body = "\n".join(
        (
            "#SBATCH --ntasks=1 --mem-per-cpu=100M",
            "#SBATCH hetjob",
            "#SBATCH --ntasks=1 --mem-per-cpu=100M",
            "echo parts $SLURM_HET_SIZE",
            "srun --het-group=0 bash -c 'echo first $SLURM_NTASKS'",
            "srun --het-group=1 bash -c 'echo second $SLURM_NTASKS'",
        )
    )
    output = bank.run_job(body, seconds=180.0).splitlines()
    assert sorted(output) == ["first 1", "parts 2", "second 1"]


@pytest.mark.long
def test_the_shipped_heterogeneous_job_runs_each_part_on_its_own_nodes(bank: Cluster) -> None:
    """ERR-18: parts are separated by `hetjob`, and each command runs on the nodes of its part."""
    bank.wait_until_idle()
    script = ROOT / "recipes" / "heterogeneous.sbatch"
    said = bank.cloud.neo("slurm", "job", "submit", "bank", str(script), "--follow").stdout.splitlines()
    lines = sorted(line for line in said if "task" in line)
    assert [line.rpartition(" on ")[0] for line in lines] == ["part 0: task 0 of 1", "part 1: task 0 of 1"]
    assert {line.rpartition(" on ")[2] for line in lines} <= {"worker-0", "worker-1"}
    assert sorted(line for line in said if "GPU" in line) == ["part 0: no GPU", "part 1: no GPU"]


def test_a_job_gets_the_cpus_it_asks_for_and_one_that_asks_too_much_is_refused(bank: Cluster) -> None:
    """SJOB-10: --cpus-per-task, --mem-per-cpu."""
    shown = bank.run_job(
        "echo $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_CPU; scontrol show job $SLURM_JOB_ID",
        "--ntasks=1 --cpus-per-task=2 --mem-per-cpu=300M",
    )
    assert shown.splitlines()[0] == "2 300"
    assert "NumCPUs=2" in shown and "mem=600M" in shown
    refused = bank.try_ssh("sbatch --nodes=1 --mem=64G --wrap=hostname")
    assert refused.returncode != 0 and "error" in refused.stderr


def test_a_job_over_its_memory_is_killed(bank: Cluster) -> None:
    """SJOB-10: it takes six times what it asks for, and has time to be found out."""
    body = "python3 -c 'import time; held = bytearray(600 << 20); time.sleep(60); print(len(held))'"
    job = bank.sbatch(body, "--mem=100M")
    assert bank.wait_for_job(job, seconds=120) in ("OUT_OF_MEMORY", "FAILED", "CANCELLED")
    assert str(600 << 20) not in bank.output_of(job)
    assert "memory" in bank.output_of(job).lower()


@pytest.mark.parametrize("folder", ["/root", "/home/shared/made/on/the/spot", "/mnt/data", "/opt/ours"])
def test_output_may_lie_anywhere_in_the_shared_root(bank: Cluster, folder: str) -> None:
    """SLURM-04: also in folders that were made after the nodes started."""
    bank.ssh(f"mkdir -p {folder}")
    job = bank.sbatch("hostname; echo beside > result.txt", f"--chdir={folder}", "--output=job.out")
    assert bank.wait_for_job(job) == "COMPLETED"
    assert bank.ssh(f"cat {folder}/job.out").startswith("worker-")
    assert bank.ssh(f"cat {folder}/result.txt") == "beside"
    read = bank.cloud.neo("slurm", "job", "logs", "bank", str(job))
    assert read.stdout.startswith("worker-")


def test_a_limit_set_with_sacctmgr_is_enforced(bank: Cluster) -> None:
    """SLURM-22: one job at a time for an account, and a QoS that caps the nodes of a job."""
    manage = "sacctmgr --immediate --quiet"
    bank.ssh(f"{manage} add account lab GrpJobs=1 && {manage} add user root account=lab")
    bank.ssh(
        f"{manage} add qos small MaxTRESPerJob=node=1 && {manage} modify user root account=lab set qos+=small"
    )
    first = bank.sbatch("sleep 600", "--account=lab")
    second = bank.sbatch("hostname", "--account=lab")
    wide = bank.sbatch("hostname", "--account=lab", "--qos=small", "--nodes=2")

    def reason(job: int) -> str:
        return bank.ssh(f"squeue --noheader --jobs={job} --format='%T %r'")

    try:
        wait_until(lambda: bank.job_state(first) == "RUNNING", "the first job runs")
        wait_until(lambda: reason(second) == "PENDING AssocGrpJobsLimit", "the second waits for the first")
        bank.ssh(f"scancel {first}")
        assert bank.wait_for_job(second) == "COMPLETED"
        wait_until(lambda: "MaxNodePerJob" in reason(wide), "the wide job is over the limit of its QoS")
    finally:
        bank.ssh(f"scancel {first} {second} {wide}")
        wait_until(lambda: bank.ssh("squeue --noheader --account=lab") == "", "the account is idle")
        bank.ssh(
            f"{manage} modify user root set defaultaccount=root; {manage} delete user root account=lab;"
            f" {manage} delete account lab; {manage} delete qos small"
        )


def test_a_user_without_an_account_cannot_run_jobs(bank: Cluster) -> None:
    """SLURM-22: accounting is enforced, not only written."""
    bank.ssh("id alice || useradd --create-home alice")
    refused = bank.try_ssh("cd /home/alice && su alice -c 'sbatch --wrap=hostname'")
    assert refused.returncode != 0 and "Invalid account" in refused.stderr
    bank.ssh("sacctmgr --immediate --quiet add user alice account=root")
    job = bank.ssh("cd /home/alice && su alice -c 'sbatch --parsable --wrap=\"id -un; hostname\"'")
    assert bank.wait_for_job(job) == "COMPLETED"
    assert bank.ssh(f"head -1 /home/alice/slurm-{job}.out") == "alice"


def test_a_job_over_its_time_limit_ends_as_timeout(bank: Cluster, overdue: int) -> None:
    """SJOB-10: Slurm looks every half minute."""
    assert bank.wait_for_job(overdue, seconds=240) == "TIMEOUT"
    assert "DUE TO TIME LIMIT" in bank.output_of(overdue)


BURN = """#!/bin/bash
#SBATCH --requeue --mem=200M --time=5
if [ ! -e ~/burn-again ]; then touch ~/burn-again; sleep 600; fi
srun python3 -c 'import time; b = bytearray(60 << 20); t = time.process_time()
while time.process_time() < t + 4: sum(range(10000))'
"""


def test_a_report_has_what_a_job_used_and_the_run_that_was_cut_short(bank: Cluster, tmp_path: Path) -> None:
    """The report has the figures of Slurm's accounting: processors and memory, without GPUs."""
    (tmp_path / "burn.sbatch").write_text(BURN)
    neo = bank.cloud.neo
    job = int(neo("slurm", "job", "submit", "bank", str(tmp_path / "burn.sbatch")).stdout.split()[-1])
    wait_until(lambda: "yes" in bank.ssh("test -e ~/burn-again && echo yes || true"), "its first run began")
    bank.ssh(f"scontrol requeue {job}")
    assert bank.wait_for_job(job) == "COMPLETED"

    def reported() -> dict[str, Any]:
        return bank.cloud.neo_json("slurm", "job", "report", "bank", str(job))

    wait_until(lambda: len(reported()["runs"]) == 2 and "finished_at" in reported()["runs"][1], "accounting")
    first, last = reported()["runs"]
    assert (first["state"], last["state"]) == ("REQUEUED", "COMPLETED")
    assert int(last["cpus"]) == 1 and int(last["memory_bytes"]) == 200 << 20
    used = next(step for step in last["steps"] if step["name"] == "python3")
    assert 3.5 < used["cpu_seconds"] < 6
    assert 60 << 20 < int(used["peak_task_memory_bytes"]) < 120 << 20
    shown = neo("slurm", "job", "report", "bank", str(job)).stdout
    assert "REQUEUED on worker-" in shown and "nobody watches the nodes" in shown
