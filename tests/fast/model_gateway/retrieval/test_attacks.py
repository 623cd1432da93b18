"""Attacks on vector stores: ids of others, names that are paths, syntax, floods, hostile documents."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from neocloud.model_gateway.composition import OpenAiFiles
from neocloud.model_gateway.retrieval import reading
from neocloud.model_gateway.retrieval.index_calls import IndexRefusal, RemoveStore, Search
from neocloud.model_gateway.retrieval.reading import UnreadableDocument, read_document
from neocloud.model_gateway.retrieval.service import Retrieval
from tests.fast.model_gateway.openai_files.conftest import upload
from tests.fast.model_gateway.retrieval.conftest import Bank, LocalIndex, bank_of

SECRET = "The vault of the bank opens with the number 4711."


async def test_another_projects_store_does_not_exist(alice: Bank, mallory: Bank) -> None:
    store = await alice.store(SECRET)
    batch = "vsfb_" + "0" * 24
    [file] = (await alice.ask("GET", f"vector_stores/{store}/files"))["data"]
    place = f"vector_stores/{store}"
    for method, path in (
        *(
            ("GET", place),
            ("POST", place),
            ("DELETE", place),
            ("POST", f"{place}/search"),
            ("GET", f"{place}/files"),
        ),
        *(
            ("POST", f"{place}/files"),
            ("GET", f"{place}/files/{file['id']}"),
            ("POST", f"{place}/files/{file['id']}"),
        ),
        *(("DELETE", f"{place}/files/{file['id']}"), ("GET", f"{place}/files/{file['id']}/content")),
        *(("POST", f"{place}/file_batches"), ("GET", f"{place}/file_batches/{batch}")),
    ):
        refused = await mallory.ask(method, path, 404)
        assert (refused["code"], "4711" in json.dumps(refused)) == ("vector_store_not_found", False)
    assert (await mallory.ask("GET", "vector_stores"))["data"] == []
    await mallory.ask("GET", f"vector_stores?after={store}", 400)
    assert (await alice.ask("GET", f"{place}/files"))["data"] == [file]


async def test_another_projects_file_is_not_read_into_a_store(
    alice: Bank, mallory: Bank, retrieval: Retrieval, objects: OpenAiFiles
) -> None:
    file = await upload(alice.http, SECRET.encode(), "assistants", "secret.txt")
    for body in ({"file_ids": [file]}, {"file_ids": [file], "name": "x"}):
        refused = await mallory.ask("POST", "vector_stores", 400, **body)
        assert refused["code"] == "file_not_found"
    assert (await mallory.ask("GET", "vector_stores"))["data"] == [], "nothing is left of a refused one"
    store = await mallory.store("mine")
    await mallory.ask("POST", f"vector_stores/{store}/files", 400, file_id=file)
    await mallory.ask("POST", f"vector_stores/{store}/file_batches", 400, file_ids=[file])
    assert [each["filename"] for each in await mallory.search(store, SECRET)] == ["document-0.txt"]
    both = bank_of(retrieval, objects, "both")
    both.http.headers["OpenAI-Project"] = "project-c"
    await both.ask("POST", "vector_stores", 400, file_ids=[file])


@pytest.mark.parametrize(
    "store_id", ["..", "../files", "vs_..%2f..%2fledger.db", "vs_" + "0" * 25, "vs_\x00", ""]
)
async def test_an_id_is_never_a_path(
    alice: Bank, retrieval: Retrieval, tmp_path: Path, store_id: str
) -> None:
    answer = await alice.http.get(f"vector_stores/{quote(store_id) or '%20'}", follow_redirects=False)
    assert answer.status_code in (404, 307) or answer.json().get("object") == "list"
    index = LocalIndex(tmp_path)
    with pytest.raises(IndexRefusal):
        await index.ask(RemoveStore(store_id), type(None))
    assert (tmp_path / "gateway" / "files.db").exists()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/shadow.txt", "a\x00b.txt", "-rf.txt", "x" * 300 + ".txt"]
)
async def test_a_files_name_is_only_shown(alice: Bank, name: str) -> None:
    store = await alice.store()
    file = await upload(alice.http, SECRET.encode(), "assistants", name)
    await alice.ask("POST", f"vector_stores/{store}/files", file_id=file)
    await alice.settled(store)
    [shown] = (await alice.ask("GET", f"vector_stores/{store}/files"))["data"]
    assert shown["status"] == "completed"
    [found] = await alice.search(store, "vault")
    assert "/" not in found["filename"] and len(found["filename"]) <= 255


@pytest.mark.parametrize(
    "query",
    [
        *(
            'vault" OR text : "',
            "vault NEAR/0 number",
            "* OR *",
            "text:vault",
            "NOT NOT NOT",
            "^vault + (",
            '"',
            "\x00vault",
        ),
        *(
            "vault'); DROP TABLE chunks; --",
            "NEAR(vault number, 100000)",
            "🔑" * 2000,
            "a " * 4000,
            "-" * 8000,
        ),
    ],
)
async def test_a_query_has_no_syntax(alice: Bank, query: str) -> None:
    store = await alice.store(SECRET, "Opening hours are nine to five.")
    found = await alice.search(store, query)
    assert {each["filename"] for each in found} <= {"document-0.txt", "document-1.txt"}
    assert len(await alice.search(store, "vault")) == 2, "the store is as it was"


async def test_filters_are_bounded(alice: Bank) -> None:
    store = await alice.store(SECRET)
    one: dict[str, Any] = {"type": "eq", "key": "a", "value": 1}
    deep = '{"type":"and","filters":[' * 10_000 + json.dumps(one) + "]}" * 10_000
    body = f'{{"query": "vault", "filters": {deep}}}'
    answer = await alice.http.post(f"vector_stores/{store}/search", content=body)
    assert answer.status_code == 400
    nested = one
    for _ in range(9):
        nested = {"type": "or", "filters": [nested]}
    assert (
        "levels"
        in (await alice.ask("POST", f"vector_stores/{store}/search", 400, query="v", filters=nested))[
            "message"
        ]
    )
    wide = {"type": "or", "filters": [one] * 1000}
    assert (
        "100 conditions"
        in (await alice.ask("POST", f"vector_stores/{store}/search", 400, query="v", filters=wide))["message"]
    )
    for value in ({"a": 1}, None, [1]):
        await alice.ask(
            "POST",
            f"vector_stores/{store}/search",
            400,
            query="v",
            filters={"type": "eq", "key": "a", "value": value},
        )


@pytest.mark.parametrize(
    "attributes",
    [
        *({"k" * 65: 1}, {"": 1}, {"a": "v" * 513}, {"a": None}, {"a": [1]}, {"a": 2**60}, [1], "x"),
        {str(number): number for number in range(17)},
    ],
)
async def test_attributes_are_bounded(alice: Bank, attributes: Any) -> None:
    store = await alice.store(SECRET)
    [file] = (await alice.ask("GET", f"vector_stores/{store}/files"))["data"]
    await alice.ask("POST", f"vector_stores/{store}/files/{file['id']}", 400, attributes=attributes)


async def test_one_project_does_not_fill_the_queue_of_all(
    alice: Bank, mallory: Bank, retrieval: Retrieval, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = await alice.store(SECRET), await mallory.store(SECRET)
    index: Any = retrieval.searcher._index  # pyright: ignore[reportPrivateUsage]
    gate, ask = asyncio.Event(), index.ask

    async def slow(call: Any, kind: Any) -> Any:
        if isinstance(call, Search) and call.store_id == mine:
            await gate.wait()
        return await ask(call, kind)

    monkeypatch.setattr(index, "ask", slow)
    paths = [f"vector_stores/{mine}/search"] * 40
    waiting = [asyncio.ensure_future(alice.http.post(path, json={"query": "vault"})) for path in paths]
    refused, running = await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
    assert len(await mallory.search(theirs, "vault")) == 1, "others are served meanwhile"
    gate.set()
    codes = [answer.status_code for answer in await asyncio.gather(*waiting)]
    assert (codes.count(200), codes.count(429)) == (32, 8) and refused and running
    assert await alice.search(mine, "vault")


def chunks_of(tmp_path: Path, content: bytes, name: str) -> list[str]:
    path = tmp_path / "document"
    path.write_bytes(content)
    return list(read_document(path, name, 100, 0))


async def test_a_million_chunks_fail_the_file_and_nothing_else(
    alice: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        reading, "MAX_CHUNKS", 50
    )  # here, not in the reading process, which has its own bound
    store = await alice.store("word " * 100_000, SECRET)
    files = (await alice.ask("GET", f"vector_stores/{store}/files?order=asc"))["data"]
    assert [each["status"] for each in files] == ["failed", "completed"]
    assert "more than 50 chunks" in files[0]["last_error"]["message"]
    assert len(await alice.search(store, "word")) == 1


@pytest.mark.parametrize(
    ("content", "name", "code"),
    [
        (b"\x7fELF\x00\x00\x00", "program", "unsupported_file"),
        (b"PK\x03\x04\x00", "letter.docx", "unsupported_file"),
        (b"caf\xe9", "latin.txt", "invalid_file"),
        (b"", "empty.txt", "invalid_file"),
        (b" \n\t ", "blank.md", "invalid_file"),
        (b"[" * 100_000, "deep.json", "invalid_file"),
        (b'{"a":' * 80 + b"1" + b"}" * 80, "deep.json", "invalid_file"),
        (b'{"a": ', "half.json", "invalid_file"),
        (b'{"a": 1}\n{"b"', "half.jsonl", "invalid_file"),
        (b"%PDF-1.7 nothing", "none.pdf", "invalid_file"),
        (b"not a pdf", "none.pdf", "invalid_file"),
        (b"x" * (17 << 20), "large.txt", "invalid_file"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, content: bytes, name: str, code: str) -> None:
    with pytest.raises(UnreadableDocument) as refused:
        chunks_of(tmp_path, content, name)
    assert refused.value.code == code and refused.value.message


def pdf(stream: bytes, *, flate: bool = False, pages: str = "[3 0 R]") -> bytes:
    """Return a PDF of one page with this content."""
    kind = b"/Filter /FlateDecode " if flate else b""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids " + pages.encode() + b" /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< " + kind + b"/Length %d >>\nstream\n" % len(stream) + stream + b"\nendstream",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n" % number + each + b"\nendobj\n"
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    tail = b"xref\n0 6\n0000000000 65535 f \n" + table + b"trailer << /Size 6 /Root 1 0 R >>\n"
    return body + tail + b"startxref\n%d\n%%%%EOF" % len(body)


def test_a_pdf_is_read(tmp_path: Path) -> None:
    shown = b"BT /F1 12 Tf 72 700 Td (The overdraft costs 11.9 percent.) Tj ET"
    assert chunks_of(tmp_path, pdf(shown), "terms.pdf") == ["The overdraft costs 11.9 percent."]
    assert chunks_of(tmp_path, pdf(zlib.compress(shown), flate=True), "x.bin") == [
        "The overdraft costs 11.9 percent."
    ]


@pytest.mark.parametrize(
    "content",
    [
        pdf(zlib.compress(b"0" * (1 << 30), 9), flate=True),
        pdf(b"BT ET", pages="[2 0 R]"),
        pdf(b"[" * 200_000),
        pdf(b"q " * 500_000),
    ],
    ids=["bomb", "pages of themselves", "nested", "many states"],
)
def test_a_hostile_pdf_ends_with_an_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises((UnreadableDocument, reading.ReadingFailed)):
        chunks_of(tmp_path, content, "hostile.pdf")


def test_a_page_is_read_as_it_is_seen(tmp_path: Path) -> None:
    page = (
        b"<html><style>p{}</style><script>alert()</script><h1>Fees</h1><p>A transfer is &euro;0.</p></html>"
    )
    assert chunks_of(tmp_path, page, "fees.html") == ["Fees\n\nA transfer is €0."]


def test_tables_and_json_keep_their_names(tmp_path: Path) -> None:
    assert chunks_of(tmp_path, b"product;rate\nloan;6.9\n", "rates.csv") == ["product: loan\nrate: 6.9"]
    assert chunks_of(tmp_path, b'[{"product": {"name": "loan"}, "rate": 6.9}]', "rates.json") == [
        "product.name: loan\nrate: 6.9"
    ]
    assert chunks_of(tmp_path, "é".encode("utf-16"), "x.txt") == ["é"]


SPY = """
import os, socket, sys
from neocloud.model_gateway.retrieval import reading
reading.give_up_rights()
found = []
for name, act in {
    "write": lambda: os.write(os.open(sys.argv[2], os.O_WRONLY), b"x"),
    "read": lambda: open("/root/.bashrc" if os.path.exists("/root/.bashrc") else "/etc/shadow").read(),
    "fork": os.fork,
    "connect": lambda: socket.socket().connect(("127.0.0.1", int(sys.argv[1]))),
    "memory": lambda: bytearray(2 << 30),
}.items():
    try:
        act()
        found.append(name)
    except (OSError, MemoryError):
        pass
print(found, flush=True)
"""


def test_the_reading_process_has_no_rights() -> None:
    """Root loses all; without root, what is written, started and taken of memory is refused, too."""

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        target = Path("/dev/shm") / f"reading-{os.getpid()}"  # a folder that everybody may enter
        target.touch(0o666)
        target.chmod(0o666)
        command = [sys.executable, "-c", SPY, port, str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        target.unlink()
    allowed = "[]" if os.geteuid() == 0 else done.stdout.strip()
    assert done.stdout.strip() == allowed, done.stderr
    for name in ("write", "fork", "memory"):
        assert name not in done.stdout
