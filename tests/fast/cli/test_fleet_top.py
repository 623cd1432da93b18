"""`neo fleet top`: nodes, states, jobs and queues on one screen, on a terminal until Ctrl-C."""

import json
import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from subprocess import Popen
from threading import Thread
from typing import Any

import pytest
from rich.console import Console

from neocloud.cli.commands.fleet import top
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.client.profiles import Profile, Profiles, config_file, write_profiles
from neocloud.core import contract
from neocloud.testing.waiting import until
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer

pytestmark = pytest.mark.slow

NODES = "neocloud.fleet.v1.NodeService"
CLUSTER = "slurmcluster-e00bank"
PAGE = f"""# HELP neocloud_slurm_jobs Jobs that wait or run.
# TYPE neocloud_slurm_jobs gauge
neocloud_slurm_jobs{{cluster="{CLUSTER}",cluster_name="bank",project="{PROJECT}",state="pending"}} 12.0
neocloud_slurm_jobs{{cluster="{CLUSTER}",cluster_name="bank",project="{PROJECT}",state="running"}} 3.0
# HELP neocloud_slurm_nodes Nodes by Slurm's state.
# TYPE neocloud_slurm_nodes gauge
neocloud_slurm_nodes{{cluster="{CLUSTER}",cluster_name="bank",project="{PROJECT}",state="allocated"}} 1.0
neocloud_slurm_nodes{{cluster="{CLUSTER}",cluster_name="bank",project="{PROJECT}",state="down"}} 0.0
"""


def node(name: str, phase: str, **more: Any) -> dict[str, Any]:
    base = {"id": f"{CLUSTER}/{name}", "name": name, "cluster_id": CLUSTER, "cluster_name": "bank"}
    return {**base, "phase": phase, "phase_since": "2026-11-23T08:00:00Z", **more}


def serve_nodes(cloud: FakeServer, *nodes: dict[str, Any]) -> None:
    cloud.serve(
        f"{NODES}/List", contract.from_dict(contract.method(f"{NODES}/List").output, {"items": nodes})
    )


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    fault = {"check": "gpu", "sample": "7 GPUs"}
    serve_nodes(
        cloud,
        node("worker-0", "in_service", job="42", tenant_id=PROJECT, is_schedulable=True),
        node("worker-1", "ready_spare", is_spare=True),
        node("worker-2", "drained", faults=[fault], holds=[{"owner": "neocloud", "evidence": "v"}]),
    )
    return cloud


@pytest.fixture
def metrics_page() -> Iterator[str]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["authorization"].startswith("Bearer ")
            body = PAGE if self.path == "/metrics" else json.dumps({"engine": {"cpus": 64}})
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_nodes_that_need_somebody_come_first(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("fleet", "top", "--once")
    assert ran.code == 0, ran.err
    assert "3 nodes watched, 1 with a job" in ran.out
    assert "1 drained, 1 in_service, 1 ready_spare" in ran.out
    names = [line.split()[0] for line in ran.out.splitlines() if line.startswith("bank/")]
    assert names == ["bank/worker-2", "bank/worker-0", "bank/worker-1"]
    assert "gpu: 7 GPUs; drained by neocloud: v" in ran.out
    assert "on the cloud's own machine" in ran.err, "it says what is missing"


def test_reasons_are_told_once_and_hosts_are_named_as_commands_take_them(
    signed_in: Neo, cloud: FakeServer
) -> None:
    held = {"held": "drained by operator:o", "holds": [{"owner": "operator:o", "evidence": "new cables"}]}
    ours = {"owner": "neocloud", "evidence": "boot:1"}
    last = {"evidence": "boot:1", "reason": "it started again"}
    host = {"id": "gpu-1", "name": "gpu-1", "kind": "HOST", "phase": "in_service"}
    serve_nodes(
        cloud,
        host,
        node("worker-0", "drained", **held),
        node("worker-1", "verifying", holds=[ours], last_incident=last),
    )
    for command in (("fleet", "top", "--once"), ("fleet", "node", "list")):
        rows = {line.split()[0]: line for line in signed_in(*command).out.splitlines() if line}
        assert "gpu-1" in rows and "hosts/gpu-1" not in rows, command
        assert "new cables" in rows["bank/worker-0"], command
        assert rows["bank/worker-0"].count("operator:o") == 1, command
        assert "it started again" in rows["bank/worker-1"] and "boot:1" not in rows["bank/worker-1"], command
    told = signed_in("fleet", "node", "get", "bank/worker-0").out
    assert "not since its last start or drain" in told and "Waits" not in told


def test_programs_get_json_and_no_queue_that_is_not_known(signed_in: Neo, served: FakeServer) -> None:
    document = json.loads(signed_in("fleet", "top", "-o", "json").out)
    (cluster,) = document["clusters"]
    assert (cluster["watched"], cluster["in_service"], cluster["spares"], cluster["busy"]) == (3, 1, 1, 1)
    assert cluster["jobs_pending"] is None and document["host"] is None
    assert document["nodes"][1]["job"] == "42" and document["phases"]["drained"] == 1


def test_queues_and_load_are_shown_at_the_host(
    neo: Neo,
    served: FakeServer,
    credentials_file: Path,
    metrics_page: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    running = RunningServer(1, served.endpoint, metrics_page, "1", datetime.now(UTC))
    monkeypatch.setattr(Home, "server", lambda self: running)
    (tmp_path / "server.json").write_text(json.dumps({"grpc": served.endpoint}))
    profile = Profile(
        *("test", served.endpoint, str(credentials_file)),
        tenant_id=TENANT,
        project_id=PROJECT,
        home=str(tmp_path),
    )
    write_profiles(Profiles().with_profile(profile), config_file())
    document = json.loads(neo("fleet", "top", "-o", "json").out)
    (cluster,) = document["clusters"]
    assert (cluster["jobs_pending"], cluster["jobs_running"]) == (12, 3)
    assert cluster["slurm_nodes"] == {"allocated": 1} and document["host"]["cpus"] == 64
    assert document["notes"] == []
    assert "Host: 64 CPUs, load " in neo("fleet", "top", "--once").out


def test_who_is_no_operator_is_refused(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.permission_denied("fleet.nodes.list", "", "Only an operator may.")

    cloud.serve(f"{NODES}/List", refuse)
    ran = signed_in("fleet", "top", "--once")
    assert ran.code == 4 and not ran.out


def test_an_empty_fleet_says_how_to_begin(signed_in: Neo, cloud: FakeServer) -> None:
    serve_nodes(cloud)
    ran = signed_in("fleet", "top", "--once")
    assert ran.code == 0 and "No node is watched" in ran.out


@pytest.mark.parametrize("height", [12, 24])
def test_a_fleet_fits_the_terminal_and_controls_it_not(height: int) -> None:
    evil = "\x1b]0;x\x07\nline " * 20
    nodes = [
        {
            **{"id": str(index), "name": f"worker-{index}", "cluster_id": CLUSTER, "cluster": "bank"},
            **{
                "phase": "triage",
                "phase_seconds": 5,
                "job": "",
                "is_spare": False,
                "drained_by": [],
                "reasons": [],
            },
            **{"faults": [evil], "held": "", "not_seen": "", "verified_seconds": None},
        }
        for index in range(500)
    ]
    document = {
        "at": "2026-11-23T08:00:45+00:00",
        **{"host": None, "phases": {"triage": 500}, "clusters": [], "nodes": nodes, "notes": []},
    }
    screen = Console(width=80, height=height, file=StringIO())
    screen.print(top.drawn(document, screen))
    assert isinstance(screen.file, StringIO)
    shown = screen.file.getvalue()
    assert len(shown.splitlines()) <= height and "\x1b" not in shown and " more" in shown


def read_screen(terminal: int, seen: bytearray) -> None:
    try:
        while block := os.read(terminal, 4096):
            seen.extend(block)
    except OSError:  # the program has ended
        return


async def test_on_a_terminal_ctrl_c_ends_it_cleanly(
    signed_in: Neo, served: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, terminal = pty.openpty()
    program = Popen(
        [sys.executable, "-m", "neocloud.cli.main", "fleet", "top", "--interval", "1"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(terminal)
    seen = bytearray()
    reader = Thread(target=read_screen, args=(master, seen))
    reader.start()
    try:
        await until(lambda: len(served.asked(f"{NODES}/List")) >= 3, seconds=30)
        began = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert program.wait(10) == 0 and time.monotonic() - began < 5
    finally:
        program.kill()
        program.wait()
        reader.join()
        os.close(master)
    assert b"bank/worker-2" in seen and b"Traceback" not in seen
    entered, left = seen.rfind(b"\x1b[?1049h"), seen.rfind(b"\x1b[?1049l")
    assert 0 <= entered < left, "the terminal has its own screen back"
    assert seen.rfind(b"\x1b[?25h") > entered, "and its cursor"
