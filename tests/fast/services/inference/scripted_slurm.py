"""A Slurm and a store that do what a test says, for the backend of replicas that are jobs."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from neocloud.messages.neocloud.inference.v1 import DeploymentSpec
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

from neocloud.services.slurm.types import BatchJob, NewJob, PrintedText

DEPLOYMENT, CLUSTER, KEY = "inferencedeployment-e00one", "slurmcluster-e00lab", b"secret-of-the-engines"
STARTED = datetime(2026, 11, 1, tzinfo=UTC)


class ScriptedJobs:
    """A BatchJobs whose jobs do what the test says."""

    def __init__(self) -> None:
        self.all: list[BatchJob] = []
        self.submitted: list[NewJob] = []
        self.cancelled: list[int] = []
        self.refusal: Exception | None = None
        self.crash: BaseException | None = None
        """What the next submission ends with after Slurm has taken the job."""

    async def submit(self, cluster_id: str, job: NewJob) -> int:
        self._answer()
        self.submitted.append(job)
        self.adds(job.name, submission=job.submission)
        if self.crash is not None:
            crash, self.crash = self.crash, None
            raise crash
        return len(self.all)

    def adds(self, name: str, *, user_id: int = 0, submission: str = "") -> int:
        number = len(self.all) + 1
        job = BatchJob(number, name, "PENDING", False, "Resources", user_id=user_id, submission=submission)
        self.all.append(job)
        return number

    async def jobs(self, cluster_id: str) -> list[BatchJob]:
        self._answer()
        return list(self.all)

    async def cancel(self, cluster_id: str, job_id: int) -> None:
        self.cancelled.append(job_id)

    async def tail(self, cluster_id: str, job_id: int, lines: int) -> PrintedText:
        return PrintedText(f"{lines} lines of job {job_id}", 40)

    async def printed(self, cluster_id: str, job_id: int, offset: int) -> PrintedText:
        return PrintedText(f"job {job_id} from {offset}\n", offset + 10)

    def becomes(self, job_id: int, state: str, **changes: Any) -> None:
        has_ended = state not in ("PENDING", "RUNNING", "COMPLETING")
        self.all[job_id - 1] = replace(self.all[job_id - 1], state=state, has_ended=has_ended, **changes)

    def runs(self, job_id: int, address: str = "10.89.3.4") -> None:
        self.becomes(job_id, "RUNNING", node="worker-0", address=address, started_at=STARTED)

    def _answer(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class PlainStore:
    """The part of a Store that a backend uses: secrets, and rows of deployments. Also its transaction."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, str], bytes] = {}

    async def read(self, work: Callable[[Any], Any]) -> Any:
        return work(self)

    async def write(self, work: Callable[[Any], Any]) -> Any:
        return work(self)

    def secret(self, resource_id: str, name: str) -> bytes | None:
        return self.secrets.get((resource_id, name))

    def put_secret(self, resource_id: str, name: str, content: bytes) -> None:
        self.secrets[resource_id, name] = content

    def get(self, resource_id: str) -> Any:
        spec = DeploymentSpec(slurm_cluster_id=CLUSTER)
        return SimpleNamespace(spec=spec.SerializeToString()) if resource_id == DEPLOYMENT else None


class PlainContext:
    """The part of a Context that a backend uses."""

    def __init__(self, subnet_id: str = "", *, has_cluster: bool = True) -> None:
        spec = ClusterSpec(subnet_id=subnet_id).SerializeToString()
        self._cluster = SimpleNamespace(name="lab", spec=spec, deleted_at=None) if has_cluster else None

    async def get(self, resource_id: str) -> Any:
        return self._cluster

    async def reserve(self, namespace: str, candidates: Any) -> str:
        assert namespace == f"inference.ports/{CLUSTER}"
        return list(candidates)[3]
