"""A control plane in this process on a fake engine; what the recipes would leave in a folder, tests write."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.messages.neocloud.inference.v1 import ModelStatus

from neocloud.core import contract
from neocloud.core.readers import ServiceRegistry
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.services.inference.public import weights_digest
from neocloud.services.inference.reconcile.reader import ModelReader
from neocloud.services.tuning.render import POD
from neocloud.services.tuning.types import work_folder
from neocloud.testing.waiting import until
from tests import control_plane

JOBS = "neocloud.tuning.v1.FineTuningJobService"
StateEnum = contract.enum("neocloud.tuning.v1.FineTuningJobStatus.State")
PERPLEXITIES = {"base_perplexity": 5.0, "fine_tuned_perplexity": 2.5, "perplexity_improvement": 50.0}
CHAT = {"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Good day."}]}


class FixedReader:
    """Every folder holds a model of a million weights."""

    reads_files = True

    async def read(self, folder: Any, base_folder: Any) -> Any:
        return ModelStatus(
            architecture="Qwen3ForCausalLM",
            context_length=2048,
            parameters=1_300_000,
            size_bytes=5_200_000,
            dtype="float32",
            kv_bytes_per_token=4096,
            adapter_bytes_per_rank=20_000,
            lora_rank=16 if base_folder else 0,
            digest=_digest(folder),
            has_chat_template=True,
        )


def _digest(location: Any) -> str:
    with location.folder() as folder:
        return weights_digest(folder)


class FakeCloud(control_plane.Cloud):
    @property
    def world(self) -> FakeWorld:
        return self.engine.world

    def upload(self, text: str) -> str:
        """Keep an upload as the gateway does."""
        path = self.home / "upload.jsonl"
        path.write_text(text, encoding="utf-8")
        return FileStore(self.home).add(self.project_id, path, "fine-tune", "chats.jsonl")

    async def job_call(self, verb: str, request: str, **fields: Any) -> Any:
        message = contract.message(f"neocloud.tuning.v1.{request}")(**fields)
        return await self.call(f"{JOBS}/{verb}", message)

    async def job(self, job_id: str) -> Any:
        return await self.job_call("Get", "GetFineTuningJobRequest", id=job_id)

    def recipes(self, job_id: str) -> "Recipes":
        return Recipes(work_folder(self.home, job_id))

    def pod(self, job_id: str) -> Any:
        return self.world.pods.get(Reference("Pod", job_id, POD))


@dataclass(frozen=True)
class Recipes:
    """Leaves in a job's folder what tuning_job.py would."""

    folder: Path

    @property
    def wanted(self) -> dict[str, Any]:
        return json.loads((self.folder / "job.json").read_text())

    def begin(self) -> None:
        (self.folder / "chats_train.arrow").write_bytes(b"rows")

    def reach(self, step: int, total: int = 20, loss: float = 1.5, at: float | None = None) -> None:
        (self.folder / "finetune").mkdir(exist_ok=True)
        row = {"time": at or time.time(), "step": step, "total_steps": total, "train_loss": loss}
        with (self.folder / "finetune" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**row, "learning_rate": 0.001, "tokens": 100 * step}) + "\n")

    def save(self, step: int) -> None:
        (self.folder / "finetune" / f"checkpoint-{step:06d}").mkdir(parents=True)

    def end(self, state: str, **facts: Any) -> None:
        content = {"attempt": self.wanted["attempt"], "state": state, **facts}
        (self.folder / "outcome.json").write_text(json.dumps(content))

    def succeed(
        self,
        add: Callable[[Path], None] = lambda result: None,
        report: str | None = "{}",
        measured: Mapping[str, float] = PERPLEXITIES,
    ) -> None:
        (self.folder / "result").mkdir()
        add(self.folder / "result")
        (self.folder / "result" / "adapter_model.safetensors").write_bytes(b"weights")
        (self.folder / "metrics.csv").write_text("step,train_loss,valid_loss\n20,1.0,1.1\n")
        if report is not None:
            (self.folder / "report.json").write_text(report)
        self.end("succeeded", trained_tokens=2000, conversations=4, **measured)


@asynccontextmanager
async def fake_cloud(
    home: Path, world: FakeWorld | None = None, others: ServiceRegistry | None = None
) -> AsyncIterator[FakeCloud]:
    overrides = (others or ServiceRegistry()).copy().add(ModelReader, FixedReader())
    async with control_plane.cloud_in_process(
        home,
        FakeEngine(world or FakeWorld()),
        overrides=overrides,
        images={name: {"name": name} for name in ("jail", "slurm")},
        model_folders=(home / "opened",),
    ) as cloud:
        yield FakeCloud(**vars(cloud))


async def add_model(cloud: FakeCloud, name: str = "tiny", base_id: str = "") -> str:
    """A READY model."""
    folder = cloud.home / "opened" / name
    folder.mkdir(parents=True, exist_ok=True)
    request = contract.message("neocloud.inference.v1.CreateModelRequest")()
    request.metadata.parent_id, request.metadata.name = cloud.project_id, name
    request.spec.source.folder = str(folder)
    request.spec.base_model_id = base_id
    operation = await cloud.call("neocloud.inference.v1.ModelService/Create", request)
    await cloud.until(operation.resource_id, "READY")
    return operation.resource_id


async def create_job(cloud: FakeCloud, model_id: str, **spec: Any) -> str:
    request = contract.message("neocloud.tuning.v1.CreateFineTuningJobRequest")()
    request.metadata.parent_id = cloud.project_id
    given = {"platform": "cpu-local", "preset": "1vcpu-4gb", **spec}
    if "training_file" not in given:
        given["training_file"] = cloud.upload((json.dumps(CHAT) + "\n") * 40)
    request.spec.MergeFrom(
        contract.message("neocloud.tuning.v1.FineTuningJobSpec")(model_id=model_id, **given)
    )
    return (await cloud.call(f"{JOBS}/Create", request)).resource_id


async def started_job(cloud: FakeCloud, **spec: Any) -> str:
    """A job whose recipes have begun to train."""
    job_id = await create_job(cloud, await add_model(cloud), **spec)
    await until(lambda: cloud.pod(job_id) is not None)
    cloud.recipes(job_id).begin()
    await cloud.until(job_id, "RUNNING")
    return job_id
