"""Labels, places and parts of nodes, as operators see them; serial numbers in the events of repairs.

The engine and Slurm are fakes, and what the agents say is appended as they would.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from neocloud.messages.neocloud.fleet.v1 import NodePool

from neocloud.core import wire
from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Transaction
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import encode
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.parts import HostPart, Reader
from neocloud.fleet.nodes.repairs import all_repairs
from neocloud.services import iam
from neocloud.services.slurm.public import NODE_POOL
from tests.control_plane import sign_in
from tests.fast.services.fleet.test_fleet import NODES, WatchedCloud
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import fake_cloud

GPU = HostPart("gpu", "0000:18:00.0", "NVIDIA H100", "SERIAL-1", "96.00")
DISK = HostPart("nvme", "nvme0", "SAMSUNG", "DISK-1")
MACHINE = HostPart("system", "host", "XE9680", "MACHINE-1")


class Cloud(WatchedCloud):
    async def happened(self, *events: Event, cluster_id: str = "") -> None:
        def add(tx: Transaction) -> None:
            for row in tx.list(NODE_POOL)[0]:
                if wire.message(row, NodePool).spec.cluster_id == (cluster_id or self.cluster_id):
                    for each in events:
                        at = datetime.fromtimestamp(each.at, UTC)
                        tx.append_event(row.id, LogEvent(each.node, at, encode(each)))

        await self.running.store.write(add)

    async def has(self, node: str, *parts: HostPart, at: float, cluster_id: str = "", **more: Any) -> None:
        reader = more.pop("reader", Reader.POD)
        await self.happened(e.InventoryChanged(at, node, reader, parts, **more), cluster_id=cluster_id)

    def id_of(self, node: str) -> str:
        return f"{self.cluster_id}/{node}"

    async def update(self, **fields: Any) -> Any:
        return await self.call(f"{NODES}/Update", id=self.id_of("worker-0"), **fields)

    async def parts(self, **fields: Any) -> list[Any]:
        return list((await self.call(f"{NODES}/ListParts", **fields)).items)


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[Cloud]:
    async with fake_cloud(tmp_path) as running:
        found = Cloud(**vars(running))
        await found.watched(2, 0)
        yield found


async def test_an_operator_labels_nodes_and_says_where_they_are(cloud: Cloud) -> None:
    node = await cloud.update(
        labels={"team": "vision", "site/row": "b"}, topology={"rack": "r12", "nvlink_domain": "nvl-4"}
    )
    assert dict(node.labels) == {"team": "vision", "site/row": "b"}
    assert (node.topology.rack, node.topology.nvlink_domain, node.topology.spine) == ("r12", "nvl-4", "")
    node = await cloud.update(labels={"team": "speech"}, remove_labels=["site/row"], topology={"leaf": "l3"})
    assert dict(node.labels) == {"team": "speech"}
    assert (node.topology.rack, node.topology.leaf) == ("r12", "l3"), "what is not given stays"
    node = await cloud.update(topology={"rack": ""})
    assert not node.topology.rack
    told = [each for each in await cloud.events("worker-0") if each["type"] in ("Labelled", "Placed")]
    assert len(told) == 7 and all(each["by"].startswith("operator:") for each in told)
    fields: dict[str, Any] = {"id": cloud.id_of("worker-0")}
    bad: list[dict[str, Any]] = [
        *({"labels": {key: "x"}} for key in ("", "Team", "a b", "x" * 64, "-a")),
        *({"labels": {"a": value}} for value in ("", "a b", "x\n", "x" * 64)),
        {"labels": {f"k{number}": "v" for number in range(64)}},
        {"labels": {"team": "x"}, "remove_labels": ["team"]},
        {"remove_labels": ["absent"]},
        {"topology": {"rack": "../r"}},
    ]
    for each in bad:
        assert (await cloud.refusal(f"{NODES}/Update", **fields, **each)).code is Code.INVALID_ARGUMENT, each
    assert "already" in (await cloud.refusal(f"{NODES}/Update", **fields, labels={"team": "speech"})).message


async def test_only_operators_see_parts_and_change_labels(cloud: Cloud) -> None:
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    for verb, fields in (
        ("ListParts", {}),
        ("Update", {"id": cloud.id_of("worker-0"), "labels": {"a": "b"}}),
    ):
        refused = await outsider.refusal(f"{NODES}/{verb}", **fields)
        assert refused.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)


async def test_parts_are_shown_with_where_they_were_and_who_else_claims_them(cloud: Cloud) -> None:
    """A pod of another cluster that claims a part, and fails, changes nothing of what is known of it."""
    now = datetime.now(UTC).timestamp()
    await cloud.has("worker-0", GPU, at=now + 1, simulated="a stand-in")
    await cloud.has("worker-0", GPU._replace(serial="SERIAL-2"), at=now + 2)
    await cloud.has("worker-1", GPU, at=now + 3)
    node = (await cloud.nodes())["worker-1"]
    (part,) = node.inventory.parts
    assert (part.serial, part.firmware, node.inventory.reader) == ("SERIAL-1", "96.00", "pod")
    (moved,) = [each for each in await cloud.parts() if each.serial == "SERIAL-1"]
    assert [each.node_id for each in moved.places] == [cloud.id_of("worker-0"), cloud.id_of("worker-1")]
    assert moved.places[0].HasField("until") and not moved.places[1].HasField("until")
    assert [each.serial for each in await cloud.parts(node_id=cloud.id_of("worker-1"))] == ["SERIAL-1"]

    liar = replace(cloud)
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 1}
    spec = {"node_sets": [{**workers, "spare_count": 0}], "auto_repair": True}
    liar.cluster_id = await cloud.create("Cluster", "liar", spec)
    await liar.until(liar.cluster_id, "READY")
    await liar.settled(in_service=1)
    await liar.has("worker-0", GPU, at=now + 4)
    failing = e.Verdict(
        *(now + 5, "worker-0", "v", "slurm", Status.FAIL, (await liar.nodes())["worker-0"].boot),
        *("x", "y", "z", "1"),
        devices=GPU.slot,
    )
    await liar.happened(failing, e.DrainRequested(now + 5, "worker-0", OURS, "v", "slurm"))
    node = (await cloud.nodes())["worker-1"]
    assert node.phase == "in_service" and list(node.inventory.parts[0].also_in) == [liar.id_of("worker-0")]
    told = [each for each in await cloud.parts() if each.serial == "SERIAL-1"]
    failures = {each.places[-1].node_id: (each.failures, list(each.also_in)) for each in told}
    assert failures == {
        cloud.id_of("worker-1"): (0, [liar.id_of("worker-0")]),
        liar.id_of("worker-0"): (1, [cloud.id_of("worker-1")]),
    }


def ids(*events: Event) -> list[str]:
    return [each.hardware_id for each in all_repairs(events).newest(100) or ()]


def verdict(devices: str, status: Status = Status.FAIL) -> e.Verdict:
    return e.Verdict(2.0, "n", "v1", "gpu_lost", status, "b", "1", "0", "x", "1", devices=devices)


DRAIN = e.DrainRequested(3.0, "n", OURS, "v1", "gpu_lost")


def test_a_ticket_names_the_part_of_its_evidence_else_the_machine() -> None:
    has = e.InventoryChanged(1.0, "n", Reader.HOST, (GPU, DISK, MACHINE))
    assert ids(has, verdict(GPU.slot), DRAIN) == ["SERIAL-1"]
    assert ids(has, verdict("nvme0"), DRAIN) == ["DISK-1"]
    assert ids(has, verdict(""), DRAIN) == ["MACHINE-1"], "it names none"
    assert ids(has, verdict(f"{GPU.slot},nvme0"), DRAIN) == ["MACHINE-1"], "it names several"
    assert ids(verdict(GPU.slot), DRAIN) == [""], "its parts were not read"
    pod = e.InventoryChanged(1.0, "n", Reader.POD, (GPU,))
    assert ids(pod, verdict(""), DRAIN) == [""], "a pod does not see its machine"


def test_a_ticket_keeps_the_part_that_was_replaced_and_the_next_has_the_new_one() -> None:
    has = e.InventoryChanged(1.0, "n", Reader.HOST, (GPU, MACHINE))
    other = e.InventoryChanged(4.0, "n", Reader.HOST, (GPU._replace(serial="SERIAL-2"), MACHINE))
    moved = e.Moved(5.0, "n", Phase.TRIAGE, OURS)
    passed = e.VerificationEnded(6.0, "n", 1, passed=True, valid_until=9e9)
    again = replace(verdict(GPU.slot), at=7.0, id="v2")
    drained = replace(DRAIN, at=8.0, evidence="v2")
    found = ids(has, verdict(GPU.slot), DRAIN, other, moved, passed, again, drained)
    assert found == ["SERIAL-1", "SERIAL-1", "SERIAL-1", "SERIAL-2"]
