"""`neo fleet node events` and `release`: what people read of a node."""

import json
from typing import Any

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer
from tests.fast.cli.test_fleet_top import NODES, node, serve_nodes


def serve_events(cloud: FakeServer, *events: dict[str, Any]) -> None:
    items = [{"position": str(number), "json": json.dumps(each)} for number, each in enumerate(events)]
    answer = contract.method(f"{NODES}/ListEvents").output
    cloud.serve(f"{NODES}/ListEvents", contract.from_dict(answer, {"items": items}))


def test_events_have_times_that_people_read_and_say_what_fails(signed_in: Neo, cloud: FakeServer) -> None:
    serve_nodes(cloud, node("worker-0", "in_service"))
    verdict = {"check": "disk_used", "status": "fail", "sample": "90 %", "threshold": "over 85 %", "id": "v1"}
    serve_events(
        cloud,
        {"type": "VerificationStarted", "at": 1795855891.0, "deadline": 1795856071.04, "suite": "full"},
        {"type": "Verdict", "at": 1795855892.0, "is_fatal": False, **verdict},
    )
    ran = signed_in("fleet", "node", "events", "bank/worker-0")
    header, started, said = ran.out.splitlines()
    assert header.startswith("AT, UTC")
    assert "2026-11-28 08:51:31.000" in started and "deadline=2026-11-28 08:54:31, suite=full" in started
    assert "disk_used fail: 90 % (fails over 85 %), v1" in said


def test_a_release_says_what_follows_for_a_host_and_for_a_worker(signed_in: Neo, cloud: FakeServer) -> None:
    host = {"id": "gpu-1", "name": "gpu-1", "kind": "HOST"}
    serve_nodes(cloud, node("worker-0", "drained"), host)
    cloud.serve(f"{NODES}/Release", contract.from_dict(contract.method(f"{NODES}/Release").output, {}))
    assert "once it is verified" in signed_in("fleet", "release", "bank/worker-0").err
    told = signed_in("fleet", "release", "gpu-1").err
    assert "gpu-1 is released" in told and "verified" not in told, "it takes new work at once"


def test_a_node_is_moved_by_hand_and_its_events_say_who_and_why(signed_in: Neo, cloud: FakeServer) -> None:
    serve_nodes(cloud, node("worker-0", "triage"))
    cloud.serve(f"{NODES}/Move", contract.from_dict(contract.method(f"{NODES}/Move").output, {}))
    ran = signed_in("fleet", "node", "move", "bank/worker-0", "rma_out", "case 4711")
    assert ran.code == 0 and "is in rma_out" in ran.err
    assert signed_in("fleet", "node", "move", "bank/worker-0", "rma_out").code == 2, "why is required"
    moved = {"type": "Moved", "at": 1795855891.0, "to": "rma_out", "by": "operator:useraccount-x"}
    serve_events(cloud, {**moved, "why": "case 4711"})
    (_, told) = signed_in("fleet", "node", "events", "bank/worker-0").out.splitlines()
    assert "to=rma_out, by=operator:useraccount-x, why=case 4711" in told
