"""The page on fine-tuning is followed; a job over two nodes loses one and ends as if nothing had happened."""

import json
import re
import sys
from dataclasses import dataclass

import pytest
from pyarrow import csv, parquet

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import run
from tests.e2e.cluster import Cluster, user_key
from tests.e2e.conftest import ROOT
from tests.e2e.reader import block_with, follow
from tests.real.guides.session import Reader

PAGE = "docs/guides/fine-tune.md"
CODE = "/home/shared/finetune_code"
STEPS = 24
CONFIGURATION = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 2,
    "learning_rate": 5e-3,
    "lora_r": 4,
    "save_steps": 4,
    "logging_steps": 1,
}


@dataclass(frozen=True)
class Followed:
    """The page's three jobs, on the cluster that has its recipes and data."""

    bank: Cluster
    prepare: int
    finetune: int
    evaluate: int


@pytest.fixture(scope="module")
def followed(bank: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page is followed up to its report, with smaller settings; the first job has ended."""
    bank.wait_until_idle()
    folder = tmp_path_factory.mktemp("training")
    work = folder / "work"
    work.mkdir()
    (work / "recipes").symlink_to(ROOT / "recipes")
    run([sys.executable, ROOT / "recipes" / "make_dataset.py", "--output", folder / "bank.csv"])
    parquet.write_table(csv.read_csv(folder / "bank.csv"), work / "chats.parquet")
    # The page's cluster is called lab.
    reader = Reader(stands_for={"KEY": str(user_key(bank.cloud)), " lab": f" {bank.name}"})
    follow(bank.cloud, PAGE, folder, runs=("neo slurm", "ssh -F", "scp -F"), reader=reader)
    (folder / "config_e2e.json").write_text(json.dumps(CONFIGURATION))
    bank.copy_in(folder / "config_e2e.json", f"{CODE}/")
    smaller = f"export BASE_STEPS=6 CONFIG={CODE}/config_e2e.json EVALUATE_FLAGS='--limit 8 --samples 4'"
    submits = block_with(PAGE, "prepare=$(sbatch").text
    said = bank.ssh(f"set -eu; {smaller}\n{submits}\necho $prepare $finetune $evaluate")
    jobs = [int(word) for word in said.splitlines()[-1].split()]
    state = bank.wait_for_job(jobs[0], seconds=400)
    assert state == "COMPLETED", bank.ssh(f"cat {CODE}/prepare_{jobs[0]}.out")
    return Followed(bank, *jobs)


def submit(bank: Cluster, name: str) -> int:
    """Fine-tune on both workers, into a folder of its own."""
    data = f"{CODE}/results/chats"
    out = f"{CODE}/results/{name}"
    bank.ssh(f"mkdir -p {out} && ln -sfT {data}/chats_train.arrow {out}/chats_train.arrow")
    variables = f"OUT={out} MODEL={data}/base_model CONFIG={CODE}/config_e2e.json"
    return int(bank.ssh(f"cd {CODE} && {variables} sbatch --parsable finetune_distributed.sbatch"))


def log_of(bank: Cluster, job: int) -> str:
    return bank.try_ssh(f"cat {CODE}/finetune_{job}.out").stdout


def test_a_job_that_loses_a_worker_ends_at_the_same_step_with_the_same_weights(followed: Followed) -> None:
    """SLURM-20, FT-09: Slurm requeues it, and the recipe continues from the newest whole checkpoint."""
    bank, calm = followed.bank, followed.finetune
    assert bank.wait_for_job(calm, seconds=400) == "COMPLETED", log_of(bank, calm)

    hurt = submit(bank, "hurt")
    wait_until(lambda: checkpoints(bank, "hurt"), "a checkpoint is written", seconds=300)
    assert bank.job_state(hurt) == "RUNNING", log_of(bank, hurt)
    bank.remove_pods("worker-1")
    wait_until(lambda: "Restarts=1" in bank.ssh(f"scontrol show job {hurt}"), "the job is requeued")
    assert bank.wait_for_job(hurt, seconds=400) == "COMPLETED", log_of(bank, hurt)

    assert final_step(bank, "hurt") == final_step(bank, "chats") == STEPS
    resumed = re.search(r"resuming from \S+ at step (\d+)", log_of(bank, hurt))
    assert resumed and 0 < int(resumed[1]) < STEPS, "it began again instead of continuing"
    weights = "finetune/adapter/adapter_model.safetensors"
    sums = bank.ssh(f"cd {CODE}/results && sha256sum chats/{weights} hurt/{weights}").split()
    assert sums[0] == sums[2]


def test_the_report_is_read_as_written(followed: Followed) -> None:
    """IAC-03: the last job of the page compares base and fine-tuned model."""
    bank = followed.bank
    assert bank.wait_for_job(followed.evaluate, seconds=400) == "COMPLETED", bank.ssh(
        f"cat {CODE}/evaluator_{followed.evaluate}.err"
    )
    said = bank.ssh(f"cd {CODE} && {block_with(PAGE, 'jq .comparison').text}")
    assert '"perplexity":' in said and "tokens per second" in said


def checkpoints(bank: Cluster, name: str) -> list[str]:
    return bank.try_ssh(f"ls -d {CODE}/results/{name}/finetune/checkpoint*[0-9]").stdout.split()


def final_step(bank: Cluster, name: str) -> int:
    summary = json.loads(bank.ssh(f"cat {CODE}/results/{name}/finetune/adapter/training_summary.json"))
    return summary["step"]
