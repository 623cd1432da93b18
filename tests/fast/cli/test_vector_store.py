"""`neo vector-store` against a gateway process: documents are added, searched, listed and deleted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.cli.commands import vector_store
from neocloud.client.credentials import StaticToken
from neocloud.client.gateway import Gateway, open_api
from neocloud.testing.gateway import GatewayProcess, engine_process, gateway_process, route
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer

KEY = "key-a"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with (
        engine_process() as engine,
        gateway_process(tmp_path_factory.mktemp("gateway"), token=KEY) as process,
    ):
        process.set_routes(route("minilm", replicas=[engine.address], task="EMBED"))
        yield process


@pytest.fixture(autouse=True)
def opened(gateway: GatewayProcess, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def gateway_of(*_: object, **__: object) -> Gateway:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        found = open_api(f"{gateway.url}/v1")
        assert isinstance(found.tokens, StaticToken)
        return found

    monkeypatch.setattr(vector_store, "gateway_of", gateway_of)


def test_documents_become_searchable(signed_in: Neo, tmp_path: Path) -> None:
    cards, fees, scan = tmp_path / "cards.md", tmp_path / "fees.html", tmp_path / "scan.pdf"
    cards.write_text("A lost card is blocked in the app.")
    fees.write_text("<p>An overdraft costs 11.9 percent.</p>")
    scan.write_bytes(b"%PDF-1.4 not one")
    made = signed_in("vector-store", "create", "bank", str(cards), str(fees), "--attribute", "year=2026")
    assert made.code == 0, made.err
    assert "2 documents added" in made.err
    again = signed_in("vector-store", "create", "bank")
    assert again.code and "neo vector-store add bank" in again.err
    failed = signed_in("vector-store", "add", "bank", str(scan))
    assert failed.code and "scan.pdf: The PDF cannot be read" in failed.err
    found = signed_in("vector-store", "search", "bank", "overdraft")
    assert found.code == 0 and found.out.index("fees.html") < found.out.index("cards.md")
    newest = '{"type": "gt", "key": "year", "value": 2026}'
    assert "Nothing was found" in signed_in("vector-store", "search", "bank", "card", "--filter", newest).err
    shown = signed_in("vector-store", "get", "bank")
    assert "2 completed" in shown.out and "1 failed" in shown.out and "minilm" in shown.out
    assert "bank" in signed_in("vector-store", "list").out
    assert signed_in("vector-store", "delete", "bank", "--yes").code == 0
    assert "No vector stores" in signed_in("vector-store", "list").err


def test_what_is_wrong_is_said_before_anything_is_made(signed_in: Neo, tmp_path: Path) -> None:
    for words, said in (
        (("create", "x", str(tmp_path / "none.txt")), "There is no file"),
        (("create", "x", "--attribute", "year"), "is not KEY=VALUE"),
        (("create", "x", "--embedding-model", "none"), "not an embedding model"),
        (("search", "none", "card"), "There is no vector store none"),
        (("search", "none", "card", "--filter", "{"), "--filter is not JSON"),
    ):
        ran = signed_in("vector-store", *words)
        assert ran.code and said in ran.err
    assert "No vector stores" in signed_in("vector-store", "list").err
