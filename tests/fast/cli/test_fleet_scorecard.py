"""`neo fleet scorecard`: what it reads of services, how much it asks, and what it does when refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.scorecard.cloud_facts import Records
from neocloud.cli.scorecard.records_reader import MOST_ITEMS, WHOLE_SECONDS, RecordsReader
from neocloud.client.connection import PAGE_SIZE, Client
from neocloud.client.errors import ClientError
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer
from tests.fast.cli.real_cloud import cloud_with_profile

FLEET, SLURM = "neocloud.fleet.v1", "neocloud.slurm.v1"
NODES = f"{FLEET}.NodeService/List"
AUDIT = "nebius.audit.v2.AuditEventService/List"
CLUSTER, MADE, ENDED = "slurmcluster-e00bank", "2026-11-01T00:00:00Z", "2026-11-01T00:01:30Z"
NAME = "bank\x1b[2J\u202e"


def serve(cloud: FakeServer, path: str, **fields: Any) -> None:
    cloud.serve(path, contract.from_dict(contract.method(path).output, fields))


def event(at: str, **request: Any) -> dict[str, Any]:
    subject = {"service_account_id": "serviceaccount-e00s"}
    called = {"authentication": {"authenticated": True, "subject": subject}}
    return {
        "time": at,
        "type": "ai.nebius.x",
        "resource": {"metadata": {"id": "computedisk-e00d"}},
        "status": "DONE",
        "request": {"request_id": "q", **request},
        **called,
    }


def serve_services(cloud: FakeServer) -> None:
    node: dict[str, Any] = {
        "id": f"{CLUSTER}/worker-0",
        "name": "worker-0",
        "cluster_id": CLUSTER,
        "job": "7",
    }
    serve(cloud, NODES, items=[node])
    results = [{"check": "import_torch", "status": "pass", "sample": "8.2 s", "at": "2026-11-20T00:00:00Z"}]
    serve(cloud, f"{FLEET}.HealthCheckService/ListNodes", items=[{"id": node["id"], "results": results}])
    refuted = {"judgement": {"is_confirmed": False}, "verdict": {"check": "mount_missing", "at": MADE}}
    failed = {"verdict": {"check": "mount_read_only", "at": ENDED}}
    serve(cloud, f"{FLEET}.VerdictService/List", items=[refuted, failed])
    reliability = {"node_days": 3.5, "faults": {"ecc": 2}, "availability": 0.99, "end": ENDED}
    serve(cloud, f"{FLEET}.IncidentService/GetReliability", **reliability)
    serve(cloud, "nebius.iam.v2.ProjectService/List", items=[{"metadata": {"id": PROJECT}}])
    about = {"id": CLUSTER, "name": NAME, "created_at": MADE}
    found: dict[str, Any] = {"metadata": about, "spec": {"users": [{"name": "ada"}]}}
    found |= {"status": {"state": "READY"}}
    serve(cloud, f"{SLURM}.ClusterService/List", items=[found])
    job = {"id": 2, "name": NAME, "state": "COMPLETED", "finished_at": ENDED}
    cloud.serve(f"{SLURM}.JobService/Get", lambda asked: _job(asked, job))
    use = {"gpus": 1, "gpu_use": {"utilisation_percent": 91}}
    serve(cloud, f"{SLURM}.JobService/Report", job=job, runs=[use])
    serve(cloud, "nebius.storage.v1.BucketService/List", items=[{"spec": {"versioning_policy": "ENABLED"}}])
    serve(cloud, "nebius.iam.v1.TenantService/Get", metadata={"id": TENANT}, spec={"region": "eu-north1"})
    cloud.serve(AUDIT, lambda asked: _events(cloud))


def _job(asked: Any, job: dict[str, Any]) -> Any:
    if asked.job_id < 2:
        raise contract.not_found("job", str(asked.job_id))
    return contract.from_dict(contract.method(f"{SLURM}.JobService/Get").output, job)


def _events(cloud: FakeServer) -> Any:
    is_oldest = cloud.headers(AUDIT).get("x-audit-order") == "oldest-first"
    at = "2026-01-02T00:00:00Z" if is_oldest else "2026-11-02T00:00:00Z"
    return contract.from_dict(contract.method(AUDIT).output, {"items": [event(at, client_ip="10.0.0.9")]})


@pytest.mark.parametrize(
    ("field", "lacks"),
    [
        ("authentication", "1 who"),
        ("request", "1 from where"),
        ("resource", "1 on what"),
        ("status", "1 which result"),
    ],
)
def test_an_audit_log_whose_records_lack_something_does_not_pass(
    signed_in: Neo, cloud: FakeServer, field: str, lacks: str
) -> None:
    serve_services(cloud)
    record = event("2026-01-02T00:00:00Z", client_ip="10.0.0.9") | {"authorization": {"authorized": True}}
    record[field] = {"authentication": {"authenticated": True}, "request": {"request_id": "q"}}.get(field)
    items = [{name: value for name, value in record.items() if value is not None}]
    serve(cloud, AUDIT, items=items)
    audit = criteria(signed_in)["SEC-8"]
    assert audit["score"] == "partial" and f"these lack: {lacks}" in told(audit), audit


def criteria(neo: Neo) -> dict[str, Any]:
    ran = neo("fleet", "scorecard", "--output", "json")
    assert ran.code == 0, ran.err
    return {each["id"]: each for each in json.loads(ran.out)["criteria"]}


def told(criterion: Any) -> str:
    return " | ".join(each["text"] for each in criterion["evidence"])


def test_services_jobs_and_checks_are_evidence_with_its_age(signed_in: Neo, cloud: FakeServer) -> None:
    serve_services(cloud)
    found = criteria(signed_in)
    assert found["SEC-8"]["score"] == "pass", found["SEC-8"]
    assert found["SEC-8"]["evidence"][0]["at"].startswith("2026-11-02")
    assert "ended 90 to 90 s" in told(found["LIF-2"]) and found["LIF-2"]["score"] == "partial"
    assert "1 with users besides root" in told(found["ORC-1"])
    assert found["ORC-3"]["score"] == "fail" and "UNIMPLEMENTED" in told(found["ORC-3"])
    assert "1 times a mount was missing" in told(found["STO-2"])
    assert (found["STO-4"]["score"], "1 of 1 buckets" in told(found["STO-4"])) == ("attest", True)
    assert "2 faults in 3.5 node-days" in told(found["REL-3"])
    assert "known of 1 of 1 jobs" in told(found["MON-6"]) and found["MON-6"]["score"] == "partial"
    [report] = cloud.asked(f"{SLURM}.JobService/Report")
    assert (report.cluster_id, report.job_id) == (CLUSTER, 7)
    assert [each.job_id for each in cloud.asked(f"{SLURM}.JobService/Get")] == [1, 2]
    assert {(each.parent_id, each.region) for each in cloud.asked(AUDIT)} == {(TENANT, "eu-north1")}


def test_names_of_tenants_are_not_printed(signed_in: Neo, cloud: FakeServer) -> None:
    serve_services(cloud)
    for words in ((), ("--output", "json")):
        ran = signed_in("fleet", "scorecard", *words)
        assert "\x1b" not in ran.out and "\u202e" not in ran.out and "bank" not in ran.out, ran.out


def test_where_everything_is_refused_all_is_said_with_the_reason(signed_in: Neo, cloud: FakeServer) -> None:
    serve_services(cloud)
    why = "You may not.\x1b[2J" + "x" * 500

    def refuse(request: Any) -> Any:
        raise contract.permission_denied("fleet.nodes.list", "cloud", why)

    asked = [path for path in cloud.methods if "TokenExchange" not in path]
    for path in asked:
        cloud.serve(path, refuse)
    found = criteria(signed_in)
    assert {each["score"] for each in found.values()} <= {"not_run", "attest"}
    for identifier in ("MON-1", "MON-2", "SEC-8", "ORC-1", "STO-2", "STO-4", "REL-3"):
        assert "gives no answer: You may not." in told(found[identifier]), found[identifier]
    assert all(len(told(each)) < 2000 and told(each).isprintable() for each in found.values())


def test_one_service_that_breaks_takes_only_its_own_evidence(signed_in: Neo, cloud: FakeServer) -> None:
    serve_services(cloud)

    def fail(request: Any) -> Any:
        raise contract.bad_state(CLUSTER, "Slurm is silent.")

    cloud.serve(f"{SLURM}.JobService/Get", fail)
    found = criteria(signed_in)
    assert found["LIF-2"]["score"] == "not_run" and "the record of jobs gives no" in told(found["LIF-2"])
    assert found["SEC-8"]["score"] == "pass" and found["ORC-1"]["score"] == "partial"


def test_without_a_cloud_or_a_sign_in_there_is_an_error_and_no_scorecard(
    signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: Any) -> Any:
        raise contract.unauthenticated("The token is not valid.")

    cloud.serve(NODES, refuse)
    ran = signed_in("fleet", "scorecard")
    assert (ran.code, ran.out) == (4, "") and "not valid" in ran.err

    def silent(*_: Any, **__: Any) -> Any:
        raise ClientError("UNAVAILABLE", "Nothing answers at 127.0.0.1:1")

    monkeypatch.setattr(Client, "call", silent)
    ran = signed_in("fleet", "scorecard")
    assert (ran.code, ran.out) == (5, "") and "Nothing answers" in ran.err


class Endless:
    """A client of a cloud whose lists never end, and whose calls take some seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.now, self.seconds, self.asked = 0.0, seconds, 0
        self.timeouts: list[float] = []

    def clock(self) -> float:
        return self.now

    def call(self, path: str, request: Any, *, timeout_seconds: float, headers: Any) -> Any:
        self.now += self.seconds
        self.asked += 1
        self.timeouts.append(timeout_seconds)
        items = [{"name": "worker-0"}] * request["page_size"]
        return contract.from_dict(contract.method(path).output, {"items": items, "next_page_token": "more"})


def test_a_list_without_an_end_is_cut_and_said_to_be() -> None:
    client: Any = Endless()
    reader = RecordsReader(client)
    assert len(reader.list(Records.NODES, NODES)) == MOST_ITEMS
    assert client.asked == MOST_ITEMS // PAGE_SIZE and reader.cut == {Records.NODES} and not reader.unread
    assert len(reader.list(Records.NODES, NODES, most=7)) == 7 and client.asked == MOST_ITEMS // PAGE_SIZE + 1


def test_many_projects_and_clusters_are_read_in_part_and_said_to_be(
    signed_in: Neo, cloud: FakeServer
) -> None:
    serve_services(cloud)
    projects = [{"metadata": {"id": f"project-e00n{number:02}"}} for number in range(30)]
    serve(cloud, "nebius.iam.v2.ProjectService/List", items=projects)
    listed = f"{SLURM}.ClusterService/List"
    more: dict[str, Any] = {"metadata": {"id": CLUSTER, "created_at": MADE}, "status": {"state": "READY"}}
    serve(cloud, listed, items=[more] * 300, next_page_token="more")
    found = criteria(signed_in)
    assert len(cloud.asked(listed)) == 20 and {each.page_size for each in cloud.asked(listed)} == {200}
    assert len(cloud.asked(f"{SLURM}.JobService/Get")) == 10 * 2
    assert "4000 of 4000 Slurm clusters are ready" in told(found["ORC-1"])
    assert "10 of 4000 Slurm clusters" in told(found["LIF-2"]), found["LIF-2"]
    assert "was cut short" in told(found["LIF-2"]) and "was cut short" in told(found["ORC-1"])


def test_after_two_minutes_nothing_more_is_asked() -> None:
    client: Any = Endless(seconds=14.0)
    reader = RecordsReader(client)
    assert reader.list(Records.NODES, NODES) == []
    assert client.asked == 9 and client.now <= WHOLE_SECONDS + 14 and client.timeouts[-1] == pytest.approx(8)
    assert "all others took 120 s together" in reader.unread[Records.NODES]
    assert reader.list(Records.CHECKS, NODES) == [] and client.asked == 9


def test_a_real_control_plane_is_rated_by_what_it_recorded(neo: Neo, tmp_path: Path) -> None:
    with cloud_with_profile(tmp_path / "cloud") as real:
        assert neo("quota", "set", "compute.disk.count", "9").code == 0
        made = ("--name", "a", "--size-gibibytes", "1", "--type", "NETWORK_SSD")
        assert neo("compute", "filesystem", "create", *made).code == 0
        found = criteria(neo)
        audit = found["SEC-8"]
        assert audit["score"] == "partial" and "is 0 days old" in told(audit), audit
        assert "all say who, from where, on what and with which result" in told(audit)
        assert found["ORC-3"]["score"] == "fail" and "UNIMPLEMENTED" in told(found["ORC-3"])
        assert "1 shared filesystems and 0 buckets" in told(found["STO-1"]), found["STO-1"]
        assert found["SEC-4"]["score"] == "not_run" and "networks of 1 projects" in told(found["SEC-4"])
        assert "pass" not in {each["score"] for each in found.values()}
        refused = [each for each in found.values() if "gives no answer" in told(each)]
        assert [each["id"] for each in refused] == ["MON-4"], [told(each) for each in refused]
        assert real.tenant_id not in json.dumps(found)
