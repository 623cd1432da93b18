"""`neo ps`, `ls`, `ssh NAME`, `slurm node list`, and completion of names."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from neocloud.cli.choice import Choice
from neocloud.cli.commands import instance, overview
from neocloud.cli.commands.slurm import login
from neocloud.cli.resources.lookup import CLUSTERS, INSTANCES, names_of
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, cluster, serve_clusters


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    node = {"name": "worker-0", "slurm_state": "IDLE+DYNAMIC_NORM", "address": "10.128.0.7"}
    serve_clusters(cloud, cluster("lab", nodes=[node]))
    machine = contract.from_dict(
        contract.message("nebius.compute.v1.Instance"),
        {
            "metadata": {"id": "computeinstance-e00web", "parent_id": PROJECT, "name": "web"},
            "status": {"state": "RUNNING"},
        },
    )
    path = f"{INSTANCES}/List"
    cloud.serve(path, contract.method(path).output(items=[machine]))

    def by_name(request: Any) -> Any:
        if request.name not in ("web", "computeinstance-web-1"):
            raise contract.not_found("instance", request.name)
        return machine

    cloud.serve(f"{INSTANCES}/GetByName", by_name)
    disks = "nebius.compute.v1.DiskService/List"
    disk = {"metadata": {"id": "computedisk-e00web", "name": "web-boot"}, "status": {"state": "READY"}}
    cloud.serve(disks, contract.from_dict(contract.method(disks).output, {"items": [disk]}))
    return cloud


def test_ps_shows_what_runs_and_ls_the_rest_too(signed_in: Neo, served: FakeServer) -> None:
    header, *rows = signed_in("ps").out.splitlines()
    assert header.split() == ["NAME", "KIND", "STATE", "AGE", "ID"]
    assert [row.split()[0] for row in rows] == ["lab", "web"]
    assert [row.split()[0] for row in signed_in("ls").out.splitlines()[1:]] == ["lab", "web", "web-boot"]
    assert json.loads(signed_in("ps", "-o", "json").out)[1]["kind"] == "instance"


def worker(name: str, state: str = "IDLE+DYNAMIC_NORM", **more: Any) -> dict[str, Any]:
    return {"name": name, "slurm_state": state, **more}


REPAIRED, LONG_AGO = timedelta(seconds=130), timedelta(hours=3)
KILLED = "neocloud: boot:x it started again without being asked to: its pod was ended by signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    ("nodes", "state", "said"),
    [
        ([worker("worker-0"), worker("worker-1", "MIXED")], "READY", ""),
        (
            [worker("worker-0", "DOWN+DRAIN", reason=KILLED), worker("worker-1")],
            "DEGRADED (1 of 2 workers)",
            "lab: worker-0 takes no jobs: DOWN+DRAIN, " + KILLED,
        ),
        ([worker("worker-0", "IDLE+NOT_RESPONDING")], "DEGRADED (0 of 1 workers)", "worker-0 takes no jobs"),
        (
            [worker("worker-0", restarts="1", started_at=REPAIRED)],
            "READY (1 of 1 workers; worker-0 repaired 2 min",
            "",
        ),
        ([worker("worker-0", restarts="1", started_at=LONG_AGO)], "READY", ""),
        ([worker("worker-0"), worker("worker-1", "IDLE+DRAIN", reason="neocloud: spare")], "READY", ""),
        ([worker("worker-0", "IDLE+CLOUD+POWERED_DOWN")], "READY", ""),
    ],
)
def test_ps_shows_what_is_degraded_and_what_was_repaired(
    signed_in: Neo, cloud: FakeServer, nodes: list[dict[str, Any]], state: str, said: str
) -> None:
    shown: list[dict[str, Any]] = []
    for node in nodes:
        if isinstance(ago := node.get("started_at"), timedelta):  # seen from when the test runs
            node = node | {"started_at": f"{datetime.now(UTC) - ago:%Y-%m-%dT%H:%M:%SZ}"}
        shown.append(node)
    serve_clusters(cloud, cluster("lab", nodes=shown))
    ran = signed_in("ps")
    row = " ".join(ran.out.splitlines()[1].split())
    assert row.startswith(f"lab Slurm cluster {state}"), row
    assert said in ran.err and ("takes no jobs" in ran.err) is bool(said)
    if state == "READY":
        assert "(" not in row


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ("main ended with code 3.", "FAILED (exit code 3)"),
        ("main ended with code 137.", "FAILED (signal 9)"),
        ("It ran for longer than spec.timeout allows, and was ended.", "FAILED"),
    ],
)
def test_ps_says_how_the_program_of_a_job_ended(
    signed_in: Neo, cloud: FakeServer, message: str, state: str
) -> None:
    path = "nebius.ai.v1.JobService/List"
    job: dict[str, Any] = {"metadata": {"id": "aijob-e00a", "name": "train"}}
    job["status"] = {"state": "FAILED", "state_details": {"code": "Exited", "message": message}}
    cloud.serve(path, contract.from_dict(contract.method(path).output, {"items": [job]}))
    row = " ".join(signed_in("ps").out.splitlines()[1].split())
    assert row.startswith(f"train job {state}"), row


def replica(name: str, state: str = "READY", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, **more}


CRASHED = "the model server ended (signal 11): segmentation fault"


@pytest.mark.parametrize(
    ("state", "replicas", "shown", "said"),
    [
        ("READY", [replica("replica-0")], "READY", ""),
        (
            "READY",
            [replica("replica-0"), replica("replica-1", "PENDING", restarts="2", message=CRASHED)],
            "DEGRADED (1 of 2 replicas)",
            f"bank: replica-1 is PENDING: {CRASHED}",
        ),
        (
            "READY",
            [replica("replica-0"), replica("replica-1", "UNHEALTHY")],
            "DEGRADED (1 of 2",
            "not answer",
        ),
        ("READY", [replica("replica-0"), replica("replica-1", "LOADING")], "READY", ""),
        (
            "READY",
            [replica("replica-0", restarts="1", started_at=REPAIRED, message=CRASHED)],
            "READY (1 of 1 replicas; replica-0 restarted 2 min ago after signal 11)",
            "",
        ),
        ("READY", [replica("replica-0", restarts="1", started_at=LONG_AGO)], "READY", ""),
        ("ERROR", [replica("replica-0", "PENDING", restarts="5", message=CRASHED)], "ERROR (signal 11)", ""),
        ("STARTING", [replica("replica-0", "LOADING")], "STARTING", ""),
        ("ASLEEP", [], "ASLEEP", ""),
    ],
)
def test_ps_shows_how_the_replicas_of_a_deployment_are(
    signed_in: Neo, cloud: FakeServer, state: str, replicas: list[dict[str, Any]], shown: str, said: str
) -> None:
    path = "neocloud.inference.v1.DeploymentService/List"
    status = {"state": state, "replicas": list(map(dated, replicas)), "wanted_replicas": str(len(replicas))}
    made = {"metadata": {"id": "inferencedeployment-e00a", "name": "bank"}, "status": status}
    cloud.serve(path, contract.from_dict(contract.method(path).output, {"items": [made]}))
    ran = signed_in("ps")
    row = " ".join(ran.out.splitlines()[1].split())
    row = re.sub(r"2 min \d+ s ago", "2 min ago", row)
    assert row.startswith(f"bank deployment {shown}"), row
    assert said in ran.err and bool(ran.err) is bool(said)
    assert ("(" in row) is ("(" in shown)


def dated(shown: dict[str, Any]) -> dict[str, Any]:
    """Replace a time ago, seen from when the test runs, by the time."""
    ago = shown.get("started_at")
    if not isinstance(ago, timedelta):
        return shown
    return shown | {"started_at": f"{datetime.now(UTC) - ago:%Y-%m-%dT%H:%M:%SZ}"}


@pytest.mark.parametrize(
    ("state", "machine", "shown", "said"),
    [
        ("RUNNING", {"power": "running"}, "RUNNING", ""),
        (
            "RUNNING",
            {"power": "running", "restarts": "1", "started_at": REPAIRED, "ended": "signal 9"},
            "RUNNING (restarted 2 min ago, signal 9)",
            "",
        ),
        ("RUNNING", {"power": "running", "restarts": "1", "started_at": LONG_AGO}, "RUNNING", ""),
        (
            "RUNNING",
            {"power": "io-error", "reason": "A disk of the host is full"},
            "DEGRADED (io-error)",
            "web: A disk of the host is full",
        ),
        (
            "STOPPED",
            {
                "power": "off",
                "reason": "machine failed and its recovery policy says FAIL",
                "ended": "exit code 1",
            },
            "STOPPED (machine failed, exit code 1)",
            "",
        ),
        ("STOPPED", {"power": "off"}, "STOPPED", ""),
        (
            "STOPPED",
            {
                "power": "off",
                "reason": "preempted at 2026-11-29 01:00:00 UTC; it stays off until it is started",
            },
            "STOPPED (preempted at 2026-11-29 01:00:00 UTC)",
            "",
        ),
    ],
)
def test_ps_shows_how_machines_are(
    signed_in: Neo, cloud: FakeServer, state: str, machine: dict[str, Any], shown: str, said: str
) -> None:
    listed = {"metadata": {"id": "computeinstance-e00web", "name": "web"}, "status": {"state": state}}
    path, get = f"{INSTANCES}/List", f"{overview.MACHINES}/Get"
    cloud.serve(path, contract.from_dict(contract.method(path).output, {"items": [listed]}))
    cloud.serve(get, contract.from_dict(contract.method(get).output, dated(machine)))
    ran = signed_in("ps")
    row = " ".join(ran.out.splitlines()[1].split())
    row = re.sub(r"2 min \d+ s ago", "2 min ago", row)
    assert row.startswith(f"web instance {shown}"), row
    assert said in ran.err and bool(ran.err) is bool(said)
    assert ("(" in row) is ("(" in shown)


def test_ps_asks_not_more_machines_than_it_has_time_for(signed_in: Neo, cloud: FakeServer) -> None:
    path, get = f"{INSTANCES}/List", f"{overview.MACHINES}/Get"
    items = [
        {"metadata": {"id": f"computeinstance-e00n{n}", "name": f"n{n}"}, "status": {"state": "RUNNING"}}
        for n in range(30)
    ]
    cloud.serve(path, contract.from_dict(contract.method(path).output, {"items": items}))

    def refuse(request: Any) -> Any:
        raise contract.permission_denied("compute.instances.get", request.instance_id)

    cloud.serve(get, refuse)
    ran = signed_in("ps")
    assert ran.code == 0 and len(ran.out.splitlines()) == 31
    assert len(cloud.asked(get)) == overview.MOST_MACHINES


def test_ps_of_an_empty_project_says_so(signed_in: Neo, cloud: FakeServer) -> None:
    ran = signed_in("ps")
    assert ran.code == 0 and "Nothing runs here" in ran.err


def test_ps_and_ls_name_what_the_caller_may_not_list(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.permission_denied("list", PROJECT)

    serve_clusters(cloud)
    cloud.serve(f"{INSTANCES}/List", refuse)
    for command in ("ps", "ls"):
        ran = signed_in(command)
        assert ran.code == 0 and not ran.out
        assert ran.err.splitlines() == [
            "You may not list instances here.",
            "There is nothing of the other kinds.",
        ]
    cloud.serve(f"{CLUSTERS}/List", refuse)
    assert signed_in("ps").code == signed_in("ls").code == 4


def test_ssh_finds_a_machine_or_a_cluster(
    signed_in: Neo, served: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(instance, "ssh", lambda cloud, name, *_, **__: called.append(f"machine {name}"))

    def sign_in(cloud: Any, name: str, command: Any, identity: Any, user: str) -> None:
        called.append(f"cluster {name} as {user}")

    monkeypatch.setattr(login, "ssh", sign_in)
    assert signed_in("ssh", "web").code == 0
    assert signed_in("ssh", "lab", "--", "sinfo").code == 0
    assert signed_in("ssh", "computeinstance-web-1").code == 0, "a name of the form of an id"
    assert signed_in("ssh", "lab", "--user", "ann").code == 0
    assert called == [
        "machine web",
        "cluster lab as root",
        "machine computeinstance-web-1",
        "cluster lab as ann",
    ]
    lost = signed_in("ssh", "lost")
    assert lost.code == 3 and "There is no machine and no Slurm cluster 'lost'. There are: " in lost.err


@pytest.mark.parametrize(
    "refusal", [contract.permission_denied("compute.instance.get", PROJECT), contract.unimplemented("Get")]
)
def test_ssh_finds_a_cluster_for_a_caller_without_rights_to_machines(
    signed_in: Neo,
    served: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    refusal: contract.ApiError,
) -> None:
    def refuse(request: Any) -> Any:
        raise refusal

    called: list[str] = []
    monkeypatch.setattr(login, "ssh", lambda cloud, name, *_, **__: called.append(name))
    served.serve(f"{INSTANCES}/GetByName", refuse)
    ran = signed_in("ssh", "lab")
    assert ran.code == 0, ran.err
    assert called == ["lab"]
    lost = signed_in("ssh", "lost")
    assert lost.code == 3 and "There is no machine and no Slurm cluster 'lost'" in lost.err
    assert ("you may not read" in lost.err) is (refusal.code.name == "PERMISSION_DENIED")
    served.serve(f"{CLUSTERS}/GetByName", refuse)
    assert refusal.message.rstrip(".") in signed_in("ssh", "lab").err


def test_nodes_are_listed(signed_in: Neo, served: FakeServer) -> None:
    _, row = signed_in("slurm", "node", "list", "lab").out.splitlines()
    assert row.split()[:3] == ["worker-0", "IDLE", "10.128.0.7"]
    assert json.loads(signed_in("slurm", "node", "list", "lab", "-o", "json").out)[0]["name"] == "worker-0"


def test_names_are_completed(signed_in: Neo, served: FakeServer) -> None:
    context = typer.Context(typer.main.get_command(overview.ssh_app), obj=Choice())
    assert names_of(INSTANCES, CLUSTERS)(context, "") == ["web", "lab"]
    assert names_of(INSTANCES, CLUSTERS)(context, "l") == ["lab"]


def test_completion_without_a_cloud_offers_nothing(neo: Neo) -> None:
    context = typer.Context(typer.main.get_command(overview.ssh_app), obj=Choice())
    assert names_of(INSTANCES)(context, "") == []


def test_ls_shows_buckets(signed_in: Neo, served: FakeServer) -> None:
    path = "nebius.storage.v1.BucketService/List"
    bucket = {"metadata": {"id": "storagebucket-e00data", "name": "data"}, "status": {"state": "ACTIVE"}}
    served.serve(path, contract.from_dict(contract.method(path).output, {"items": [bucket]}))
    [line] = [line for line in signed_in("ls").out.splitlines() if line.startswith("data ")]
    assert line.split()[1:3] == ["bucket", "ACTIVE"]
