"""The gateway's objects in this process: callers by token, and no engine behind them."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from neocloud.messages.neocloud.inference.v1 import IssueFileKeyRequest, IssueFileKeyResponse

from neocloud.model_gateway.api.errors import not_authenticated
from neocloud.model_gateway.authentication import Caller
from neocloud.model_gateway.composition import OpenAiFiles
from neocloud.model_gateway.control_plane import NoFileBucket
from neocloud.model_gateway.settings import FileSettings
from neocloud.testing.waiting import FakeClock
from tests.fast.model_gateway.openai_files.batch_client import ScriptedBatchClient
from tests.fast.model_gateway.openai_files.jobs import Jobs

EVERYTHING = frozenset(
    ["inference.deployments.invoke"]
    + [
        f"inference.{noun}.{verb}"
        for noun in ("files", "batches")
        for verb in ("create", "get", "list", "delete")
    ]
    + ["inference.batches.cancel"]
    + [f"tuning.fineTuningJobs.{verb}" for verb in ("create", "get", "list", "cancel", "delete")]
)
READING = frozenset(["inference.files.get", "inference.files.list"])


def caller(name: str, tenant: str, home: str, **grants: frozenset[str]) -> Caller:
    return Caller(name, name, tenant, home, grants)


CALLERS = {
    "Bearer alice": caller("alice", "tenant-a", "project-a", **{"project-a": EVERYTHING}),
    "Bearer reader": caller("reader", "tenant-a", "project-a", **{"project-a": READING}),
    "Bearer mallory": caller("mallory", "tenant-b", "project-b", **{"project-b": EVERYTHING}),
    "Bearer both": caller("both", "tenant-a", "", **{"project-a": EVERYTHING, "project-c": EVERYTHING}),
}


class KnownCallers:
    async def authenticate(self, authorization: str) -> Caller:
        if authorization not in CALLERS:
            raise not_authenticated("This key is not known.")
        return CALLERS[authorization]

    async def refresh(self, caller: Caller) -> Caller:
        authorization = f"Bearer {caller.subject_id}"
        return await self.authenticate(authorization)


class NoKeys:
    """The control plane of projects without a file bucket."""

    async def issue_file_key(self, request: IssueFileKeyRequest) -> IssueFileKeyResponse:
        raise NoFileBucket


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sender() -> ScriptedBatchClient:
    return ScriptedBatchClient()


@pytest.fixture
def settings() -> FileSettings:
    return FileSettings(max_file_bytes=3_000_000, max_open_batches=3)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def objects(
    tmp_path: Path, clock: FakeClock, sender: ScriptedBatchClient, settings: FileSettings, jobs: Jobs
) -> OpenAiFiles:
    return OpenAiFiles(
        *(tmp_path, KnownCallers(), sender, NoKeys(), ""), settings=settings, clock=clock, calls=jobs
    )


@pytest.fixture
async def alice(objects: OpenAiFiles) -> AsyncIterator[httpx.AsyncClient]:
    async with client(objects, "alice") as http:
        yield http


def client(objects: OpenAiFiles, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(objects.app),
        base_url="http://gateway/v1/",
        headers={"Authorization": f"Bearer {name}"},
    )


async def upload(
    http: httpx.AsyncClient, content: bytes, purpose: str = "batch", name: str = "f.jsonl"
) -> str:
    """Its id."""
    answer = await http.post("files", data={"purpose": purpose}, files={"file": (name, content)})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]
