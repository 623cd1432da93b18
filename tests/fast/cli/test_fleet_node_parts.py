"""`neo fleet node inventory` and `update`: what they send, and what they say."""

from typing import Any

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer
from tests.fast.cli.test_fleet_top import CLUSTER, NODES, node, serve_nodes


def place(name: str, since: int, until: int = 0, **more: Any) -> dict[str, Any]:
    found = {"node_id": f"{CLUSTER}/{name}", "slot": "0000:18:00.0", "firmware": "96.00", "reader": "pod"}
    times = {"since": f"2026-11-23T08:00:{since:02}Z"}
    if until:
        times["until"] = f"2026-11-23T08:00:{until:02}Z"
    return {**found, **times, **more}


def part(serial: str, *places: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "gpu", "model": "H100", "serial": serial, "places": list(places), **more}


def serve_parts(cloud: FakeServer, *parts: dict[str, Any]) -> None:
    serve_nodes(cloud, node("worker-0", "in_service"), node("worker-1", "in_service"))
    answer = contract.method(f"{NODES}/ListParts").output
    cloud.serve(f"{NODES}/ListParts", contract.from_dict(answer, {"items": list(parts)}))


def test_parts_are_listed_where_they_are_with_failures_and_who_else_claims_them(
    signed_in: Neo, cloud: FakeServer
) -> None:
    claimed = part("S1", place("worker-0", 1), place("worker-1", 5), failures=4, lemon="lemon: gpu S1")
    serve_parts(cloud, claimed, part("S2", place("worker-1", 1, 5)))
    ran = signed_in("fleet", "node", "inventory")
    _, first, second = ran.out.splitlines()
    assert "bank/worker-0" in first and "S1" in first and "also in bank/worker-1" in first
    assert "also in bank/worker-0" in second and "lemon: gpu S1" in second and " 4 " in second
    assert "S2" not in ran.out, "it is in no node any more"
    ran = signed_in("fleet", "node", "inventory", "bank/worker-1")
    assert cloud.asked(f"{NODES}/ListParts")[-1].node_id == f"{CLUSTER}/worker-1"
    assert len(ran.out.splitlines()) == 2


def test_parts_without_a_serial_number_are_listed_and_a_node_without_parts_is_named(
    signed_in: Neo, cloud: FakeServer
) -> None:
    processor = {"kind": "cpu", "slot": "socket 0", "model": "EPYC", "firmware": "0x1"}
    host = {
        "id": "gpu-1",
        "name": "gpu-1",
        "kind": "HOST",
        "inventory": {"parts": [processor], "reader": "host"},
    }
    serve_parts(cloud)
    serve_nodes(cloud, node("worker-0", "in_service"), host)
    for named in ((), ("gpu-1",)):
        [row] = signed_in("fleet", "node", "inventory", *named).out.splitlines()[1:]
        assert row.split() == ["gpu-1", "cpu", "socket", "0", "EPYC", "-", "0x1", "host", "-", "-"]
    assert "bank/worker-0 has told no parts" in signed_in("fleet", "node", "inventory", "bank/worker-0").err


def test_what_changed_is_listed_with_the_time(signed_in: Neo, cloud: FakeServer) -> None:
    serve_parts(
        cloud,
        part("OLD", place("worker-0", 1, 4), place("worker-0", 4, 7, firmware="97.00")),
        part("NEW", place("worker-0", 7, 9)),
    )
    lines = [
        line.split() for line in signed_in("fleet", "node", "inventory", "--changes").out.splitlines()[1:]
    ]
    assert [(each[1], " ".join(each[5:])) for each in lines] == [
        ("08:00:01", "OLD added"),
        ("08:00:04", "OLD: firmware 96.00 -> 97.00"),
        ("08:00:07", "OLD -> NEW"),
        ("08:00:09", "NEW removed"),
    ]


def test_labels_and_the_place_of_a_node_are_set_and_shown(signed_in: Neo, cloud: FakeServer) -> None:
    seen = node(
        *("worker-0", "in_service"),
        labels={"team": "vision"},
        topology={"rack": "r12"},
        inventory={
            "at": "2026-11-23T08:00:00Z",
            "reader": "pod",
            "simulated": "a stand-in",
            "parts": [{"kind": "gpu", "slot": "18", "serial": "S1", "also_in": ["x/worker-9"]}],
        },
    )
    serve_nodes(cloud, seen)
    cloud.serve(f"{NODES}/Update", contract.from_dict(contract.method(f"{NODES}/Update").output, seen))
    given = ("--label", "team=vision", "--remove-label", "old", "--rack", "r12", "--leaf", "")
    assert signed_in("fleet", "node", "update", "bank/worker-0", *given).code == 0
    [asked] = cloud.asked(f"{NODES}/Update")
    assert dict(asked.labels) == {"team": "vision"} and list(asked.remove_labels) == ["old"]
    assert asked.topology.rack == "r12" and asked.topology.HasField("leaf")
    assert not asked.topology.HasField("spine"), "what is not given stays"
    out = signed_in("fleet", "node", "get", "bank/worker-0").out
    for text in (
        "team=vision",
        "rack r12",
        "said by the agent in its pod",
        "serial S1",
        "x/worker-9",
        "stand-in",
    ):
        assert text in out, text


def test_a_change_of_nothing_and_a_label_without_a_value_are_refused(
    signed_in: Neo, cloud: FakeServer
) -> None:
    assert "Nothing to change" in signed_in("fleet", "node", "update", "bank/worker-0").err
    assert "KEY=VALUE" in signed_in("fleet", "node", "update", "bank/worker-0", "--label", "team").err
