"""`neo tco`: the tables and notes that a person sees, what is sent, and speeds that were measured. TCO-01,
TCO-07, TCO-08, TCO-10, FORM-18."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neocloud.core.service import Call, Dependencies
from neocloud.services.billing.api import tco
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer

ESTIMATE = "neocloud.billing.v1.TcoService/Estimate"
NOTHING = cast(Any, None)
CLOCK = cast(Any, SimpleNamespace(now=lambda: datetime(2026, 1, 31, tzinfo=UTC)))
CALL = Call(None, "request", {}, Dependencies(NOTHING, CLOCK, NOTHING, NOTHING))


@pytest.fixture
def calculator(cloud: FakeServer) -> FakeServer:
    """The real calculator behind the fake cloud."""
    for method in tco.METHODS:
        handler: Any = method.handler
        cloud.serve(method.path, lambda request, handler=handler: asyncio.run(handler(CALL, request)))
    return cloud


def line(text: str, begin: str) -> list[str]:
    return next(each for each in text.splitlines() if each.startswith(begin)).split()


def test_the_published_plan_is_shown_with_notes(signed_in: Neo, calculator: FakeServer) -> None:
    ran = signed_in("tco")
    assert ran.code == 0
    assert line(ran.out, "Total")[1:] == ["-", "-", "-", "-", "18,124", "-", "19,054", "USD"]
    assert line(ran.out, "single batch")[2:] == ["3.8", "328,320", "164", "$3.86", "$0.68"]
    assert line(ran.out, "optimised target")[2:6] == ["200", "17,280,000", "8,640", "$0.07"]
    assert "Note (system node disks): The maximum is printed as" in ran.out


def test_options_become_the_request(signed_in: Neo, calculator: FakeServer) -> None:
    ran = signed_in(
        *("tco", "--set", "workers=4", "--tokens-per-second", "41.5", "--scenario", "night=10"),
        *("--hosted", "llama-3.1-70b=0.13/0.40", "--output", "json"),
    )
    assert ran.code == 0
    [request] = calculator.asked(ESTIMATE)
    assert [(each.name, each.value) for each in request.values] == [("workers", "4")]
    answer = json.loads(ran.out)
    assert [row["scenario"] for row in answer["serving"]] == ["41.5 tokens/s", "night"]
    assert answer["hosted"][0]["cost_per_chat"] == "0.001580"
    assert "$0.00158" in signed_in("tco", "--hosted", "llama-3.1-70b=0.13/0.40").out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--set", "workers"), "--set 'workers' is not NAME=VALUE"),
        (("--hosted", "llama=1"), "'llama=1' has one price"),
        (("--set", "wrokers=4"), "'wrokers' is not a parameter; there are workers"),
    ],
)
def test_what_is_wrong_is_said(
    signed_in: Neo, calculator: FakeServer, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = signed_in("tco", *arguments)
    assert ran.code == 2
    assert complaint in ran.err


def test_parameters_and_the_guide(signed_in: Neo, calculator: FakeServer) -> None:
    assert line(signed_in("tco", "--parameters").out, "workers")[:2] == ["workers", "5"]
    assert "What is the task?" in signed_in("tco", "--guide").out


def test_a_measured_speed_is_used(
    signed_in: Neo, calculator: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    with engine() as url:
        ran = signed_in("tco", "--measure", "bank", "--gateway", url, "--output", "json")
    assert ran.code == 0, ran.err
    [one, sixteen] = json.loads(ran.out)["serving"]
    assert (one["scenario"], sixteen["scenario"]) == ("bank, 1 at a time", "bank, 16 at a time")
    assert float(one["tokens_per_second"]) > 0
    [request] = calculator.asked(ESTIMATE)
    assert [each.name for each in request.scenarios] == [one["scenario"], sixteen["scenario"]]


@contextmanager
def engine() -> Iterator[str]:
    """Answers at the asked length; sixteen at a time are answered only when all sixteen are there."""
    together = Barrier(16)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            count = self.server.asked = self.server.asked + 1  # type: ignore[attr-defined]
            if count > 3:
                together.wait(20)
            choice = {"message": {"role": "assistant", "content": "yes"}}
            data = json.dumps(
                {"choices": [choice], "usage": {"completion_tokens": body["max_tokens"]}}
            ).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 64
        asked = 0

    server = Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
