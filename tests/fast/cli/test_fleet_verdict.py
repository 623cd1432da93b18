"""`neo fleet verdict`, `neo fleet incidents`, records of checks, certificates, records of the scorecard."""

import json
from pathlib import Path
from typing import Any

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer

FLEET = "neocloud.fleet.v1"
VERDICTS, INCIDENTS = f"{FLEET}.VerdictService", f"{FLEET}.IncidentService"
METRICS = "neocloud.monitoring.v1.MetricsService/ReadAll"
AT, LATER = "2026-11-27T09:00:00Z", "2026-11-27T09:00:41Z"
NODE = {"node_id": "slurmcluster-e00x/worker-0", "cluster_id": "slurmcluster-e00x", "cluster_name": "bank"}


def serve(cloud: FakeServer, path: str, **fields: Any) -> None:
    cloud.serve(path, contract.from_dict(contract.method(path).output, fields))


def failing(number: int, check: str, **more: Any) -> dict[str, Any]:
    verdict = {"id": f"v{number}", "check": check, "status": "fail", "sample": "8 lanes", "at": AT}
    verdict |= {"threshold": "at least 16", "source": "oci"}
    return {**NODE, "node": "worker-0", "verdict": verdict, **more}


def serve_verdicts(cloud: FakeServer) -> None:
    right = {"is_confirmed": True, "by": "test:gpu_pcie_h2d", "at": AT}
    items = [
        failing(1, "pcie_width", shadow="shadow: it has no record", judged_by="gpu_pcie_h2d"),
        failing(2, "mount_missing", shadow="shadow: it has no record"),
        failing(3, "gpu_missing", judgement=right),
    ]
    serve(cloud, f"{VERDICTS}/List", items=items)
    shadow = "shadow: mount_missing has 1 judged cases, 20 are needed"
    serve(cloud, f"{VERDICTS}/Judge", **failing(2, "mount_missing", judgement=right, shadow=shadow))


def test_verdicts_that_wait_are_listed_and_judged_by_name(signed_in: Neo, cloud: FakeServer) -> None:
    serve_verdicts(cloud)
    ran = signed_in("fleet", "verdict", "list")
    assert ran.code == 0, ran.err
    assert "v1" in ran.out and "waits for you" in ran.out and "v3" not in ran.out
    assert len(json.loads(signed_in("fleet", "verdict", "list", "--all", "--output", "json").out)) == 3
    ran = signed_in("fleet", "verdict", "judge", "bank/worker-0", "v2", "--refute")
    [asked] = cloud.asked(f"{VERDICTS}/Judge")
    assert (asked.id, asked.verdict) == (NODE["node_id"], "v2") and type(asked).Finding.Name(
        asked.finding
    ) == "REFUTED"
    assert ran.code == 0 and "20 are needed" in ran.out + ran.err


def test_of_no_verdict_it_says_which_were_looked_for(signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud, f"{VERDICTS}/List")
    told = [signed_in("fleet", "verdict", "list", *words).err for words in ((), ("--all",))]
    assert "verdict list --all" in told[0] and "No check has failed" in told[1], told
    agent = {"id": "v", "check": "disk_used", "sample": "90 %", "threshold": "over 85 %", "at": AT}
    serve(cloud, f"{VERDICTS}/List", items=[{**NODE, "node": "worker-0", "verdict": agent}])
    told = signed_in("fleet", "verdict", "list", "--all").out
    assert "90 % (fails over 85 %)" in told, "it is not what is wanted"


def test_a_judgement_without_a_finding_or_of_nothing_is_refused_with_what_to_do(
    signed_in: Neo, cloud: FakeServer
) -> None:
    serve_verdicts(cloud)
    for words in ((), ("--confirm", "--refute")):
        ran = signed_in("fleet", "verdict", "judge", "bank/worker-0", "v2", *words)
        assert ran.code != 0 and "either --confirm or --refute" in ran.err
    ran = signed_in("fleet", "verdict", "judge", "bank/worker-0", "v9", "--confirm")
    assert ran.code != 0 and "neo fleet verdict list" in ran.err
    assert not cloud.asked(f"{VERDICTS}/Judge")


def test_records_say_what_a_check_lacks(signed_in: Neo, cloud: FakeServer) -> None:
    record = {
        "check": "pcie_width",
        "judged": 12,
        "confirmed": 9,
        "precision": 0.75,
        "lower": 0.47,
        "upper": 0.91,
    }
    record |= {
        "pools": 2,
        "active_pools": 0,
        "lacking": "shadow: pcie_width has 12 judged cases, 20 are needed",
    }
    trusted = {"check": "slurm", "pools": 2, "active_pools": 2, "is_trusted": True, "upper": 1.0}
    serve(cloud, f"{FLEET}.HealthCheckService/ListRecords", items=[record, trusted])
    ran = signed_in("fleet", "checks", "records")
    assert ran.code == 0, ran.err
    assert "9 of 12" in ran.out and "0.75 (0.47 to 0.91)" in ran.out and "20 are needed" in ran.out
    assert "active, without a record" in ran.out


INCIDENT = {
    **NODE,
    "id": "slurmcluster-e00x/worker-0/3",
    "node": "worker-0",
    "state": "ended",
    "ended_at": LATER,
    "summary": {
        **{"evidence": "v1", "reason": "pcie_width: 8 lanes", "detected_at": AT, "decided_at": AT},
        **{"spare": "worker-2", "ready_at": LATER, "credited_seconds": 41},
    },
    "steps": [{"what": "reboot", "at": AT, "outcome": "done"}],
}


def test_incidents_and_certificates_are_shown(signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud, f"{INCIDENTS}/List", items=[INCIDENT])
    serve(cloud, f"{INCIDENTS}/Get", **INCIDENT)
    ran = signed_in("fleet", "incidents", "list")
    assert ran.code == 0 and "slurmcluster-e00x/worker-0/3" in ran.out and "after 41 s" in ran.out, ran.err
    assert (
        "The controller has drained no node"
        in (done := signed_in("fleet", "incidents", "list", "--open")).out + done.err
    )
    ran = signed_in("fleet", "incidents", "get", INCIDENT["id"])
    assert "reboot" in ran.out and "worker-2" in ran.out and "v1" in ran.out and "ended after 41 s" in ran.out
    proof = {"boot": "b7", "suite": "full", "issued_at": AT, "valid_until": LATER}
    items = [{**NODE, "node": "worker-0", "certificate": proof, "is_valid": True}]
    serve(cloud, f"{FLEET}.CertificateService/List", items=items)
    ran = signed_in("fleet", "node", "certificates")
    assert "bank/worker-0" in ran.out and "b7" in ran.out and "full" in ran.out, ran.err
    of_host = {"node_id": "gpu-1", "node": "gpu-1"}
    serve(cloud, f"{FLEET}.CertificateService/List", items=[{**of_host, "certificate": proof}])
    serve(cloud, f"{INCIDENTS}/List", items=[{**INCIDENT, **of_host, "cluster_id": "", "cluster_name": ""}])
    for words in (("node", "certificates"), ("incidents", "list")):
        assert "gpu-1" in (told := signed_in("fleet", *words).out) and "/gpu-1" not in told


def test_the_scorecard_rests_on_the_clouds_records(signed_in: Neo, cloud: FakeServer) -> None:
    node = {
        "id": NODE["node_id"],
        "name": "worker-0",
        "cluster_id": NODE["cluster_id"],
        "phase": "in_service",
    }
    host: dict[str, Any] = {"id": "gpu-host-1", "name": "gpu-host-1", "kind": "HOST", "phase": "in_service"}
    host["inventory"] = {"at": AT, "reader": "host", "parts": [{"kind": "cpu", "model": "any"}]}
    serve(cloud, f"{FLEET}.NodeService/List", items=[node, host])
    result = {"check": "cpu_sdc", "status": "pass", "at": AT}
    health = {"id": NODE["node_id"], "agent": "pass", "agent_interval_seconds": 30, "results": [result]}
    serve(cloud, f"{FLEET}.HealthCheckService/ListNodes", items=[health])
    serve(cloud, f"{INCIDENTS}/List", items=[INCIDENT])
    serve(cloud, f"{FLEET}.MaintenanceWindowService/List", items=[{"metadata": {"created_at": AT}}])
    event = {"at": AT, "node": "worker-0", "type": "REPAIR_TICKET_OPENED", "ticket": "v1"}
    serve(cloud, f"{FLEET}.BreakFixService/ListEventsAsOperator", items=[event])
    series = {"status": "success", "data": {"result": [{"metric": {"__name__": "neocloud_slurm_jobs"}}]}}
    cloud.serve(METRICS, contract.method(METRICS).output(status=200, body=json.dumps(series).encode()))

    def scores() -> dict[str, Any]:
        ran = signed_in("fleet", "scorecard", "--output", "json")
        assert ran.code == 0, ran.err
        return {each["id"]: each for each in json.loads(ran.out)["criteria"]}

    said = signed_in("fleet", "scorecard").err
    (asked,) = cloud.asked(f"{FLEET}.BreakFixService/ListEventsAsOperator")
    assert asked.cluster_id == NODE["cluster_id"], "hosts are of no cluster"
    lacking = "Bronze needs: SEC-1 (attest), SEC-3 (not_run), SEC-4 (not_run)"
    assert f"Rating: no tier is shown. {lacking}" in said, said
    found = scores()
    assert found["REL-2"]["score"] == "pass" and "41 s" in found["REL-2"]["evidence"][0]["text"]
    assert found["LIF-4"]["score"] == "pass" and found["MON-4"]["score"] == "partial"
    assert (
        "the agents of 2 check them every 30 s" in found["MON-1"]["evidence"][0]["text"]
        and found["SEC-4"]["score"] == "not_run"
    )
    assert found["REL-2"]["evidence"][0]["at"].startswith("2026-11-27T09:00:00")
    del cloud.methods[METRICS]
    assert scores()["MON-4"]["score"] == "not_run"


def test_reliability_is_shown_with_its_interval_and_nothing_where_nothing_is_known(
    signed_in: Neo, cloud: FakeServer
) -> None:
    figures = {"begin": AT, "end": LATER, "nodes": 4, "node_days": 120.0, "faults": {"ecc": 2, "restart": 1}}
    figures |= {"rate": {"per_1000_node_days": 25.0, "low": 5.2, "high": 73.1}, "availability": 0.9975}
    figures |= {"replaced": 3, "replaced_within_90_seconds": 2, "median_replacement_seconds": 12.0}
    figures |= {"longest_replacement_seconds": 130.0, "out_of_service_hours": {"fault": 7.2}}
    serve(cloud, f"{INCIDENTS}/GetReliability", **figures)
    node = {
        "id": NODE["node_id"],
        "cluster_id": NODE["cluster_id"],
        "cluster_name": "bank",
        "name": "worker-0",
    }
    serve(cloud, f"{FLEET}.NodeService/List", items=[node])
    ran = signed_in("fleet", "reliability", "bank", "--days", "7")
    assert ran.code == 0, ran.err
    for said in ("3 (2 ecc, 1 restart)", "25.0 (95% interval 5.2 to 73.1)", "99.750%", "7.20 node-hours"):
        assert said in ran.out, ran.out
    assert "2 of 3 within 90 s, median 12 s, longest 2 min 10 s" in ran.out
    [asked] = cloud.asked(f"{INCIDENTS}/GetReliability")
    assert (asked.cluster_id, asked.days) == (NODE["cluster_id"], 7)
    serve(cloud, f"{INCIDENTS}/GetReliability", begin=AT, end=LATER)
    ran = signed_in("fleet", "reliability")
    assert (
        "Availability" not in ran.out and "Spare took over" not in ran.out and "0.00 node-minutes" in ran.out
    )
    short = {"node_days": 0.01, "replaced": 1, "median_replacement_seconds": 0.7}
    serve(cloud, f"{INCIDENTS}/GetReliability", **short, out_of_service_hours={"fault": 4 / 3600})
    ran = signed_in("fleet", "reliability")
    assert "14.40 node-minutes" in ran.out and "median 0.7 s" in ran.out
    assert "0.07 node-minutes" in ran.out and "less than a node-day" in ran.out
    ran = signed_in("fleet", "reliability", "other")
    assert ran.code != 0 and "No nodes of a cluster 'other' are watched" in ran.err


REPORT = """# ClusterMAX audit target
  Command: cmax audit
  Target: {target}
PASS     Something of no criterion  [other.check]
         It is there.

{status} Time  [bmc-ipmi]
         Seen from {target}.

{counts}
"""


def test_the_scorecard_takes_several_reports_and_says_what_each_looked_at(
    signed_in: Neo, tmp_path: Path
) -> None:
    slurm, vm, cut = tmp_path / "slurm.txt", tmp_path / "vm.txt", tmp_path / "cut.txt"
    passed = "0 failed, 0 warnings, 2 passed, 0 skipped"
    slurm.write_text(REPORT.format(target="Slurm cluster", status="PASS    ", counts=passed))
    failed = "1 failed, 0 warnings, 1 passed, 0 skipped"
    vm.write_text(REPORT.format(target="Local virtual machine", status="FAIL    ", counts=failed))
    reports = ("fleet", "scorecard", "--no-cloud", "--audit", str(slurm), "--audit", str(vm))
    ran = signed_in(*reports, "--output", "json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    (row,) = (each for each in document["criteria"] if each["id"] == "SEC-6")
    found = [(each["harness"], each["score"]) for each in row["evidence"]]
    assert row["score"] == "fail" and found == [("slurm", "pass"), ("vm", "fail")]
    assert document["other_checks"] == 1
    ran = signed_in(*reports)
    assert "auditor (vm): Time: Seen from Local virtual machine. (+1)" in ran.out, ran.out
    cut.write_text(vm.read_text().replace(failed, ""))
    ran = signed_in(*reports, "--audit", str(cut))
    assert ran.code != 0 and "cut.txt is not a whole report" in ran.err
