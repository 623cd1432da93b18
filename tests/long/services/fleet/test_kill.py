"""kill -9 of the server between the drain of a broken worker and its replacement: it is drained once, no
spare is lost, and the bill credits each second once (SLURM-20)."""

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from neocloud.client.connection import Client
from neocloud.testing.waiting import wait_until
from tests.long.services.fleet.killable import Server, server_process
from tests.real.services.slurm.test_kill import connected

NODES = "neocloud.fleet.v1.NodeService"
SEED = 20261127
WORKERS = {
    "node_sets": [
        {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 3, "spare_count": 1}
    ],
    "auto_repair": True,
}


@dataclass
class Cloud:
    server: Server
    client: Client
    project: str

    def nodes(self) -> dict[str, Any]:
        return {node.name: node for node in self.client.call(f"{NODES}/List", {}).items}

    def is_settled(self) -> bool:
        phases = sorted(node.phase for node in self.nodes().values())
        return phases == ["in_service", "in_service", "ready_spare"]

    def spare(self) -> str:
        return next(name for name, node in self.nodes().items() if node.is_spare)

    def events(self, node: Any) -> list[dict[str, Any]]:
        found = self.client.call(f"{NODES}/ListEvents", {"id": node.id, "page_size": 500}).items
        return [json.loads(each.json) for each in found]

    def bill(self, verb: str, **window: str) -> Any:
        return self.client.call(f"neocloud.billing.v1.{verb}", {"parent_id": self.project, **window})

    def credits(self) -> list[Any]:
        return list(self.bill("CreditService/List").items)


@contextmanager
def running(folder: Path) -> Iterator[Cloud]:
    with server_process(folder) as server:
        client, project = connected(folder)
        try:
            yield Cloud(server, client, project)
        finally:
            client.close()


@dataclass
class Settled:
    """A killed cloud with two workers in service and a spare, which can be had again and again: always in the
    same folder, since the pods of another one are others."""

    home: Path
    copy: Path
    calls: int = 0
    """How many calls a server makes from the drain of a broken worker until the spare serves."""

    def restore(self) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self.copy, self.home)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Settled:
    folder = tmp_path_factory.mktemp("cloud")
    found = Settled(folder / "home", folder / "copy")
    found.home.mkdir()
    with running(found.home) as cloud:
        metadata = {"parent_id": cloud.project, "name": "bank"}
        cloud.client.call("neocloud.slurm.v1.ClusterService/Create", {"metadata": metadata, "spec": WORKERS})
        wait_until(cloud.is_settled, "all workers have found their place")
    shutil.copytree(found.home, found.copy)
    with running(found.home) as cloud:
        broken = min(set(cloud.nodes()) - {cloud.spare()})
        cloud.server.break_worker(broken, killed_at=0)
        wait_until((found.home / "calls").exists, "the spare serves")
    found.calls = int((found.home / "calls").read_text())
    return found


def kill_once(settled: Settled, call: int, chance: random.Random) -> None:
    settled.restore()
    with running(settled.home) as cloud:
        before = {name: cloud.events(node) for name, node in cloud.nodes().items()}
        spare = cloud.spare()
        broken = chance.choice(sorted(set(before) - {spare}))
        cloud.server.break_worker(broken, killed_at=call)
        wait_until(lambda: not cloud.server.process.is_alive(), f"the server dies at call {call}")
        assert cloud.server.process.exitcode == -9
    with running(settled.home) as cloud:
        wait_until(lambda: cloud.is_settled() and cloud.spare() == broken, "it is replaced", seconds=60)
        after = {name: cloud.events(node)[len(before[name]) :] for name, node in cloud.nodes().items()}
        check_events(after, spare, broken)
        check_bill(cloud, broken)


def check_events(after: dict[str, list[dict[str, Any]]], spare: str, broken: str) -> None:
    def count(node: str, name: str) -> int:
        return sum(1 for each in after[node] if each["type"] == name)

    assert count(broken, "DrainRequested") == 1, after[broken]
    assert count(broken, "StepStarted") <= 1 and count(broken, "SpareReserved") == 0
    assert count(spare, "SpareReserved") == 1 and count(spare, "Returned") == 1, after[spare]
    for name in set(after) - {broken}:
        assert count(name, "DrainRequested") == 0, after[name]


def check_bill(cloud: Cloud, broken: str) -> None:
    """A second of a worker is credited once; from now on two of three workers are charged."""
    evidence = cloud.nodes()[broken].last_incident.evidence

    def waited() -> list[Any]:
        return [each for each in cloud.credits() if each.is_open and each.seconds >= 2]

    wait_until(waited, "the new spare is credited")
    by_worker: dict[str, list[tuple[int, int, str]]] = {}
    for each in cloud.credits():
        stretch = each.start.seconds, each.end.seconds, each.cause.evidence
        by_worker.setdefault(each.cause.part, []).append(stretch)
    for stretches in by_worker.values():
        ordered = sorted(stretches)
        assert all(first[1] <= second[0] for first, second in zip(ordered, ordered[1:], strict=False)), (
            ordered
        )
    assert len([each for each in by_worker[broken] if each[2] == evidence]) <= 1
    (spare,) = waited()
    window = {"start": spare.start.ToJsonString(), "end": spare.end.ToJsonString()}
    sums: dict[str, list[Decimal]] = {}
    for line in cloud.bill("UsageService/GetReport", **window).lines:
        sums.setdefault(line.sku, [Decimal(0), Decimal(0)])[line.HasField("credit")] += Decimal(line.quantity)
    cluster = [pair for pair in sums.values() if pair[1]]
    assert cluster and all(abs(held + 3 * credit) < Decimal("0.00001") for held, credit in cluster), sums


def kills(settled: Settled, number: int, seed: int) -> None:
    assert settled.calls > 10
    chance = random.Random(seed)
    for kill in range(number):
        call = chance.randint(1, settled.calls)
        try:
            kill_once(settled, call, chance)
        except BaseException as error:
            error.add_note(f"seed {seed}, kill {kill}, at call {call} of {settled.calls}")
            raise


def test_a_server_killed_between_drain_and_replacement_does_neither_twice(settled: Settled) -> None:
    kills(settled, 3, SEED)


@pytest.mark.timeout(1800)
def test_fifty_servers_killed_between_drain_and_replacement(settled: Settled) -> None:
    kills(settled, 50, SEED + 1)
