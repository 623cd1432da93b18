"""Vector stores over HTTP: documents become chunks, and searches find them; what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.composition import OpenAiFiles
from neocloud.model_gateway.openai_files.files import new_file_id
from neocloud.model_gateway.retrieval.service import Retrieval
from neocloud.testing.waiting import FakeClock
from tests.fast.model_gateway.openai_files.conftest import upload
from tests.fast.model_gateway.retrieval.conftest import Bank, bank_of
from tests.fast.model_gateway.retrieval.embedding import WordEmbedder

CARDS = "A lost card is blocked in the app under Cards, or by phone at any hour. A new card costs 10 euros."
LOANS = "Loans run for 12 to 84 months. The interest of a personal loan begins at 6.9 percent a year."
OVERDRAFT = "An overdraft of up to 500 euros is agreed with every salary account and costs 11.9 percent."


async def test_a_question_finds_its_document(alice: Bank) -> None:
    store = await alice.store(CARDS, LOANS, OVERDRAFT)
    [first, *rest] = await alice.search(store, "my card is lost, is it blocked?")
    assert (first["filename"], first["content"]) == ("document-0.txt", [{"type": "text", "text": CARDS}])
    assert 0.2 < first["score"] <= 1 and all(each["score"] <= first["score"] for each in rest)
    shown = await alice.ask("GET", f"vector_stores/{store}")
    counts = {"in_progress": 0, "completed": 3, "failed": 0, "cancelled": 0, "total": 3}
    assert (shown["status"], shown["file_counts"]) == ("completed", counts)
    assert shown["usage_bytes"] == sum(map(len, (CARDS, LOANS, OVERDRAFT))) + 3 * 64 * 4
    assert shown["neocloud"] == {"embedding_model": "words"}


async def test_words_that_the_model_does_not_know_are_found_by_keyword(
    alice: Bank, embedder: WordEmbedder
) -> None:
    store = await alice.store(CARDS, LOANS, f"{OVERDRAFT} Form XK4711 is for it.")
    embedder.answer = bytes(64 * 4)  # a model that sees nothing in the query
    [first, *_] = await alice.search(store, "where is xk4711")
    assert "XK4711" in first["content"][0]["text"]
    nothing = await alice.search(store, "where is xk4711", ranking_options={"score_threshold": 0.1})
    assert nothing == []


async def test_results_are_as_many_and_as_near_as_asked_for(alice: Bank) -> None:
    store = await alice.store(CARDS, LOANS, OVERDRAFT)
    assert len(await alice.search(store, "percent", max_num_results=1)) == 1
    near = await alice.search(store, LOANS, ranking_options={"score_threshold": 0.9, "ranker": "none"})
    assert [each["filename"] for each in near] == ["document-1.txt"]
    both = await alice.search(store, [CARDS, LOANS], max_num_results=2)
    assert {each["filename"] for each in both} == {"document-0.txt", "document-1.txt"}


async def test_filters_choose_documents_by_attributes(alice: Bank) -> None:
    store = await alice.store(CARDS, LOANS, OVERDRAFT)
    files = (await alice.ask("GET", f"vector_stores/{store}/files?order=asc"))["data"]
    for number, file in enumerate(files):
        path = f"vector_stores/{store}/files/{file['id']}"
        given = {"year": 2024 + number, "product": "credit" if number else "card'; DROP TABLE chunks; --"}
        changed = await alice.ask("POST", path, attributes=given)
        assert changed["attributes"] == given
    newest: dict[str, Any] = {"type": "gte", "key": "year", "value": 2026}
    found = await alice.search(store, "card loan overdraft", filters=newest)
    assert [each["attributes"]["year"] for each in found] == [2026]
    both = {
        "type": "or",
        "filters": [newest, {"type": "eq", "key": "product", "value": "card'; DROP TABLE chunks; --"}],
    }
    assert {each["attributes"]["year"] for each in await alice.search(store, "card", filters=both)} == {
        2024,
        2026,
    }
    none = {"type": "and", "filters": [newest, {"type": "in", "key": "product", "value": ["x", 1]}]}
    assert await alice.search(store, "card", filters=none) == []


async def test_files_are_attached_listed_read_and_detached(alice: Bank) -> None:
    store = await alice.store()
    file = await upload(alice.http, CARDS.encode(), "assistants", "cards.md")
    static = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    made = await alice.ask(
        "POST", f"vector_stores/{store}/files", file_id=file, chunking_strategy=static, attributes={"a": True}
    )
    assert (made["object"], made["vector_store_id"], made["chunking_strategy"]) == (
        "vector_store.file",
        store,
        static,
    )
    await alice.settled(store)
    shown = await alice.ask("GET", f"vector_stores/{store}/files/{file}")
    assert (shown["status"], shown["last_error"], shown["attributes"]) == ("completed", None, {"a": True})
    content = await alice.ask("GET", f"vector_stores/{store}/files/{file}/content")
    assert content["data"] == [{"type": "text", "text": CARDS}]
    assert (await alice.ask("DELETE", f"vector_stores/{store}/files/{file}"))["deleted"] is True
    assert await alice.search(store, "card") == []
    assert (await alice.ask("GET", f"files/{file}"))["id"] == file, "the file itself stays"


async def test_a_deleted_file_leaves_all_stores(alice: Bank) -> None:
    store = await alice.store(CARDS, LOANS)
    file = (await alice.search(store, "lost card"))[0]["file_id"]
    await alice.ask("DELETE", f"files/{file}")
    assert [each["filename"] for each in await alice.search(store, "lost card")] == ["document-1.txt"]
    assert (await alice.ask("GET", f"vector_stores/{store}"))["file_counts"]["total"] == 1


async def test_batches_of_files(alice: Bank, embedder: WordEmbedder) -> None:
    store = await alice.store()
    ids = [await upload(alice.http, text.encode(), "user_data", "t.txt") for text in (CARDS, LOANS)]
    path = f"vector_stores/{store}/file_batches"
    batch = await alice.ask("POST", path, file_ids=ids, attributes={"of": "bank"})
    assert (batch["object"], batch["file_counts"]["total"]) == ("vector_store.files_batch", 2)
    await alice.settled(store)
    done = await alice.ask("GET", f"{path}/{batch['id']}")
    assert (done["status"], done["file_counts"]["completed"]) == ("completed", 2)
    listed = (await alice.ask("GET", f"{path}/{batch['id']}/files?filter=completed"))["data"]
    assert {each["id"] for each in listed} == set(ids) and listed[0]["attributes"] == {"of": "bank"}
    gone = OpenAiError(503, "no replica")
    embedder.failures = [gone] * 1000
    entries = [{"file_id": await upload(alice.http, b"more", "assistants", "m.txt"), "attributes": {"n": 1}}]
    slow = await alice.ask("POST", path, files=entries)
    cancelled = await alice.ask("POST", f"{path}/{slow['id']}/cancel")
    assert (cancelled["status"], cancelled["file_counts"]["cancelled"]) == ("cancelled", 1)


async def test_stores_are_listed_changed_and_deleted(alice: Bank, tmp_path: Path) -> None:
    first, second = await alice.store(CARDS), await alice.store()
    listed = await alice.ask("GET", "vector_stores?limit=1")
    assert ([each["id"] for each in listed["data"]], listed["has_more"]) == ([second], True)
    following = await alice.ask("GET", f"vector_stores?after={second}")
    assert [each["id"] for each in following["data"]] == [first]
    assert (await alice.ask("GET", f"vector_stores?before={first}", 400))["param"] == "before"
    changed = await alice.ask("POST", f"vector_stores/{first}", name="cards", metadata={"owner": "retail"})
    assert (changed["name"], changed["metadata"]) == ("cards", {"owner": "retail"})
    folder = tmp_path / "gateway" / "vector_stores"
    assert (folder / first).exists()
    assert await alice.ask("DELETE", f"vector_stores/{first}") == {
        "id": first,
        "object": "vector_store.deleted",
        "deleted": True,
    }
    assert not (folder / first).exists()
    assert (await alice.ask("GET", f"vector_stores/{first}", 404))["code"] == "vector_store_not_found"


async def test_a_store_expires_after_days_without_use(
    alice: Bank, retrieval: Retrieval, clock: FakeClock, tmp_path: Path
) -> None:
    expiry = {"anchor": "last_active_at", "days": 2}
    store = await alice.store(CARDS, expires_after=expiry)
    await clock.advance(1.5 * 86400)
    assert await alice.search(store, "card"), "it is used, so it stays"
    await clock.advance(1.5 * 86400)
    await retrieval.expire()
    assert (await alice.ask("GET", f"vector_stores/{store}"))["status"] == "completed"
    await clock.advance(86400)
    await retrieval.expire()
    shown = await alice.ask("GET", f"vector_stores/{store}")
    assert (shown["status"], shown["expires_after"], shown["file_counts"]["total"]) == ("expired", expiry, 0)
    assert not (tmp_path / "gateway" / "vector_stores" / store).exists()
    refused = await alice.ask("POST", f"vector_stores/{store}/search", 400, query="card")
    assert refused["code"] == "vector_store_expired"


async def test_texts_are_embedded_as_the_account_that_attached_them(
    alice: Bank, embedder: WordEmbedder
) -> None:
    store = await alice.store(CARDS)
    await alice.search(store, "card")
    for caller, project, model, _ in embedder.calls:
        assert (caller.subject_id, project, model) == ("alice", "project-a", "words")


async def test_a_model_that_is_away_delays_a_file_and_one_that_refuses_fails_it(
    alice: Bank, embedder: WordEmbedder, clock: FakeClock
) -> None:
    embedder.failures = [OpenAiError(503, "no replica"), OpenAiError(429, "slow down")]
    file = await upload(alice.http, CARDS.encode(), "assistants", "cards.txt")
    store = (await alice.ask("POST", "vector_stores", file_ids=[file]))["id"]
    async with asyncio.timeout(30):
        while embedder.failures:
            await asyncio.sleep(0.1)  # threads need real time: within 30 s no file loses its patience
            await clock.advance(5)
    await alice.settled(store)
    assert await alice.search(store, "card")
    embedder.failures = [OpenAiError(404, "The model 'words' does not exist.")]
    store = await alice.store(CARDS)
    [file] = (await alice.ask("GET", f"vector_stores/{store}/files"))["data"]
    error = {"code": "server_error", "message": "The model 'words' does not exist."}
    assert (file["status"], file["last_error"]) == ("failed", error)


async def test_vectors_that_are_none_fail_the_file(alice: Bank, embedder: WordEmbedder) -> None:
    for wrong in (b"\x00\x00\xc0\x7f" * 64, b"\x00\x00\x80\x7f" * 64, b"abc", b""):
        embedder.answer = wrong or b"\x00"
        store = await alice.store(CARDS)
        [file] = (await alice.ask("GET", f"vector_stores/{store}/files"))["data"]
        assert (file["status"], file["last_error"]["code"]) == ("failed", "server_error")
        await alice.ask("DELETE", f"vector_stores/{store}")


async def test_another_model_behind_the_same_name_is_noticed(alice: Bank, embedder: WordEmbedder) -> None:
    store = await alice.store(CARDS)
    embedder.answer = bytes(8 * 4)
    refused = await alice.ask("POST", f"vector_stores/{store}/search", 409, query="card")
    assert "vectors of 8 numbers" in refused["message"]


async def test_chunks_fit_the_embedding_model(alice: Bank, embedder: WordEmbedder) -> None:
    embedder.context = 256
    store = await alice.store(CARDS)
    [file] = (await alice.ask("GET", f"vector_stores/{store}/files"))["data"]
    assert file["chunking_strategy"]["static"] == {"max_chunk_size_tokens": 254, "chunk_overlap_tokens": 127}
    static = {"type": "static", "static": {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400}}
    refused = await alice.ask(
        "POST", f"vector_stores/{store}/files", 400, file_id=file["id"], chunking_strategy=static
    )
    assert "reads 254 tokens" in refused["message"]


async def test_many_chunks_are_found_by_hnsw_as_by_comparing_all(alice: Bank, retrieval: Retrieval) -> None:
    lines = [
        f"Branch {number} in town{number % 90} opens at {number % 12} and has box{number}."
        for number in range(3000)
    ]
    store = await alice.store("\n\n".join(lines))
    found = await alice.search(store, "which branch has box1234", max_num_results=3)
    assert any("box1234" in each["content"][0]["text"] for each in found)
    asked = [f"town{number} branch box{number * 7}" for number in range(20)]
    index: Any = retrieval.searcher._index  # pyright: ignore[reportPrivateUsage]
    by_hnsw = [await alice.search(store, query, ranking_options={"ranker": "none"}) for query in asked]
    assert len(index.indexes._store(store)._opened_hnsw()) > 50, "HNSW was used"
    index.indexes._store(store)._exact_chunks = 10**6
    exact = [await alice.search(store, query, ranking_options={"ranker": "none"}) for query in asked]
    same = sum(
        len({each["content"][0]["text"] for each in one} & {each["content"][0]["text"] for each in other})
        for one, other in zip(by_hnsw, exact, strict=True)
    )
    assert same >= 0.95 * sum(map(len, exact))


async def test_what_a_crash_left_is_finished_or_removed(
    alice: Bank, retrieval: Retrieval, objects: OpenAiFiles, embedder: WordEmbedder, tmp_path: Path
) -> None:
    kept = await alice.store(CARDS)
    stray = tmp_path / "gateway" / "vector_stores" / ("vs_" + "0" * 24)
    stray.mkdir()
    await retrieval.stop()
    store = (await alice.ask("POST", "vector_stores"))["id"]
    file = await upload(alice.http, LOANS.encode(), "assistants", "loans.txt")
    await alice.ask("POST", f"vector_stores/{store}/files", file_id=file)
    await retrieval.start()
    await alice.settled(store)
    assert await alice.search(store, "loan") and await alice.search(kept, "card")
    async with asyncio.timeout(10):
        while stray.exists():
            await asyncio.sleep(0.01)


async def test_limits_are_said(alice: Bank, objects: OpenAiFiles) -> None:
    stores = [await alice.store() for _ in range(4)]
    assert (await alice.ask("POST", "vector_stores", 429))["code"] == "insufficient_quota"
    ids = [await upload(alice.http, b"x", "assistants", f"{n}.txt") for n in range(7)]
    refused = await alice.ask("POST", f"vector_stores/{stores[0]}/file_batches", 429, file_ids=ids)
    assert "at most 6 files" in refused["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"name": "n" * 257}, "name"),
        ("", {"file_ids": ["file-none"]}, "file_id"),
        ("", {"file_ids": ["../../ledger.db"]}, "file_id"),
        ("", {"file_ids": [7]}, "file_id"),
        ("", {"file_ids": "file-1"}, "file_ids"),
        ("", {"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after"),
        ("", {"expires_after": {"anchor": "last_active_at", "days": 366}}, "expires_after"),
        ("", {"chunks": 1}, "chunks"),
        ("", {"neocloud": {"embedding_model": "none"}}, "neocloud.embedding_model"),
        ("/search", {}, "query"),
        ("/search", {"query": ["a", ""]}, "query"),
        ("/search", {"query": "q" * 8193}, "query"),
        ("/search", {"query": "a", "max_num_results": 51}, "max_num_results"),
        ("/search", {"query": "a", "max_num_results": True}, "max_num_results"),
        ("/search", {"query": "a", "rewrite_query": True}, "rewrite_query"),
        ("/search", {"query": "a", "ranking_options": {"ranker": "best"}}, "ranking_options.ranker"),
        (
            "/search",
            {"query": "a", "ranking_options": {"score_threshold": 2}},
            "ranking_options.score_threshold",
        ),
        ("/search", {"query": "a", "filters": {"type": "like", "key": "a", "value": "b"}}, "filters"),
        ("/search", {"query": "a", "filters": {"type": "and", "filters": []}}, "filters"),
        ("/files", {"file_id": new_file_id()}, "file_id"),
        ("/files", {"file_id": "f", "chunking_strategy": {"type": "words"}}, "chunking_strategy"),
        ("/file_batches", {"file_ids": ["a", "a"]}, "file_ids"),
        ("/file_batches", {}, "file_ids"),
    ],
)
async def test_what_is_wrong_is_named(alice: Bank, path: str, body: dict[str, Any], param: str) -> None:
    place = f"vector_stores/{await alice.store()}{path}" if path else "vector_stores"
    assert (await alice.ask("POST", place, 400, **body))["param"] == param


async def test_who_may_only_read_changes_nothing(
    alice: Bank, retrieval: Retrieval, objects: OpenAiFiles
) -> None:
    store = await alice.store(CARDS)
    reader = bank_of(retrieval, objects, "reader")
    assert (await reader.ask("GET", f"vector_stores/{store}"))["id"] == store
    await reader.ask("POST", "vector_stores", 403)
    for method, path in (("POST", ""), ("DELETE", ""), ("POST", "/files"), ("POST", "/file_batches")):
        await reader.ask(method, f"vector_stores/{store}{path}", 404)
    refused = await reader.ask("POST", f"vector_stores/{store}/search", 403, query="card")
    assert "inference.deployments.invoke" in refused["message"]
