"""Requests for repairs: what they do, what is refused, and that nobody reaches another one's nodes."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from neocloud.messages.neocloud.fleet.v1 import BreakFixEvent

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Transaction
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import encode
from neocloud.fleet.nodes.outages import MAINTENANCE_PREFIX
from neocloud.fleet.nodes.repairs import MOST_OF_A_NODE
from neocloud.services import iam
from neocloud.services.slurm.public import NODE_POOL
from tests.control_plane import sign_in
from tests.fast.services.fleet.test_fleet import WatchedCloud, eventually
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import fake_cloud

pytestmark = pytest.mark.slow

SERVICE = "neocloud.fleet.v1.BreakFixService"


class BreakFixCloud(WatchedCloud):
    def asked(self, node: str, action: str, **more: Any) -> dict[str, Any]:
        return {"cluster_id": self.cluster_id, "node": node, "action": action, "reason": "slow", **more}

    async def ask(self, node: str, action: str, verb: str = "Request") -> Any:
        return await self.call(f"{SERVICE}/{verb}", self.asked(node, action))

    async def refused(self, node: str, action: str, **more: Any) -> Any:
        return await self.refusal(f"{SERVICE}/Request", self.asked(node, action, **more))

    async def story(self, node: str) -> list[tuple[str, str]]:
        found = await self.call(f"{SERVICE}/ListEvents", cluster_id=self.cluster_id, node=node)
        return [(BreakFixEvent.Type.Name(each.type), each.ticket) for each in found.items]


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[BreakFixCloud]:
    async with fake_cloud(tmp_path) as running:
        yield BreakFixCloud(**vars(running))


async def test_a_replaced_node_is_a_ticket_that_opens_and_closes(cloud: BreakFixCloud) -> None:
    await cloud.watched(3, 1)
    (spare,) = [name for name, node in (await cloud.nodes()).items() if node.is_spare]
    node = next(name for name in await cloud.nodes() if name != spare)
    made = await cloud.ask(node, "REPLACE")
    assert made.ticket.startswith("ticket:") and made.phase == "draining"
    await cloud.phase_of(node, "ready_spare")
    await cloud.settled(in_service=2, ready_spare=1)
    story = await cloud.story(node)
    assert story == [("REPAIR_TICKET_OPENED", made.ticket), ("REPAIR_TICKET_CLOSED", made.ticket)]
    assert (await cloud.nodes())[node].last_incident.spare == spare
    assert await cloud.story(spare) == []
    unknown = await cloud.refusal(f"{SERVICE}/ListEvents", cluster_id=cloud.cluster_id, node="worker-7")
    assert unknown.code == Code.NOT_FOUND, "it is not a node of which nothing broke"


async def test_replacements_keep_the_limits_of_the_controller(cloud: BreakFixCloud) -> None:
    await cloud.watched(2, 0)
    assert "no spare is ready" in (await cloud.refused("worker-0", "REPLACE")).message
    assert "DRAIN" not in cloud.states("worker-0")


async def test_a_cordon_is_of_its_caller_charged_and_ends_by_it(cloud: BreakFixCloud) -> None:
    await cloud.watched(2, 0)
    await cloud.ask("worker-0", "CORDON")
    node = await cloud.phase_of("worker-0", "drained")
    assert node.holds[0].owner.startswith("tenant:")
    await eventually(lambda: _is_drained_in_slurm(cloud, "worker-0"))
    assert "already" in (await cloud.refused("worker-0", "CORDON")).message
    credits = await cloud.call("neocloud.billing.v1.CreditService/List", parent_id=cloud.project_id)
    assert not [each for each in credits.items if each.cause.part == "worker-0" and each.is_open]
    await cloud.ask("worker-0", "UNCORDON")
    await cloud.phase_of("worker-0", "in_service")
    assert "not cordoned" in (await cloud.refused("worker-0", "UNCORDON")).message


async def _is_drained_in_slurm(cloud: BreakFixCloud, name: str) -> bool:
    return "DRAIN" in cloud.states(name) and "slow" in cloud.reason(name)


async def test_a_node_is_handed_over_once_it_is_cordoned_and_empty(cloud: BreakFixCloud) -> None:
    await cloud.watched(2, 0)
    assert "cordon it" in (await cloud.refused("worker-0", "RETURN_FOR_MAINTENANCE")).message
    await cloud.ask("worker-0", "CORDON")
    await cloud.phase_of("worker-0", "drained")
    await cloud.ask("worker-0", "RETURN_FOR_MAINTENANCE")
    await cloud.phase_of("worker-0", "triage")
    assert [kind for kind, _ in await cloud.story("worker-0")] == ["REPAIR_TICKET_OPENED"]


@pytest.mark.parametrize("action", ["POWER_CYCLE", "RESET_GPU"])
async def test_what_a_pod_has_not_is_unimplemented_in_words(cloud: BreakFixCloud, action: str) -> None:
    await cloud.watched(2, 0)
    before = await cloud.events("worker-0")
    refused = await cloud.refused("worker-0", action)
    assert refused.code is Code.UNIMPLEMENTED and "a worker is a pod" in refused.message
    assert await cloud.events("worker-0") == before


async def test_what_is_no_request_is_refused(cloud: BreakFixCloud) -> None:
    await cloud.watched(2, 0)
    assert (await cloud.refused("worker-0", "ACTION_UNSPECIFIED")).code is Code.INVALID_ARGUMENT
    assert (await cloud.refused("worker-0", "CORDON", reason="\n\t")).code is Code.INVALID_ARGUMENT
    assert (await cloud.refused("worker-0", "CORDON", reason="x" * 101)).code is Code.INVALID_ARGUMENT
    assert (await cloud.refused("worker-9", "CORDON")).code is Code.NOT_FOUND
    assert (await cloud.refused("../worker-0", "CORDON")).code is Code.NOT_FOUND


async def test_nobody_reaches_the_nodes_of_another_tenant_but_operators(cloud: BreakFixCloud) -> None:
    await cloud.watched(2, 0)
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    before = await cloud.events("worker-0")
    for verb in ("Request", "RequestAsOperator"):
        refused = await outsider.refusal(f"{SERVICE}/{verb}", cloud.asked("worker-0", "CORDON"))
        assert refused.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
    for verb in ("ListEvents", "ListEventsAsOperator"):
        refused = await outsider.refusal(f"{SERVICE}/{verb}", cluster_id=cloud.cluster_id)
        assert refused.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
    assert await cloud.events("worker-0") == before
    await cloud.ask("worker-0", "CORDON", "RequestAsOperator")
    node = await cloud.phase_of("worker-0", "drained")
    assert node.holds[0].owner.startswith("operator:")


async def test_more_than_is_kept_of_a_node_is_read_from_its_events(cloud: BreakFixCloud) -> None:
    await cloud.watched(2, 0)
    (pool,) = await cloud.running.store.read(lambda tx: [row.id for row in tx.list(NODE_POOL)[0]])
    now, windows = SystemClock().now(), MOST_OF_A_NODE // 2 + 20

    def append(tx: Transaction) -> None:
        for number in range(windows):
            owner = f"{MAINTENANCE_PREFIX}w{number}"
            for event in (
                e.DrainRequested(now.timestamp(), "worker-0", owner, "planned"),
                e.DrainReleased(now.timestamp(), "worker-0", owner),
            ):
                tx.append_event(pool, LogEvent("worker-0", now, encode(event)))

    await cloud.running.store.write(append)
    every = [("MAINTENANCE", f"w{number}") for number in range(windows) for _ in range(2)]
    for limit in (0, 50, MOST_OF_A_NODE, MOST_OF_A_NODE + 10, 500):
        found = await cloud.call(
            f"{SERVICE}/ListEvents", cluster_id=cloud.cluster_id, node="worker-0", limit=limit
        )
        told = [(BreakFixEvent.Type.Name(each.type), each.ticket) for each in found.items]
        assert told == every[-(limit or 100) :], limit
