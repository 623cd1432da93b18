"""The gateway's process under a control plane: it dies and comes back, outlives it, and is found again.

A stand-in takes the gateway's place: an HTTP server that says who it is. All about its process is real.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import neocloud
from neocloud.control_plane import gateway_supervisor
from neocloud.control_plane.gateway_supervisor import (
    MODEL_GATEWAY,
    OBJECT_GATEWAY,
    GatewayKind,
    GatewayProcess,
    PublicGateway,
    stop_gateway,
)
from neocloud.testing.gateway import free_port
from neocloud.testing.waiting import until

DEADLINE_SECONDS = 60.0


KINDS = (MODEL_GATEWAY, OBJECT_GATEWAY)
_IMPORTED = """
import importlib, sys
importlib.import_module(sys.argv[1] + ".__main__")
print(*{each.split(".")[1] for each in sys.modules if each.startswith("neocloud.")})
"""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_program_of_a_gateway_is_all_that_it_imports(kind: GatewayKind) -> None:
    arguments = [sys.executable, "-c", _IMPORTED, kind.module]
    imported = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert set(imported.split()) == set(kind.packages)


@pytest.mark.parametrize(
    ("kind", "folder"),
    [pytest.param(kind, folder, id=f"{kind.name} {folder}") for kind in KINDS for folder in kind.packages],
)
def test_a_changed_file_that_a_gateway_imports_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: GatewayKind, folder: str
) -> None:
    package = tmp_path / "neocloud"
    for name in (*kind.packages, "cli"):
        (package / name).mkdir(parents=True)
        (package / name / "code.py").write_text("1")
    monkeypatch.setattr(neocloud, "__file__", str(package / "__init__.py"))
    before = gateway_supervisor._program(kind)
    (package / "cli" / "code.py").write_text("12")
    assert gateway_supervisor._program(kind) == before
    (package / folder / "code.py").write_text("12")
    assert gateway_supervisor._program(kind) != before


STAND_IN = """
import os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *words):
        print("asked", flush=True)

def end(*_):
    open(sys.argv[2], "a").write("drained")
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def stand_in(home: Path, port: int = 0, *more: str) -> GatewayProcess:
    said = str(home / "said")
    return GatewayProcess(
        home, port, lambda chosen: [sys.executable, "-c", STAND_IN, str(chosen), said, *more]
    )


@asynccontextmanager
async def watched(process: GatewayProcess) -> AsyncIterator[str]:
    """Watch the process as a control plane does, for as long as it runs."""
    address = await process.start()
    watching = asyncio.create_task(process.watch())
    try:
        yield address
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def pid_at(address: str) -> int:
    """0 while nothing answers."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            return int((await client.get(f"http://{address}/")).text)
    except httpx.HTTPError:
        return 0


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    # After it, `start` returns without an answer.
    monkeypatch.setattr(gateway_supervisor, "START_SECONDS", 120)
    yield tmp_path
    await stop_gateway(tmp_path)


async def test_one_that_is_killed_answers_again_on_the_same_port(home: Path) -> None:
    async with watched(stand_in(home)) as address:
        first = await pid_at(address)
        os.kill(first, signal.SIGKILL)
        assert await until(lambda: pid_at(address), holds=lambda pid: pid not in (0, first))
        assert (home / "log" / "gateway.log").exists()


async def test_it_outlives_the_control_plane_and_the_next_one_adopts_it(home: Path) -> None:
    async with watched(stand_in(home)) as address:
        first = await pid_at(address)
    assert await pid_at(address) == first
    async with watched(stand_in(home)) as again:
        assert (again, await pid_at(again)) == (address, first)
        os.kill(first, signal.SIGKILL)  # no child of this control plane, and watched anyway
        assert await until(lambda: pid_at(again), holds=lambda pid: pid not in (0, first))


async def test_one_of_another_start_is_ended_and_another_takes_its_place(home: Path) -> None:
    async with watched(stand_in(home)) as address:
        first = await pid_at(address)
    async with watched(stand_in(home, 0, "--api=elsewhere")) as again:
        assert again == address
        assert await pid_at(again) not in (0, first)
    assert (home / "said").read_text() == "drained"


async def test_the_end_of_the_cloud_ends_it_and_lets_it_drain(home: Path) -> None:
    async with watched(stand_in(home)) as address:
        pass
    await stop_gateway(home)
    assert await pid_at(address) == 0
    assert (home / "said").read_text() == "drained"
    await stop_gateway(home)  # may be repeated
    async with watched(stand_in(home)) as again:
        assert again == address, "clients keep the address of before"


async def test_another_process_with_its_number_is_left_alone(home: Path) -> None:
    async with watched(stand_in(home)):
        record = home / "gateway" / "process.json"
        text = record.read_text()
        await stop_gateway(home)
    # The record of a process that has ended, and whose number another one has now.
    pid = text.split('"pid": ')[1].split(",")[0]
    with subprocess.Popen(["sleep", "60"]) as other:
        record.write_text(text.replace(f'"pid": {pid}', f'"pid": {other.pid}'))
        await stop_gateway(home)
        is_running = other.poll() is None
        other.kill()
    assert is_running


async def test_a_port_that_is_taken_is_said(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="neo config set gateway-port"):
            await stand_in(home, taken.getsockname()[1]).start()


async def test_a_gateway_goes_on_with_a_new_certificate_in_the_same_file(home: Path) -> None:
    certificate = home / "server.pem"

    def with_certificate(content: str) -> GatewayProcess:
        certificate.write_text(content)
        public = PublicGateway(("127.0.0.1",), free_port(), certificate, certificate)
        said = str(home / "said")
        return GatewayProcess(
            home, 0, lambda chosen: [sys.executable, "-c", STAND_IN, str(chosen), said], public
        )

    async with watched(with_certificate("first")) as address:
        first = await pid_at(address)
    async with watched(with_certificate("first")) as address:
        assert await pid_at(address) == first
    async with watched(with_certificate("second")) as address:
        assert await pid_at(address) == first
