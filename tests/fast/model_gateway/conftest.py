"""One gateway process and two engines for the tests of this folder that need real ones."""

import json
import sqlite3
from collections.abc import Iterator, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.model_gateway.api.request import ModelRequest, parse_body, read_request
from neocloud.testing.gateway import (
    EngineProcess,
    GatewayProcess,
    engine_process,
    gateway_process,
    route,
)
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until

CHAT = "/v1/chat/completions"
SILENCE_SECONDS = 10
WRITE_SECONDS = 4


@dataclass
class Served:
    """The model "bank" on two engines, called "mock" there; and "tuned", an adapter that the second has."""

    gateway: GatewayProcess
    engines: tuple[EngineProcess, EngineProcess]
    client: httpx.Client

    def post(self, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return self.client.post(path, json=body(**fields), headers=headers)

    def use(self, *engines: EngineProcess | str, **more: Any) -> None:
        """Only these serve "bank"."""
        addresses = [engine if isinstance(engine, str) else engine.address for engine in engines]
        self.gateway.set_routes(route("bank", replicas=addresses, engine_name="mock", **more))

    def row(self, response: httpx.Response) -> dict[str, Any]:
        """Return the ledger's row of the answer, once it is closed."""
        return ledger_row(self.gateway.home, response.headers["x-request-id"])


def parse_request(path: str, raw: bytes, media_domains: Set[str] = frozenset()) -> ModelRequest:
    """Return the request of a body, as the gateway reads it. Raises OpenAiError 400."""
    return read_request(path, parse_body(raw), media_domains)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "bank", "messages": [{"role": "user", "content": "two words"}], **fields}


def ledger_rows(home: Path, request_id: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(home / "gateway" / "ledger.db")) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT * FROM requests WHERE request_id = ?", (request_id,)).fetchall()
    return [dict(row) for row in rows]


def ledger_row(home: Path, request_id: str) -> dict[str, Any]:
    """Return what the ledger says of a request, once it is closed."""

    def is_closed(rows: list[dict[str, Any]]) -> bool:
        return bool(rows) and rows[0]["ended_at"] is not None

    (row,) = wait_until(lambda: ledger_rows(home, request_id), holds=is_closed)
    return row


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("gateway")
    options = ["--silence-seconds", str(SILENCE_SECONDS), "--write-seconds", str(WRITE_SECONDS)]
    with (
        engine_process(Behaviour(tokens=8)) as first,
        engine_process(Behaviour(tokens=8)) as second,
        gateway_process(home, *options, "--max-body-bytes", "2000000") as gateway,
        httpx.Client(base_url=gateway.url, headers=gateway.headers, timeout=60) as client,
    ):
        yield Served(gateway, (first, second), client)


@pytest.fixture
def served(running: Served) -> Served:
    """Reset the gateway to its first state, whatever the test before did."""
    for engine in running.engines:
        engine.tell(**vars(Behaviour(tokens=8)))
        wait_until(lambda engine=engine: engine.counts()["in_flight"] == 0)
    first, second = running.engines
    both = [first.address, second.address]
    adapters = {"tuned": [second.address]}
    running.gateway.set_routes(route("bank", replicas=both, engine_name="mock", adapters=adapters))
    return running


def events_of(response: httpx.Response) -> list[dict[str, object]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
