"""The index process: it survives what it is asked, and is started again when it dies."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from neocloud.core.sqlite_file import SqliteFileError
from neocloud.model_gateway.retrieval import index_process
from neocloud.model_gateway.retrieval.catalogue import Catalogue
from neocloud.model_gateway.retrieval.index_calls import (
    FinishFile,
    Hit,
    IndexRefusal,
    IndexUnavailable,
    PendingChunks,
    PutVectors,
    ReadFile,
    RemoveStore,
    Search,
)
from neocloud.model_gateway.retrieval.index_client import IndexProcess
from tests.fast.model_gateway.retrieval.embedding import vector_of

STORE = "vs_" + "a" * 24


async def fill(index: IndexProcess, home: Path, file_id: str, text: str) -> None:
    path = home / file_id
    path.write_text(text)
    assert await index.ask(ReadFile(STORE, file_id, str(path), "a.txt", 200, 0), int) > 0
    while chunks := await index.ask(PendingChunks(STORE, file_id, 32), list[tuple[int, str]]):
        vectors = [(number, vector_of(each)) for number, each in chunks]
        await index.ask(PutVectors(STORE, file_id, vectors), type(None))
    await index.ask(FinishFile(STORE, file_id), int)


def question(text: str, store: str = STORE) -> Search:
    return Search(store, [text], [vector_of(text)], 3)


async def test_a_process_that_dies_is_started_again_and_has_lost_nothing(tmp_path: Path) -> None:
    Catalogue(tmp_path)
    index = IndexProcess(tmp_path)
    try:
        await fill(index, tmp_path, "file-1", "The overdraft costs 11.9 percent.")
        found = await asyncio.gather(*(index.ask(question("overdraft"), list[Hit]) for _ in range(20)))
        assert {each[0].file_id for each in found} == {"file-1"}
        process = index._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        waiting = asyncio.ensure_future(index.ask(question("overdraft"), list[Hit]))
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(IndexUnavailable):
            await waiting
        [hit] = await index.ask(question("overdraft"), list[Hit])
        assert hit.text == "The overdraft costs 11.9 percent."
        with pytest.raises(IndexRefusal):
            await index.ask(RemoveStore("../../x"), type(None))
        assert await index.ask(question("x", "vs_" + "b" * 24), list[Hit]) == []
    finally:
        await index.stop()


async def test_two_processes_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = IndexProcess(tmp_path)
    Catalogue(tmp_path)
    await index.ask(question("x"), list[Hit])
    monkeypatch.setattr(index_process, "LOCK_SECONDS", 0.0)
    with pytest.raises(SqliteFileError):
        index_process.take_folder(tmp_path)
    await index.stop()
    index_process.take_folder(tmp_path)


async def test_a_damaged_index_file_is_made_again(tmp_path: Path) -> None:
    Catalogue(tmp_path)
    lines = "\n\n".join(f"Branch {number} has the safe safe{number}." * 9 for number in range(60))
    for damage in (b"", b"\xff" * 5000):
        indexes = index_process.Indexes(tmp_path, exact_chunks=10)
        store = indexes._store(STORE, is_new=True)  # pyright: ignore[reportPrivateUsage]
        store.read_file("file-1", lambda: lines.split("\n\n"))
        if pending := store.pending("file-1", 100):
            store.put_vectors("file-1", [(number, vector_of(text)) for number, text in pending])
        store.finish_file("file-1")
        hnsw = store._opened_hnsw()  # pyright: ignore[reportPrivateUsage]
        hnsw.save()
        assert len(hnsw) == 60
        file = tmp_path / "gateway" / "vector_stores" / STORE / "index.usearch"
        file.write_bytes(damage or file.read_bytes()[:-7])
        again = index_process.Indexes(tmp_path, exact_chunks=10)
        again._store(STORE).index()  # pyright: ignore[reportPrivateUsage]
        found = again.answer(Search(STORE, ["safe33"], [vector_of("safe33")], 3))
        assert isinstance(found, list) and "safe33" in found[0].text
