"""Which workload a job needs: a picture of it in, a namespace and one pod out. Pure.

The pod runs the recipes from the shared root's image. Data and results lie in the job's folder on the host;
code and base model are there to be read only.
"""

from dataclasses import dataclass

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Container, Manifest, Mount, Namespace, Pod, Volume, limits, variables

POD = "train"
ATTEMPT_LABEL = "neocloud.dev/attempt"
JOB_LABEL = "neocloud.dev/fine-tuning-job"
WORK, CODE, MODEL = "/job", "/code", "/model"
GRACE_SECONDS = 60
"""After SIGTERM a step and a checkpoint have to fit in."""


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
    model_path: str = ""
    """Below `model_folder`; the engine follows no link there."""

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
        # What to do after an end depends on how far it was, which only the reconciler knows.
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
