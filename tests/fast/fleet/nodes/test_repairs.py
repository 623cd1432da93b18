"""Repairs are the same, kept while events come in or computed from all."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.descriptions import inventory_after
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.lifecycle import advance
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import HOST_PREFIX, MAINTENANCE_PREFIX, evidence_of
from neocloud.fleet.nodes.parts import HostPart, Reader, named, serial_of_host
from neocloud.fleet.nodes.repairs import Repair, RepairKind, Repairs, all_repairs
from neocloud.fleet.policy.actions import Action
from tests.fast.fleet.control.walk import Walk

WINDOWS = (f"{MAINTENANCE_PREFIX}w1", f"{MAINTENANCE_PREFIX}w2", f"{HOST_PREFIX}h")


def rendered(events: Iterable[Event]) -> Iterator[Repair]:
    """All of them, from all events, with nothing left out: the model."""
    tickets, serials = dict[str, str](), dict[tuple[str, str], str]()
    parts, devices = dict[str, e.InventoryChanged | None](), dict[tuple[str, str], str]()
    for event in events:
        node = event.node
        if isinstance(event, e.InventoryChanged):
            parts[node] = inventory_after(parts.get(node), event)
        if isinstance(event, e.Verdict) and event.status is Status.FAIL and event.devices:
            devices[node, event.id] = event.devices
        for kind, about, text in told(event, tickets):
            known = parts.get(node)
            has = known.parts if known else ()
            blamed = named(devices.get((node, about), ""), has)
            serial = blamed[0].serial if len(blamed) == 1 else serial_of_host(has)
            if about and serial:
                serial = serials.setdefault((node, about), serial)
            yield Repair(event.at, node, kind, about, text, serial or serials.get((node, about), ""))
            if kind is RepairKind.CLOSED or isinstance(event, e.DrainReleased):
                serials.pop((node, about), None)


def told(event: Event, tickets: dict[str, str]) -> Iterator[tuple[RepairKind, str, str]]:
    ticket = tickets.get(event.node, "")
    match event:
        case e.DrainRequested() if event.owner == OURS and not ticket:
            tickets[event.node] = event.evidence
            yield RepairKind.OPENED, event.evidence, "the node is drained"
        case e.DrainRequested() | e.DrainReleased() if window := evidence_of(event.owner):
            is_over = isinstance(event, e.DrainReleased)
            yield RepairKind.MAINTENANCE, window, "it is over" if is_over else event.evidence
        case e.Moved() if event.to in (Phase.RETIRED, Phase.RMA_OUT):
            yield RepairKind.LEAVES, ticket, f"moved to {event.to.value}"
        case e.Moved() if event.to is Phase.TRIAGE and not ticket:
            tickets[event.node] = f"triage:{event.at:.0f}"
            yield RepairKind.OPENED, tickets[event.node], "handed over to the operators"
        case e.Moved() if ticket:
            yield RepairKind.UPDATED, ticket, f"moved to {event.to.value}"
        case e.StepStarted() if ticket and event.action is not Action.NONE:
            yield RepairKind.UPDATED, ticket, f"step: {event.action.value}"
        case e.VerificationEnded() if ticket and event.passed:
            yield RepairKind.CLOSED, tickets.pop(event.node), "verified"
        case e.VerificationEnded() if ticket:
            yield RepairKind.UPDATED, ticket, "verification failed"
        case _:
            pass


def story(seed: int, steps: int) -> list[Event]:
    """A walk with maintenance, replaced parts, verdicts that name them, and late and double events."""
    walk, chance = Walk(seed), random.Random(seed)
    for _ in range(steps):
        walk.step()
        name = chance.choice(walk.names)
        match chance.randrange(20):
            case 0:
                parts = [
                    HostPart("gpu", f"gpu{n}", "", f"{name}-{n}-{chance.randrange(3)}") for n in range(2)
                ]
                machine = [HostPart("system", "", "", f"m-{name}")] if chance.random() < 0.5 else []
                walk.append(e.InventoryChanged(walk.now, name, Reader.HOST, (*parts, *machine)))
            case 1:
                walk.append(e.DrainRequested(walk.now, name, chance.choice(WINDOWS), "planned"))
            case 2:
                walk.append(e.DrainReleased(walk.now, name, chance.choice(WINDOWS)))
            case _:
                pass
    found = [
        replace(each, devices=chance.choice(("", "gpu0", "gpu1", "gpu0,gpu1", "nic")))
        if isinstance(each, e.Verdict) and each.status is Status.FAIL
        else each
        for each in walk.log
    ]
    for _ in range(len(found) // 50):  # written late by a server whose clock is behind
        found.insert(chance.randrange(len(found)), chance.choice(found))
    return found


def folded(events: Iterable[Event], found: Repairs) -> Repairs:
    states = dict[str, NodeState]()
    for event in events:
        before = states.get(event.node) or NodeState(event.node)
        found.observe(event, before)
        states[event.node] = advance(before, event)
    return found


def micros(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_is_what_all_events_give(seed: int) -> None:
    events = story(seed, 1500)
    model = sorted(rendered(events), key=lambda each: micros(each.at))
    assert {each.kind for each in model} == set(RepairKind) and any(each.hardware_id for each in model)
    whole, kept = all_repairs(events), folded(events, Repairs(most=60, most_of_node=8, most_devices=3))
    assert whole.newest(10**9) == model
    nodes = sorted({each.node for each in model})
    is_cut = 0
    for limit in (1, 5, 8, 20, 60):
        assert kept.newest(limit) == model[-limit:]
        for node in nodes:
            of_node = [each for each in model if each.node == node][-limit:]
            assert whole.newest(limit, node) == of_node
            assert all_repairs(each for each in events if each.node == node).newest(limit, node) == of_node
            found = kept.newest(limit, node)
            is_cut += found is None
            assert found in (of_node, None) and (limit > 8 or found is not None), (limit, node)
    assert is_cut, "the walk is long enough for more than what is kept"
    assert kept.newest(61) is None


def test_no_number_of_events_makes_it_larger() -> None:
    found = Repairs(most=50, most_of_node=10, most_devices=5)
    sizes = list[int]()
    for lap in range(30):
        for number in range(20):
            at, id = float(1000 * lap + number), f"v{lap}-{number}"
            node = NodeState("n")
            found.observe(
                e.Verdict(at, "n", id, "c", Status.FAIL, "b", "s", "t", "x", "1", devices="gpu0"), node
            )
            found.observe(e.DrainRequested(at, "n", f"{MAINTENANCE_PREFIX}{id}", "planned"), node)
            found.observe(e.DrainReleased(at, "n", f"{MAINTENANCE_PREFIX}{id}"), node)
            found.observe(e.DrainRequested(at, "n", OURS, id), node)
            found.observe(e.VerificationEnded(at, "n", 1, passed=True, valid_until=9e9), node)
        sizes.append(sum(len(each) for each in vars(found).values()) + len(found._devices["n"]))
    assert sizes[0] == sizes[-1]
