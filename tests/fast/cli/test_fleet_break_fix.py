"""`neo fleet break-fix` and `neo fleet maintenance`: what they send, and what they say."""

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import TENANT, FakeServer, operation

BREAK_FIX = "neocloud.fleet.v1.BreakFixService"
CLUSTERS = "neocloud.slurm.v1.ClusterService"
NODES = "neocloud.fleet.v1.NodeService"
WINDOWS = "neocloud.fleet.v1.MaintenanceWindowService"


def answer(path: str, **fields: object) -> object:
    return contract.from_dict(contract.method(path).output, fields)


def test_a_tenant_asks_for_a_replacement_and_reads_the_ticket(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.serve(
        f"{CLUSTERS}/GetByName", answer(f"{CLUSTERS}/GetByName", metadata={"id": "slurmcluster-e00bank"})
    )
    made = {"ticket": "ticket:1 slow", "phase": "draining"}
    cloud.serve(f"{BREAK_FIX}/Request", answer(f"{BREAK_FIX}/Request", **made))
    ran = signed_in("fleet", "break-fix", "request", "bank/worker-0", "replace", "--reason", "slow")
    assert ran.code == 0, ran.err
    [asked] = cloud.asked(f"{BREAK_FIX}/Request")
    assert (asked.cluster_id, asked.node, asked.reason) == ("slurmcluster-e00bank", "worker-0", "slow")
    assert type(asked).Action.Name(asked.action) == "REPLACE"
    assert "draining" in ran.err and "ticket:1 slow" in ran.err
    event = {"node": "worker-0", "type": "REPAIR_TICKET_OPENED", "ticket": "ticket:1", "text": "drained"}
    cloud.serve(f"{BREAK_FIX}/ListEvents", answer(f"{BREAK_FIX}/ListEvents", items=[event]))
    assert "REPAIR_TICKET_OPENED" in signed_in("fleet", "break-fix", "events", "bank").out


def test_a_cordon_says_what_follows_and_points_to_no_ticket(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.serve(
        f"{CLUSTERS}/GetByName", answer(f"{CLUSTERS}/GetByName", metadata={"id": "slurmcluster-e00b"})
    )
    cloud.serve(f"{BREAK_FIX}/Request", answer(f"{BREAK_FIX}/Request", phase="drained"))
    asked = ("fleet", "break-fix", "request", "bank/worker-0")
    told = signed_in(*asked, "cordon", "--reason", "tests").err
    assert "until you uncordon it" in told and "events" not in told
    assert "once it has passed its checks" in signed_in(*asked, "uncordon", "--reason", "done").err


def test_a_window_is_announced_in_utc_listed_and_ended(signed_in: Neo, cloud: FakeServer) -> None:
    node = {"cluster_id": "slurmcluster-e00bank", "cluster_name": "bank", "name": "worker-0"}
    cloud.serve(f"{NODES}/List", answer(f"{NODES}/List", items=[node]))
    window = {
        "metadata": {"id": "fleetwindow-e00a"},
        "spec": {
            "cluster_id": "slurmcluster-e00bank",
            "start_at": "2026-12-01T22:00:00Z",
            "end_at": "2026-12-02T02:00:00Z",
            "reason": "Firmware",
        },
        "status": {"state": "ANNOUNCED"},
    }
    cloud.serve(f"{WINDOWS}/Create", operation("fleetwindow-e00a"))
    cloud.serve(f"{WINDOWS}/Get", answer(f"{WINDOWS}/Get", **window))
    cloud.serve(f"{WINDOWS}/List", answer(f"{WINDOWS}/List", items=[window]))
    cloud.serve(f"{WINDOWS}/Delete", operation("fleetwindow-e00a"))
    times = ("--from", "2026-12-01T22:00", "--to", "2026-12-02T02:00")
    ran = signed_in("fleet", "maintenance", "create", "bank", *times, "--reason", "Firmware")
    assert ran.code == 0, ran.err
    [asked] = cloud.asked(f"{WINDOWS}/Create")
    assert asked.metadata.parent_id == TENANT and asked.spec.cluster_id == "slurmcluster-e00bank"
    assert asked.spec.start_at.ToJsonString() == "2026-12-01T22:00:00Z"
    row = signed_in("fleet", "maintenance", "list").out.splitlines()[1]
    assert "bank" in row and "ANNOUNCED" in row and "2026-12-01 22:00 to 2026-12-02 02:00" in row
    assert signed_in("fleet", "maintenance", "delete", "fleetwindow-e00a", "--yes").code == 0
    assert [each.id for each in cloud.asked(f"{WINDOWS}/Delete")] == ["fleetwindow-e00a"]


def test_a_host_is_drained_released_and_has_windows(signed_in: Neo, cloud: FakeServer) -> None:
    host = {"id": "gpu-1", "name": "gpu-1", "kind": "HOST", "phase": "drained", "advice": "for an operator"}
    cloud.serve(f"{NODES}/List", answer(f"{NODES}/List", items=[host]))
    for verb in ("Drain", "Release"):
        cloud.serve(f"{NODES}/{verb}", answer(f"{NODES}/{verb}", **host))
    ran = signed_in("fleet", "drain", "gpu-1", "new firmware")
    assert ran.code == 0 and "gpu-1 starts nothing new" in ran.err, ran.err
    assert signed_in("fleet", "release", "gpu-1").code == 0
    [asked] = cloud.asked(f"{NODES}/Drain")
    assert (asked.id, asked.reason) == ("gpu-1", "new firmware")
    row = signed_in("fleet", "node", "list").out.splitlines()[1]
    assert row.split()[:3] == ["gpu-1", "host", "drained"] and "for an operator" in row
    assert "Takes new work" in signed_in("fleet", "node", "get", "gpu-1").out
    assert signed_in("fleet", "drain", "bank/gpu-1", "x").code != 0
    window = {"metadata": {"id": "fleetwindow-e00a"}, "spec": {"host": "gpu-1", "reason": "Fan"}}
    cloud.serve(f"{WINDOWS}/Create", operation("fleetwindow-e00a"))
    cloud.serve(f"{WINDOWS}/Get", answer(f"{WINDOWS}/Get", **window))
    times = ("--from", "2026-12-01T22:00", "--to", "2026-12-02T02:00", "--reason", "Fan")
    ran = signed_in("fleet", "maintenance", "create", "--host", "gpu-1", *times)
    assert ran.code == 0, ran.err
    [asked] = cloud.asked(f"{WINDOWS}/Create")
    assert (asked.spec.host, asked.spec.cluster_id) == ("gpu-1", "")
    for named in ((), ("bank", "--host", "gpu-1")):
        ran = signed_in("fleet", "maintenance", "create", *named, *times)
        assert ran.code != 0 and "Name a cluster, or a host" in ran.err
