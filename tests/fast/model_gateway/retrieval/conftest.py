"""Vector stores in this process: files and callers of `openai_files`, and the index without its process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from neocloud.model_gateway.composition import OpenAiFiles
from neocloud.model_gateway.retrieval.index_calls import (
    Call,
    IndexAnswer,
    IndexRefusal,
    IndexUnavailable,
    Request,
)
from neocloud.model_gateway.retrieval.index_process import Indexes, answered
from neocloud.model_gateway.retrieval.service import Retrieval
from neocloud.model_gateway.routing.routes import RouteTable
from neocloud.model_gateway.settings import RetrievalSettings
from neocloud.testing.waiting import FakeClock
from tests.fast.model_gateway.openai_files.conftest import (  # noqa: F401
    CALLERS,
    EVERYTHING,
    KnownCallers,
    clock,
    jobs,
    objects,
    sender,
    settings,
    upload,
)
from tests.fast.model_gateway.retrieval.embedding import WordEmbedder

VERBS = [f"inference.vectorStores.{verb}" for verb in ("create", "get", "list", "update", "delete")]
VERBS += [f"inference.responses.{verb}" for verb in ("get", "delete")]
T = TypeVar("T")


class LocalIndex:
    """Calls the index in a thread, through the messages that its process gets."""

    def __init__(self, home: Path) -> None:
        self.indexes = Indexes(home, exact_chunks=50)
        self.calls: list[Call] = []
        self.is_away = False

    async def ask(self, call: Call, kind: type[T]) -> T:
        self.calls.append(call)
        if self.is_away:
            raise IndexUnavailable("it is away")
        request = msgspec.msgpack.decode(msgspec.msgpack.encode(Request(1, call)), type=Request)
        found = await asyncio.to_thread(answered, self.indexes, request)
        answer = msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=IndexAnswer)
        if answer.code == "crashed":
            raise IndexUnavailable(answer.message)
        if answer.code:
            raise IndexRefusal(answer.code, answer.message)
        return msgspec.convert(answer.value, kind)


@pytest.fixture(autouse=True)
def rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callers of `openai_files` may use vector stores, too."""
    for key, caller in list(CALLERS.items()):
        grants = {
            project: granted | frozenset(VERBS if granted == EVERYTHING else VERBS[1:3])
            for project, granted in caller.grants.items()
        }
        monkeypatch.setitem(CALLERS, key, _with(caller, grants))


def _with(caller: Any, grants: Any) -> Any:
    return type(caller)(**{**vars(caller), "grants": grants})


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def limits() -> RetrievalSettings:
    return RetrievalSettings(max_project_stores=4, max_store_files=6)


@pytest.fixture
async def retrieval(
    tmp_path: Path,
    objects: OpenAiFiles,  # noqa: F811
    embedder: WordEmbedder,
    clock: FakeClock,  # noqa: F811
    limits: RetrievalSettings,
) -> AsyncIterator[Retrieval]:
    found = Retrieval(
        *(tmp_path, KnownCallers(), objects.files, objects.buckets, embedder, clock),
        RouteTable(),
        settings=limits,
        index=LocalIndex(tmp_path),
    )
    objects.when_deleted(found.files.file_deleted)
    await found.start()
    yield found
    await found.stop()


class Bank:
    """A caller's requests, as one would write them."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, method: str, path: str, status: int = 200, **body: Any) -> Any:
        answer = await self.http.request(method, path, json=body if method == "POST" else None)
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["error"]

    async def store(self, *contents: str, suffix: str = ".txt", **fields: Any) -> str:
        """Return the id of a store with these documents, once they are indexed."""
        names = [f"document-{number}{suffix}" for number in range(len(contents))]
        ids = [
            await upload(self.http, content.encode(), "assistants", name)
            for name, content in zip(names, contents, strict=True)
        ]
        store = (await self.ask("POST", "vector_stores", name="bank", file_ids=ids, **fields))["id"]
        await self.settled(store)
        return store

    async def settled(self, store: str) -> Any:
        async with asyncio.timeout(30):
            while (found := await self.ask("GET", f"vector_stores/{store}"))["status"] == "in_progress":
                await asyncio.sleep(0.005)
        return found

    async def search(self, store: str, query: Any, **more: Any) -> list[Any]:
        return (await self.ask("POST", f"vector_stores/{store}/search", query=query, **more))["data"]


def bank_of(retrieval: Retrieval, objects: OpenAiFiles, name: str) -> Bank:  # noqa: F811
    app = Starlette(routes=[*objects.routes(), *retrieval.routes()])
    return Bank(
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://gateway/v1/",
            headers={"Authorization": f"Bearer {name}"},
        )
    )


@pytest.fixture
async def alice(retrieval: Retrieval, objects: OpenAiFiles) -> AsyncIterator[Bank]:  # noqa: F811
    bank = bank_of(retrieval, objects, "alice")
    async with bank.http:
        yield bank


@pytest.fixture
async def mallory(retrieval: Retrieval, objects: OpenAiFiles) -> AsyncIterator[Bank]:  # noqa: F811
    bank = bank_of(retrieval, objects, "mallory")
    async with bank.http:
        yield bank
