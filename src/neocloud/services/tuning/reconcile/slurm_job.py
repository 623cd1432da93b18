"""The batch job that carries out a fine-tuning job: its script, its name, what it asks of Slurm. Pure.

What tenants wrote only ever lies in files that the script's arguments name.
"""

from pathlib import PurePosixPath

from neocloud.services.compute.public import Preset
from neocloud.services.slurm.public import MODELS_FEATURE, MODELS_MOUNT_PATH, BatchJob, NewJob

WORK_ROOT = PurePosixPath("/home/shared/tuning")
"""On the cluster's shared root: data, checkpoints and results, for all of its nodes."""

SCRIPT = r"""#!/bin/bash
# Lays a fine-tuning job's files into its folder on the shared root and runs the recipes there.
# $1 is what the cloud shows of the job, to be read only; $2 its folder; $3 the number of the attempt.
set -euo pipefail
shown=$1 work=$2 attempt=$3
mkdir -p "$work"
for file in "$shown"/*_file.jsonl; do
    name=${file##*/}
    [[ -e $work/$name ]] || { cp "$file" "$work/.$name" && mv "$work/.$name" "$work/$name"; }
done
cp "$shown/job-$attempt.json" "$work/.job.json" && mv "$work/.job.json" "$work/job.json"
export CODE=$shown/code HOME=/tmp HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export TOKENIZERS_PARALLELISM=false SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
processes=${SLURM_GPUS_ON_NODE:-1}
threads=$((SLURM_CPUS_PER_TASK / processes))
export OMP_NUM_THREADS=$((threads > 1 ? threads : 1))
cd "$work"
exec python3 "$CODE/tuning_job.py" "$work"
"""


def shown_as(job_id: str) -> PurePosixPath:
    """Where nodes see what was laid for the job."""
    return PurePosixPath(MODELS_MOUNT_PATH) / job_id


def work_path(job_id: str) -> PurePosixPath:
    return WORK_ROOT / job_id


def new_job(job_id: str, attempt: int, nodes: int, shape: Preset) -> NewJob:
    """On whole nodes, which Slurm may lose: it starts the job anew by itself then."""
    options = [
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={shape.vcpu}",
        "--mem=0",
        f"--constraint={MODELS_FEATURE}",
        "--requeue",
        "--open-mode=append",
        "--output=/home/shared/%x-%j.log",
    ]
    if shape.gpus:
        options.append(f"--gpus-per-node={shape.gpus}")
    arguments = (str(shown_as(job_id)), str(work_path(job_id)), str(attempt))
    return NewJob(f"{job_id}.{attempt}", SCRIPT, tuple(options), arguments)


def attempt_of(job_id: str, job: BatchJob) -> int | None:
    """None for a job of something else."""
    owner, _, number = job.name.rpartition(".")
    return int(number) if owner == job_id and number.isdigit() else None
