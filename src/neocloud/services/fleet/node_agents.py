"""The node agents of workers, and those of hosts, as a source of verdicts.

Each agent keeps its records until this source has named them as kept, and it names them only after their
verdicts are events of the log. So a store that is down loses none: the same records are asked for again.
Checks of agents are in shadow until they have a record.
"""

import asyncio
import hashlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Protocol

from neocloud.core.clock import Clock
from neocloud.fleet.agent import delivery
from neocloud.fleet.agent.bundle import write_bundle
from neocloud.fleet.agent.checks import CHECKS
from neocloud.fleet.agent.document import Document, DocumentError
from neocloud.fleet.agent.hardware import Hardware
from neocloud.fleet.agent.plan import DEFAULT_INTERVAL_S, POD_PROBES
from neocloud.fleet.agent.probes.gpus import MOST_GPUS
from neocloud.fleet.nodes.events import InventoryChanged, Status, Verdict
from neocloud.fleet.nodes.gpu_use import GpuUse
from neocloud.fleet.nodes.parts import LONGEST, MOST_PARTS, HostPart, Reader
from neocloud.fleet.policy.actions import Action
from neocloud.services.fleet.public import HostNodes, HostsUnreachable
from neocloud.services.fleet.sources import verdict_id
from neocloud.services.fleet.types import Check, plain
from neocloud.services.slurm.public import AgentMissing, WorkerAgents, WorkersUnreachable

AGENT = "node agent"
"""The check that an agent answers."""
VERSION = "1"
ASK_EVERY = 15.0
ASK_QUIET = 30.0
"""Interval for an agent whose checks all pass and had nothing new to say: a question starts a program in the
pod.
"""
ASK_AGAIN = 3.0
"""After one that gave no answer, or was not to be believed; and at most, when a verification waits for it."""
ASK_SECONDS = 10.0
OLDEST_SECONDS = 60.0
"""Age of the oldest answer that counts: an older one comes from an agent that hangs, or was stopped."""
START_SECONDS = 30.0
"""How long an agent may take to be put there and to check for the first time before that is a finding."""
OLDEST_USE_SECONDS = 120.0
"""Age of the oldest use of GPUs: twice the time between two readings, and between two questions."""
ASKED_AT_ONCE = 8
INTERVAL_SECONDS = DEFAULT_INTERVAL_S * max(each.every for each in POD_PROBES)
"""How often an agent looks at what it checks in a pod."""
_PROBES = {each.name for each in POD_PROBES}
OF_PODS = frozenset(
    {name for name, check in CHECKS.items() if check.probe in _PROBES}
    | {f"probe.{name}" for name in _PROBES}
    | {"mount_silent_s"}
)
"""Checks about a worker's pod alone. Others would be of the host, with what other tenants do there,
and what an agent says beside these is left out."""
PARTS_OF_PODS = frozenset({"gpu"})
OF_OTHER_SOURCES = frozenset({*Check, AGENT})
"""Names that no agent may use: it would have the trust of another source."""
logger = logging.getLogger(__name__)


class Watched(Protocol):
    """A worker or host with an agent."""

    @property
    def name(self) -> str: ...

    @property
    def boot(self) -> str: ...


@cache
def _program() -> tuple[bytes, str]:
    """Return the agent as one file, and its version."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.pyz"
        write_bundle(path)
        data = path.read_bytes()
    return data, hashlib.sha256(data).hexdigest()


@dataclass
class _Agent:
    """The state of the agent of one worker, since the worker's last start."""

    boot: str
    began: float = float("-inf")
    spool: str = ""
    kept: int = 0
    """The last record of which the verdicts are events."""
    given: int = 0
    """The last record of which the verdicts were given to be recorded."""
    n: int = 0
    """The last record that was read."""
    changes: Sequence[Verdict] = ()
    """Verdicts of the records after `kept`, in order."""
    now: Sequence[Verdict] = ()
    """Current verdicts of the checks."""
    inventory: InventoryChanged | None = None
    inventory_id: str = ""
    gpus: Sequence[GpuUse] = ()
    gpus_at: float = 0.0
    is_simulated: bool = False
    """Whether a part of `gpus` is."""
    problem: str = ""
    since: float = 0.0
    """When it was first wanted."""
    is_starting: bool = False
    """Whether it is being put there, or has not checked yet."""
    has_answer: bool = False
    has_more: bool = False
    is_requested: bool = False
    is_quiet: bool = False
    running: asyncio.Task[None] | None = None

    def due_in(self, now: float) -> float:
        every = ASK_QUIET if self.is_quiet else ASK_EVERY
        every = ASK_AGAIN if self.problem or self.is_requested or self.has_more else every
        return every if self.running is not None else self.began + every - now


@dataclass
class NodeAgents:
    """A `VerdictSource`, a `RecordedSource`, an `InventorySource` and a `GpuUseSource`."""

    workers: WorkerAgents
    clock: Clock
    program: Callable[[], tuple[bytes, str]] = _program
    changed: Callable[[str], None] = lambda cluster_id: None
    """Called when an agent of this cluster says something else than that all is well, or says so again."""
    is_of_hosts: bool = False
    """All that an agent says of its host is taken, with the boot that it names: its records outlive a boot.
    From a worker's agent, only verdicts about its pod count, since the pod's last start."""
    _agents: dict[tuple[str, str], _Agent] = field(default_factory=dict[tuple[str, str], _Agent])
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ASKED_AT_ONCE))
    _trusted: tuple[str, ...] = ()

    async def verdicts(self, cluster_id: str, workers: Sequence[Watched], now: float) -> Sequence[Verdict]:
        found: list[Verdict] = []
        for worker in workers:
            if not worker.boot:
                continue
            agent = self._agents.get((cluster_id, worker.name))
            if agent is None or agent.boot != worker.boot:
                agent = self._agents[cluster_id, worker.name] = _Agent(worker.boot)
            if agent.due_in(now) <= 0:
                agent.is_requested = False
                agent.running = asyncio.create_task(self._ask(cluster_id, worker.name, agent))
            agent.since = agent.since or now
            if agent.has_answer and not (agent.is_starting and now < agent.since + START_SECONDS):
                agent.given = agent.n
                found += [*agent.changes, *agent.now, _of_agent(worker.name, agent)]
        return found

    def due_in(self, cluster_id: str, workers: Sequence[Watched], now: float) -> float:
        agents = (self._agents.get((cluster_id, each.name)) for each in workers if each.boot)
        return min((each.due_in(now) for each in agents if each is not None), default=inf)

    def inventories(self, cluster_id: str, workers: Sequence[Watched]) -> Sequence[InventoryChanged]:
        agents = ((self._agents.get((cluster_id, each.name)), each) for each in workers)
        return [
            agent.inventory
            for agent, worker in agents
            if agent is not None and agent.inventory is not None and agent.boot == worker.boot
        ]

    def gpu_use(self, cluster_id: str, worker: str, now: float) -> tuple[Sequence[GpuUse], bool]:
        agent = self._agents.get((cluster_id, worker))
        if agent is None or now > agent.gpus_at + OLDEST_USE_SECONDS:
            return (), False
        return agent.gpus, agent.is_simulated

    def recorded(self, cluster_id: str, workers: Sequence[str], shadow: Callable[[str], str]) -> None:
        for name in workers:
            agent = self._agents.get((cluster_id, name))
            if agent is not None:
                agent.kept = agent.given
                agent.changes = agent.changes if agent.n > agent.given else ()
        self._trusted = tuple(sorted(check for check in OF_PODS if not shadow(check)))

    def request(self, cluster_id: str, worker: str) -> None:
        if agent := self._agents.get((cluster_id, worker)):
            agent.is_requested = True

    def forget(self, cluster_id: str) -> None:
        for key in [key for key in self._agents if key[0] == cluster_id]:
            agent = self._agents.pop(key)
            if agent.running is not None:
                agent.running.cancel()

    async def _ask(self, cluster_id: str, name: str, agent: _Agent) -> None:
        was_quiet, parts = agent.is_quiet and not agent.problem, agent.inventory_id
        try:
            async with self._room:
                began = self.clock.now().timestamp()
                agent.problem = await self._answer(cluster_id, name, agent)
            is_well = was_quiet and agent.is_quiet and not agent.problem
            is_news = not is_well or agent.inventory_id != parts
            agent.began, agent.has_answer = began, True
        finally:
            agent.running = None
        if is_news:
            self.changed(cluster_id)

    async def _answer(self, cluster_id: str, name: str, agent: _Agent) -> str:
        """Take what the agent says. Return why it cannot be used, or ""."""
        try:
            data = await self.workers.ask(
                *(cluster_id, name),
                after=agent.kept,
                of=agent.spool,
                trusted=self._trusted,
                inventory=agent.inventory_id,
                seconds=ASK_SECONDS,
            )
            said = delivery.decode(data, host=name, at=self.clock.now().timestamp())
        except WorkersUnreachable as error:
            agent.is_starting = isinstance(error, AgentMissing)
            await self._install(cluster_id, name)
            return plain(str(error))
        except DocumentError as error:
            return plain(f"what its agent says is refused: {error}")
        _, version = await asyncio.to_thread(self.program)
        if version and said.version != version:
            await self._install(cluster_id, name)
        agent.spool, agent.n, agent.has_more = said.spool, said.n, said.has_more
        agent.gpus, agent.is_simulated = said.gpus, bool(said.simulated)
        agent.gpus_at = self.clock.now().timestamp() - said.gpus_age_s
        agent.changes = [each for document in said.changes for each in self._verdicts(document, agent.boot)]
        if said.inventory is not None:
            agent.inventory_id = said.inventory_id
            agent.inventory = self._inventory(name, said.inventory, agent.began)
        agent.is_starting = said.last is None
        if said.last is None:
            return "its agent has not checked yet"
        agent.now = self._verdicts(said.last, agent.boot)
        agent.is_quiet = not agent.changes and all(each.status is Status.PASS for each in agent.now)
        if said.age_s > OLDEST_SECONDS:
            return f"its agent has checked nothing for {said.age_s:.0f} s"
        return ""

    def _verdicts(self, document: Document, boot: str) -> list[Verdict]:
        return [
            replace(
                each,
                boot=each.boot if self.is_of_hosts else boot,
                sample=plain(each.sample),
                threshold=plain(each.threshold),
                devices=plain(each.devices),
            )
            for each in document.verdicts
            if (each.check not in OF_OTHER_SOURCES if self.is_of_hosts else each.check in OF_PODS)
        ]

    def _inventory(self, name: str, found: Hardware, at: float) -> InventoryChanged:
        return inventory_of(name, found, at, Reader.HOST if self.is_of_hosts else Reader.POD)

    async def _install(self, cluster_id: str, name: str) -> None:
        """Put the agent there, as its pod has started, or this release has another."""
        program, _ = await asyncio.to_thread(self.program)
        try:
            await self.workers.install(cluster_id, name, program, ASK_SECONDS)
        except WorkersUnreachable as error:
            logger.info("The agent of %s in %s cannot be installed: %s", name, cluster_id, error)


def inventory_of(name: str, found: Hardware, at: float, reader: Reader = Reader.POD) -> InventoryChanged:
    """Return what an agent may say of parts, each serial number once: that of a pod of its GPUs alone.

    Another kind would be of the host, which a pod does not see. Where one did not answer, none is gone.
    """
    is_host = reader is Reader.HOST
    parts: dict[object, HostPart] = {}
    for each in found.parts:
        part = HostPart(*(plain(text, LONGEST) for text in each))
        if is_host or part.kind in PARTS_OF_PODS:
            parts.setdefault(part.key or (part.kind, part.slot), part)
    return InventoryChanged(
        *(at, name, reader, tuple(sorted(parts.values())[: MOST_PARTS if is_host else MOST_GPUS])),
        is_complete=not found.not_run,
        simulated=plain(found.simulated),
    )


def _of_agent(name: str, agent: _Agent) -> Verdict:
    status = Status.UNKNOWN if agent.problem else Status.PASS
    sample = agent.problem or f"{len(agent.now)} checks"
    threshold = f"answers within {ASK_SECONDS:g} s, not older than {OLDEST_SECONDS:g} s"
    return Verdict(
        *(agent.began, name, verdict_id(), AGENT, status, agent.boot),
        *(sample, threshold, AGENT, VERSION, Action.REBOOT),
    )


class HostAgents:
    """Implements `WorkerAgents` for hosts, whose agents come with the release and need not be put there."""

    def __init__(self, hosts: HostNodes) -> None:
        self._hosts = hosts

    async def ask(
        self,
        cluster_id: str,
        worker: str,
        *,
        after: int,
        of: str,
        trusted: Sequence[str],
        inventory: str,
        seconds: float,
    ) -> bytes:
        try:
            return await self._hosts.ask(worker, after=after, of=of, inventory=inventory, seconds=seconds)
        except HostsUnreachable as error:
            raise WorkersUnreachable(str(error)) from error

    async def install(self, cluster_id: str, worker: str, program: bytes, seconds: float) -> None:
        return None


def host_agents(hosts: HostNodes, clock: Clock, changed: Callable[[str], None]) -> NodeAgents:
    return NodeAgents(HostAgents(hosts), clock, program=lambda: (b"", ""), changed=changed, is_of_hosts=True)
