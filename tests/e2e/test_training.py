"""A real fine-tuning job over two nodes loses one of them and ends as if nothing had happened."""

import json
import re

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import ROOT

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


@pytest.fixture(scope="module")
def prepared(bank: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Recipes, a tiny base model and tokenised data are on the cluster."""
    bank.wait_until_idle()
    bank.ssh(f"mkdir -p {CODE}")
    for path in sorted((ROOT / "recipes").iterdir()):
        if path.is_file():
            bank.copy_in(path, f"{CODE}/")
    settings = tmp_path_factory.mktemp("training") / "config_e2e.json"
    settings.write_text(json.dumps(CONFIGURATION))
    bank.copy_in(settings, f"{CODE}/")
    job = int(bank.ssh(f"cd {CODE} && BASE_STEPS=6 sbatch --parsable prepare.sbatch"))
    state = bank.wait_for_job(job, seconds=400)
    assert state == "COMPLETED", bank.ssh(f"cat {CODE}/prepare_{job}.out")
    return bank


def submit(bank: Cluster, name: str) -> int:
    """Fine-tune on both workers, into a folder of its own."""
    data = f"{CODE}/results/bank"
    out = f"{CODE}/results/{name}"
    bank.ssh(f"mkdir -p {out} && ln -sfT {data}/chats_train.arrow {out}/chats_train.arrow")
    variables = f"OUT={out} MODEL={data}/base_model CONFIG={CODE}/config_e2e.json"
    return int(bank.ssh(f"cd {CODE} && {variables} sbatch --parsable finetune_distributed.sbatch"))


def log_of(bank: Cluster, job: int) -> str:
    return bank.try_ssh(f"cat {CODE}/finetune_{job}.out").stdout


def test_a_job_that_loses_a_worker_ends_at_the_same_step_with_the_same_weights(prepared: Cluster) -> None:
    """SLURM-20, FT-09: Slurm requeues it, and the recipe goes on from the newest whole checkpoint."""
    bank = prepared
    calm = submit(bank, "calm")
    assert bank.wait_for_job(calm, seconds=400) == "COMPLETED", log_of(bank, calm)

    hurt = submit(bank, "hurt")
    wait_until(lambda: checkpoints(bank, "hurt"), "a checkpoint is written", seconds=300)
    assert bank.job_state(hurt) == "RUNNING", log_of(bank, hurt)
    bank.remove_pods("worker-1")
    wait_until(lambda: "Restarts=1" in bank.ssh(f"scontrol show job {hurt}"), "the job is requeued")
    assert bank.wait_for_job(hurt, seconds=400) == "COMPLETED", log_of(bank, hurt)

    assert final_step(bank, "hurt") == final_step(bank, "calm") == STEPS
    resumed = re.search(r"resuming from \S+ at step (\d+)", log_of(bank, hurt))
    assert resumed and 0 < int(resumed[1]) < STEPS, "it began anew instead of going on"
    weights = "finetune/adapter/adapter_model.safetensors"
    sums = bank.ssh(f"cd {CODE}/results && sha256sum calm/{weights} hurt/{weights}").split()
    assert sums[0] == sums[2]


def checkpoints(bank: Cluster, name: str) -> list[str]:
    return bank.try_ssh(f"ls -d {CODE}/results/{name}/finetune/checkpoint*[0-9]").stdout.split()


def final_step(bank: Cluster, name: str) -> int:
    summary = json.loads(bank.ssh(f"cat {CODE}/results/{name}/finetune/adapter/training_summary.json"))
    return summary["step"]
