"""`neo slurm job diagnose` on a real job: four ranks that add tensors by gloo, as a user who is not root."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import Cluster

RANKS = """
import datetime, json, os, sys, time
import torch
import torch.distributed as dist

mode, rank = sys.argv[1], int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", rank=rank, world_size=4, timeout=datetime.timedelta(minutes=10))
folder = f"step-times-{os.environ['SLURM_JOB_ID']}"
os.makedirs(folder, exist_ok=True)

def load_batch(step):
    if mode == "hang" and rank == 2 and step == 12:
        time.sleep(600)
    time.sleep(0.15 if mode == "slow" and rank == 2 else 0.05)

with open(f"{folder}/rank-{rank}.jsonl", "w", buffering=1) as file:
    for step in range(100_000):
        began = time.perf_counter()
        load_batch(step)
        worked = time.perf_counter()
        dist.all_reduce(torch.ones(1000))
        ended = time.perf_counter()
        print(json.dumps({"step": step, "seconds": ended - began, "waited": ended - worked}), file=file)
"""
BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --mem=1500M --time=10
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29417 OMP_NUM_THREADS=1
exec srun python3 ranks.py "$1"
"""
Submit = Callable[[str], str]


@pytest.fixture
def submit(bank: Cluster, local_user: str) -> Iterator[Submit]:
    """Submit the job in a mode; return its number when each rank has written 12 steps."""
    home = f"/home/{local_user}"
    bank.ssh(f"cat > {home}/ranks.py", stdin=RANKS)
    bank.ssh(f"cat > {home}/ranks.sbatch", stdin=BATCH)
    jobs: list[str] = []

    def run(mode: str) -> str:
        jobs.append(bank.ssh(f"cd {home} && su {local_user} -c 'sbatch --parsable ranks.sbatch {mode}'"))
        count = f"cat {home}/step-times-{jobs[-1]}/rank-*.jsonl 2>/dev/null | wc -l"
        wait_until(lambda: int(bank.ssh(count)) >= 4 * 12, "all ranks have written 12 steps", seconds=240)
        return jobs[-1]

    yield run
    for job in jobs:
        bank.ssh(f"scancel {job}")
        bank.wait_for_job(job)


def findings(bank: Cluster, job: str) -> tuple[dict[str, Any], Any]:
    document = bank.cloud.neo_json("slurm", "job", "diagnose", "bank", job)
    return {each["kind"]: each for each in document.get("findings", ())}, document


def test_the_rank_that_the_others_wait_for_is_named(bank: Cluster, submit: Submit, local_user: str) -> None:
    job = submit("hang")
    found, document = findings(bank, job)
    ranks = document["ranks"]
    assert [each["place"].split()[0] for each in ranks][2] == "load_batch"
    assert [each.get("collective", "") for each in ranks] == ["all_reduce", "all_reduce", "", "all_reduce"]
    assert found["elsewhere"]["ranks"] == ["2"] and "cannot tell" in found["elsewhere"]["message"]
    assert bank.job_state(job) == "RUNNING", "it was not stopped"
    assert not bank.ssh(f"find /home/{local_user} -name '.neocloud*'"), "nothing is left behind"
    owners = bank.ssh(f"sacct -nXP -j {job} -o User")
    assert owners == local_user
    shown = bank.cloud.neo("slurm", "job", "diagnose", "bank", job, "--stacks").stdout
    assert f"Rank 2 on {ranks[2]['node']}:" in shown and "load_batch" in shown


@pytest.mark.long
def test_the_rank_that_works_longest_is_named(bank: Cluster, submit: Submit) -> None:
    found, document = findings(bank, submit("slow"))
    assert found["slow"]["ranks"] == ["2"], document
    assert "elsewhere" not in found


def test_a_job_that_has_ended_is_refused(bank: Cluster) -> None:
    job = str(bank.sbatch("true"))
    bank.wait_for_job(job)
    said = bank.cloud.neo("slurm", "job", "diagnose", "bank", job, code=None)
    assert said.returncode and "only a running job" in said.stderr
