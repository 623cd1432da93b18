"""Hosts of a test: an agent's own code over a real spool, and a pool whose hosts are drained or not."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from neocloud.messages.neocloud.fleet.v1 import DrainedHost, HostPoolStatus

from neocloud.core.store.protocol import Resource, Store
from neocloud.fleet.agent import delivery, document
from neocloud.fleet.agent.document import Document
from neocloud.fleet.agent.hardware import Hardware
from neocloud.fleet.agent.spool import Spool
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.fleet.nodes.parts import HostPart
from neocloud.services.compute.public import HOST_POOL, drained_hosts, known_hosts
from neocloud.services.fleet.public import LEAF_LABEL, Host, HostsUnreachable

POOL_ID = "fleethosts-e00tests"
GOOD = (("disk_full", Status.PASS, "46 % (secret-of-another-tenant)"),)


@dataclass
class FakeHosts:
    """Implements `HostNodes`. Each host's agent says of itself what `said` has, as of now."""

    folder: Path
    names: tuple[str, ...] = ("gpu-1",)
    boot: str = "boot-1"
    problem: str = ""
    age_s: float = 0.0
    """Of the last word of each agent."""
    asked: list[tuple[int, str]] = field(default_factory=list)
    said: Sequence[tuple[str, Status, str]] = GOOD
    parts: Sequence[HostPart] = ()
    now: float = 100_000.0

    async def look(self) -> Sequence[Host]:
        if self.problem:
            raise HostsUnreachable(self.problem)
        return [Host(name, self.boot, 0.0, {LEAF_LABEL: "leaf-1"}) for name in self.names]

    async def ask(self, host: str, *, after: int, of: str, inventory: str, seconds: float) -> bytes:
        self.asked.append((after, of))
        self.now += 20.0
        base = self.folder / host
        if not (base / "spool").exists():
            self.write(host)
        delivery.write_last(base / "last", self._document(host, self.now - self.age_s))
        delivery.write_inventory(base / "last", Hardware(host, self.boot, self.parts))
        return delivery.answer(
            *(base / "spool", base / "last", delivery.read_program("")),
            after=after,
            of=of,
            trusted="",
            inventory=inventory,
            now=self.now,
        )

    def write(self, host: str, boot: str = "") -> None:
        """Append a record of what the agent says now."""
        (self.folder / host / "last").mkdir(parents=True, exist_ok=True)
        spool = Spool(self.folder / host / "spool")
        said = self._document(host, self.now, boot)
        spool.append("changes", {"document": document.to_json(said)})

    def _document(self, host: str, at: float, boot: str = "") -> Document:
        boot = boot or self.boot
        verdicts = [
            Verdict(
                1.0, host, f"v-{check}", check, status, boot, sample, "over 0", "gpud", "1", is_fatal=True
            )
            for check, status, sample in self.said
        ]
        return Document(host, boot, 1.0, at, verdicts)


async def set_drained(store: Store, *drained: str, hosts: Sequence[str] = ("gpu-1",), parent: str) -> None:
    """Write what a reconciler of hosts would have written, in a cloud that has none."""
    status = HostPoolStatus(state=HostPoolStatus.ACTIVE, hosts=hosts)
    status.drained.extend(DrainedHost(host=each, reason="new firmware") for each in drained)
    now = datetime.now(UTC)

    def write(tx: Any) -> None:
        row = tx.get(POOL_ID)
        content = status.SerializeToString()
        if row is None:
            tx.insert(Resource(POOL_ID, HOST_POOL, parent, "hosts", now, now, status=content, state="ACTIVE"))
        else:
            tx.update(replace(row, status=content, updated_at=now))

    await store.write(write)


async def written_as_drained(store: Store, *names: str) -> bool:
    """Return whether these hosts, and no others, are drained in the status of the pool."""
    rows = (await store.read(lambda tx: tx.list(HOST_POOL)))[0]
    return drained_hosts(rows).keys() == {*names}


async def is_known(store: Store, name: str) -> bool:
    rows = (await store.read(lambda tx: tx.list(HOST_POOL)))[0]
    return name in known_hosts(rows)
