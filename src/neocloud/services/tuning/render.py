"""Render the workload of a job: a namespace with one pod, or a batch job of a Slurm cluster. Pure.

Both run `tuning_job.py` of the recipes in the job's folder; code and base model are read-only. Text that
tenants wrote is only in files, never in the pod's command or in the script.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Container, Manifest, Mount, Namespace, Pod, Volume, limits, variables
from neocloud.services.compute.public import Preset
from neocloud.services.slurm.types import MODELS_FEATURE, MODELS_MOUNT_PATH, BatchJob, NewJob

POD = "train"
ATTEMPT_LABEL = "neocloud.dev/attempt"
JOB_LABEL = "neocloud.dev/fine-tuning-job"
WORK, CODE, MODEL = "/job", "/code", "/model"
GRACE_SECONDS = 60
"""Time after SIGTERM for the current step and a checkpoint."""
WORK_ROOT = PurePosixPath("/home/shared/tuning")
"""The folder on a cluster's shared root that holds data, checkpoints and results of jobs, for all nodes."""


@dataclass(frozen=True)
class JobView:
    id: str
    attempt: int
    image: str
    work_folder: str
    code_folder: str
    model_folder: str
    cpus: int
    memory_mib: int
    gpus: int
    gpu_type: str = ""
    model_path: str = ""
    """The model's folder below `model_folder`; the engine follows no link there."""

    @property
    def pod(self) -> Reference:
        return Reference("Pod", self.id, POD)


def render(job: JobView) -> list[Manifest]:
    return [Namespace(name=job.id, labels={JOB_LABEL: job.id}), _pod(job)]


def _pod(job: JobView) -> Pod:
    container = Container(
        name="recipes",
        image=job.image,
        image_pull_policy="Never",
        command=("python3", f"{CODE}/tuning_job.py", WORK),
        env=variables(_environment(job)),
        resources=limits(cpus=job.cpus, memory_mib=job.memory_mib, gpus=job.gpus),
        volume_mounts=(
            Mount("work", WORK),
            Mount("code", CODE, read_only=True),
            Mount("model", MODEL, job.model_path or None, read_only=True),
            Mount("shm", "/dev/shm"),
        ),
    )
    return Pod(
        name=POD,
        namespace=job.id,
        labels={JOB_LABEL: job.id, ATTEMPT_LABEL: str(job.attempt)},
        gpu_type=job.gpu_type,
        # The reconciler decides about a restart, by the progress that the pod made.
        restart_policy="Never",
        termination_grace_period_seconds=GRACE_SECONDS,
        automount_service_account_token=False,
        containers=(container,),
        volumes=(
            Volume.of_host("work", job.work_folder),
            Volume.of_host("code", job.code_folder),
            Volume.of_host("model", job.model_folder),
            Volume.in_memory("shm", f"{job.memory_mib // 4}Mi"),
        ),
    )


def _environment(job: JobView) -> dict[str, str]:
    return {
        "HOME": "/tmp",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(max(1, job.cpus // max(1, job.gpus))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


SCRIPT = r"""#!/bin/bash
# Copies the files of a fine-tuning job to its folder on the shared root and runs the recipes there.
# $1 is the job's read-only folder, $2 its folder on the shared root, $3 the number of the attempt.
set -euo pipefail
source=$1 work=$2 attempt=$3
for folder in "${work%/*}" "$work"; do # what another user laid there would lead the copies elsewhere
    mkdir -p "$folder"
    [[ ! -L $folder && -O $folder ]] || { echo "$folder is a link, or not root's" >&2; exit 1; }
done
for file in "$source"/*_file.jsonl; do
    name=${file##*/}
    [[ -e $work/$name ]] || { cp "$file" "$work/.$name" && mv "$work/.$name" "$work/$name"; }
done
cp "$source/job-$attempt.json" "$work/.job.json" && mv "$work/.job.json" "$work/job.json"
export CODE=$source/code HOME=/tmp HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export TOKENIZERS_PARALLELISM=false SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
processes=${SLURM_GPUS_ON_NODE:-1}
threads=$((SLURM_CPUS_PER_TASK / processes))
export OMP_NUM_THREADS=$((threads > 1 ? threads : 1))
cd "$work"
exec python3 "$CODE/tuning_job.py" "$work"
"""


def mounted_path(job_id: str) -> PurePosixPath:
    """Return the path of the job's read-only folder on the nodes of a cluster."""
    return PurePosixPath(MODELS_MOUNT_PATH) / job_id


def work_path(job_id: str) -> PurePosixPath:
    """Return the path of the job's own folder on the shared root of a cluster."""
    return WORK_ROOT / job_id


def batch_job(job_id: str, attempt: int, nodes: int, shape: Preset) -> NewJob:
    """Return a job on whole nodes, which Slurm starts again when it loses one of them."""
    options = [
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={shape.vcpu}",
        "--mem=0",
        f"--constraint={MODELS_FEATURE}",
        "--requeue",
        "--dependency=singleton",  # a repeat after a crash never writes to the same checkpoints
        "--open-mode=append",
        "--output=/root/%x-%j.log",  # others know the name: in /home/shared they may lay a link there
    ]
    if shape.gpus:
        options.append(f"--gpus-per-node={shape.gpus}")
    arguments = (str(mounted_path(job_id)), str(work_path(job_id)), str(attempt))
    return NewJob(f"{job_id}.{attempt}", SCRIPT, tuple(options), arguments)


def attempt_of(job_id: str, job: BatchJob) -> int | None:
    """Return the attempt that a batch job's name says; None for another job's. Any user may choose a name, so
    this is for jobs of root that an earlier release submitted."""
    owner, _, number = job.name.rpartition(".")
    return int(number) if owner == job_id and number.isdigit() else None
