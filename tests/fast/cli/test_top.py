"""`neo top`: one screen with what runs, and how busy it is where that can be read."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.live import Live

from neocloud.cli.commands import top
from neocloud.cli.live_screen import shares
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.resources.lookup import CLUSTERS, DEPLOYMENTS, INSTANCES, ProjectClient
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, Profiles, config_file, read_profiles, write_profiles
from neocloud.core import contract
from neocloud.model_gateway.routing.traffic import Metrics
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer, cluster, serve_clusters

SLURM_JOBS = "neocloud.slurm.v1.JobService"


def serve_list(cloud: FakeServer, service: str, *items: dict[str, Any]) -> None:
    path = f"{service}/List"
    cloud.serve(path, contract.from_dict(contract.method(path).output, {"items": list(items)}))


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    interface = {"ip_address": {"address": "10.128.0.4/32"}}
    serve_list(
        cloud,
        INSTANCES,
        {
            "metadata": {"id": "computeinstance-e00web", "name": "web"},
            "spec": {"resources": {"platform": "cpu-local", "preset": "1vcpu-1gb"}},
            "status": {"state": "RUNNING", "network_interfaces": [interface]},
        },
    )
    node = {"name": "worker-0", "slurm_state": "MIXED+DYNAMIC_NORM", "address": "10.128.0.7"}
    serve_clusters(cloud, cluster("lab", nodes=[node]))
    job = {"name": "train", "user": "root", "nodes": ["worker-0"]}
    serve_list(
        cloud, SLURM_JOBS, {"id": 6, **job, "state": "COMPLETED"}, {"id": 7, **job, "state": "RUNNING"}
    )
    serve_list(
        cloud,
        DEPLOYMENTS,
        {
            "metadata": {"id": "inferencedeployment-e00bank", "name": "bank"},
            "status": {
                "state": "READY",
                "served_names": ["bank", "bank-support"],
                "wanted_replicas": 2,
                "replicas": [{"name": "replica-0", "state": "READY"}],
            },
        },
    )
    return cloud


def test_a_screen_shows_what_runs(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("top", "--once")
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["web", "RUNNING", "1vcpu-1gb", "cpu-local", "10.128.0.4"] in rows
    assert ["worker-0", "lab", "MIXED", "10.128.0.7", "-"] in rows
    assert [row[:5] for row in rows if "train" in row] == [["7", "lab", "train", "root", "RUNNING"]]
    assert ["bank", "READY", "1/2", "-", "bank,", "bank-support"] in rows
    assert "Host" not in ran.out, "the cloud is on another machine"


def test_without_a_terminal_it_ends_after_one_screen(signed_in: Neo, served: FakeServer) -> None:
    assert signed_in("top").out.splitlines()[2:] == signed_in("top", "--once").out.splitlines()[2:]
    document = json.loads(signed_in("top", "-o", "json").out)
    assert document["host"] is None and document["notes"] == []
    assert document["deployments"][0]["requests_per_second"] is None
    assert [job["state"] for job in document["jobs"]] == ["RUNNING"]
    assert all(request.active_only for request in served.asked(f"{SLURM_JOBS}/List"))


def test_what_may_not_be_listed_is_named(signed_in: Neo, served: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.permission_denied("compute.instance.list", PROJECT)

    def away(request: Any) -> Any:
        raise contract.bad_state("slurmcluster-e00lab", "There is no login node.")

    served.serve(f"{INSTANCES}/List", refuse)
    served.serve(f"{SLURM_JOBS}/List", away)
    ran = signed_in("top", "--once")
    assert ran.code == 0 and "MACHINE" not in ran.out and "worker-0" in ran.out
    assert "No jobs of lab" in ran.err and "You may not list machines here." in ran.err
    for service in (CLUSTERS, DEPLOYMENTS):
        served.serve(f"{service}/List", refuse)
    ran = signed_in("top", "--once")
    assert ran.code == 4 and "Permission 'compute.instance.list'" in ran.err and not ran.out


@pytest.mark.parametrize("interval", ["nan", "inf", "0.5", "1e300"])
def test_an_interval_is_a_number_of_seconds(signed_in: Neo, served: FakeServer, interval: str) -> None:
    ran = signed_in("top", "--interval", interval)
    assert ran.code == 2 and "--interval" in ran.err and not served.requests
    assert "Input should" not in ran.err


def test_an_empty_project_says_so(signed_in: Neo, cloud: FakeServer) -> None:
    ran = signed_in("top", "--once")
    assert ran.code == 0 and "No machine, cluster or deployment runs here." in ran.out


@pytest.fixture
def local_server() -> Iterator[str]:
    """The pages of server and gateway. Each reading of the counters finds ten more requests."""
    metrics = Metrics(lambda: 0)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"engine": {"cpus": 64, "memory_mib": 1024}}).encode()
            if self.path == "/metrics":
                for status in (200, 429) * 5:
                    metrics.answered("bank", "/v1/chat/completions", status, 0.1, 0.2)
                body = metrics.text()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def at_the_host(
    neo: Neo,
    served: FakeServer,
    credentials_file: Path,
    local_server: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Neo:
    """Somebody on the machine of the cloud."""
    running = RunningServer(1, served.endpoint, local_server, "1", datetime.now(UTC), gateway=local_server)
    monkeypatch.setattr(Home, "server", lambda self: running)
    monkeypatch.setattr(top, "SAMPLE_SECONDS", 0.01)
    home = tmp_path / "state"
    home.mkdir()
    (home / "server.json").write_text(json.dumps({"grpc": served.endpoint}))
    profile = Profile(
        "test",
        served.endpoint,
        str(credentials_file),
        tenant_id=TENANT,
        project_id=PROJECT,
        home=str(home),
    )
    write_profiles(Profiles().with_profile(profile), config_file())
    return neo


def test_load_and_requests_are_shown_at_the_host(at_the_host: Neo) -> None:
    ran = at_the_host("top", "-o", "json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["host"]["cpus"] == 64
    assert 0 < document["host"]["memory_used_mib"] < document["host"]["memory_mib"]
    assert document["deployments"][0]["requests_per_second"] > 0
    assert "Host: 64 CPUs, load " in at_the_host("top", "--once").out


def test_a_rate_counts_the_names_of_the_deployment_only() -> None:
    before = top.Answered(10.0, {"bank": 5, "other": 100})
    now = top.Answered(12.0, {"bank": 9, "bank-support": 2, "other": 500})
    assert top.rate(["bank", "bank-support"], before, now) == 3.0
    assert top.rate(["bank"], now, before) is None
    assert top.rate(["bank"], top.Answered(9.0, {"bank": 50}), now) is None, "the gateway was restarted"
    assert top.rate(["bank"], None, now) is None


def screen_of(rows: int, height: int, name: str = "train") -> str:
    """Return what `neo top` draws on a terminal of this height."""
    node = {"cluster": "lab", "slurm_state": "IDLE"}
    job = {"id": 7, "cluster": "lab", "name": name, "state": "RUNNING", "started_at": "2026-11-23T08:00:00Z"}
    document = {
        "at": "2026-11-23T08:00:45+00:00",
        "project_id": PROJECT,
        "host": None,
        "machines": [],
        "clusters": [{"name": "lab"}],
        "nodes": [{**node, "name": f"worker-{number}"} for number in range(rows)],
        "jobs": [job] * rows,
        "deployments": [],
        "notes": ["No jobs of other are shown: " + "it does not answer " * 40],
    }
    screen = Console(width=80, height=height, file=StringIO())
    screen.print(top.drawn(document, screen))
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def test_a_name_does_not_control_the_terminal() -> None:
    shown = screen_of(1, 24, "\x1b]0;x\x07 of\nmany lines")
    assert "\x1b" not in shown and "\\x1b]0;x\\x07 of\\nmany" in shown
    assert "45 s" in shown


@pytest.mark.parametrize("height", [16, 24, 50])
def test_a_screen_is_not_higher_than_the_terminal(height: int) -> None:
    lines = screen_of(40, height, "a long name " * 20).splitlines()
    assert len(lines) <= height and lines[-1] == "Ctrl-C ends it."
    assert any(line.startswith("No jobs of other") for line in lines[:2])
    hidden = [int(line.split()[1]) for line in lines if line.startswith("... ")]
    listed = sum("worker-" in line or "RUNNING" in line for line in lines)
    assert len(hidden) == 2 and sum(hidden) + listed == 80
    assert "more" not in screen_of(2, height)


def test_a_short_table_leaves_its_lines_to_the_others() -> None:
    assert shares([2, 40, 40], 20) == [2, 9, 9]
    assert shares([2, 3], 20) == [2, 3]
    assert shares([5, 5], 0) == [1, 1]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"])
def test_the_screen_is_refreshed_also_while_the_server_is_away(
    signed_in: Neo, served: FakeServer, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    drawn: list[dict[str, Any]] = []
    document = top.document_of

    def sometimes(*given: Any) -> Any:
        if len(drawn) == 1:
            raise ClientError(code, "The server does not answer")
        return document(*given)

    def draw(shown: dict[str, Any], screen: Console) -> RenderableType:
        drawn.append(shown)
        if len(drawn) == 3:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(top, "document_of", sometimes)
    monkeypatch.setattr(top, "drawn", draw)
    profile = read_profiles(config_file()).get("test")
    with connect(profile) as client:
        top.refresh(ProjectClient(client, profile, PROJECT), 0.001, Live(auto_refresh=False))
    assert [shown["notes"] for shown in drawn] == [[], ["The server does not answer."], []]
    assert all(shown["machines"] for shown in drawn)
    assert served.asked(f"{CLUSTERS}/List")
