"""Which workload a job needs: a picture of it in, a namespace and one pod out. Pure.

The pod runs the recipes from the shared root's image. Data and results lie in the job's folder on the host;
code and base model are there to be read only.
"""

from dataclasses import dataclass

from neocloud.engines.base import KubernetesObject, Reference

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


def render(job: JobView) -> list[KubernetesObject]:
    return [_namespace(job), _pod(job)]


def _namespace(job: JobView) -> KubernetesObject:
    metadata = {"name": job.id, "labels": {JOB_LABEL: job.id}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _pod(job: JobView) -> KubernetesObject:
    limits = {"cpu": str(job.cpus), "memory": f"{job.memory_mib}Mi"}
    if job.gpus:
        limits["nvidia.com/gpu"] = str(job.gpus)
    path = {"subPath": job.model_path} if job.model_path else {}
    container = {
        "name": "recipes",
        "image": job.image,
        "imagePullPolicy": "Never",
        "command": ["python3", f"{CODE}/tuning_job.py", WORK],
        "env": [{"name": name, "value": value} for name, value in _environment(job).items()],
        "resources": {"limits": limits},
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "code", "mountPath": CODE, "readOnly": True},
            {"name": "model", "mountPath": MODEL, **path, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    labels = {JOB_LABEL: job.id, ATTEMPT_LABEL: str(job.attempt)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": job.id, "labels": labels},
        "spec": {
            # What to do after an end depends on how far it was, which only the reconciler knows.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [
                {"name": "work", "hostPath": {"path": job.work_folder}},
                {"name": "code", "hostPath": {"path": job.code_folder}},
                {"name": "model", "hostPath": {"path": job.model_folder}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{job.memory_mib // 4}Mi"}},
            ],
        },
    }


def _environment(job: JobView) -> dict[str, str]:
    return {
        "HOME": "/tmp",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(max(1, job.cpus // max(1, job.gpus))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
