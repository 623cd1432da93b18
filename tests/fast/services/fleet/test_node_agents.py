"""The cloud asks the agent of each worker: what it keeps, and what it believes.

The agent's side is its own code over a real spool; the pod and the store are made up.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neocloud.core.store.event_log import LogEvent
from neocloud.fleet.agent import delivery, document, gpu_use_json, hardware
from neocloud.fleet.agent.document import Document, NotRun
from neocloud.fleet.agent.gpu_use_json import GpusSaid
from neocloud.fleet.agent.hardware import Hardware
from neocloud.fleet.agent.spool import Spool
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import encode
from neocloud.fleet.nodes.events import Phase, Status, Verdict
from neocloud.fleet.nodes.gpu_use import GpuUse
from neocloud.fleet.nodes.node_state import Attempt, NodeState
from neocloud.fleet.nodes.parts import HostPart, Reader
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.node_agents import AGENT, ASK_QUIET, OF_PODS, START_SECONDS, NodeAgents
from neocloud.services.fleet.reconcile.act import verification
from neocloud.services.fleet.reconcile.observe import new_events
from neocloud.services.fleet.types import LIMITS, Check
from neocloud.services.slurm.public import AgentMissing, Worker, WorkersUnreachable
from neocloud.testing.waiting import until

START = datetime(2026, 11, 1, tzinfo=UTC)
WORKER = Worker("worker-0", "worker", (), START, states=frozenset({"IDLE"}), is_registered=True)
PROGRAM = b"agent"
VERSION = hashlib.sha256(PROGRAM).hexdigest()


def verdict(check: str, status: Status, number: int = 0, **more: object) -> Verdict:
    values = {"sample": "1 (/jail)", "threshold": "over 0", "source": "neocloud", "version": "1", **more}
    return Verdict(0.0, "worker-0", f"v{number}", check, status, "kernel", **values)  # type: ignore[arg-type]


@dataclass
class Pod:
    """Implements `WorkerAgents` with the code that runs in a pod, and writes records as an agent would."""

    folder: Path
    now: float = 1000.0
    is_installed: bool = True
    missing: bool = False
    """Whether it cannot be put there."""
    asked: list[tuple[int, str]] = field(default_factory=list)
    trusted: Sequence[str] = ()
    known: str = ""
    """Id of the inventory that the asker has."""
    change: Callable[[bytes], bytes] = lambda data: data
    spool: Spool = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again, as the pod does at each start."""
        self.base = self.folder / str(len(list(self.folder.iterdir())))
        self.spool = Spool(self.base / "spool")
        (self.base / "last").mkdir()
        (self.base / "agent.pyz").write_bytes(PROGRAM)

    def said(self, *verdicts: Verdict) -> Document:
        return Document("worker-0", "kernel", 1.0, self.now, verdicts)

    def writes(self, *verdicts: Verdict) -> None:
        self.spool.drop_acknowledged()
        self.spool.append("changes", {"document": document.to_json(self.said(*verdicts))})
        delivery.write_last(self.base / "last", self.said(*verdicts))

    def has(self, *parts: HostPart, not_run: Sequence[NotRun] = ()) -> None:
        delivery.write_inventory(
            self.base / "last", Hardware("worker-0", "kernel", parts, not_run, "a stand-in")
        )

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
        if self.missing:
            raise AgentMissing("its agent is not there yet")
        if not self.is_installed:
            raise WorkersUnreachable("its agent does not run: no such file")
        self.asked.append((after, of))
        self.trusted = trusted
        folders = (self.base / "spool", self.base / "last", self.base / "agent.pyz")
        self.known = inventory
        said = delivery.answer(
            *folders, after=after, of=of, trusted=",".join(trusted), now=self.now, inventory=inventory
        )
        return self.change(said)

    async def install(self, cluster_id: str, worker: str, program: bytes, seconds: float) -> None:
        (self.base / "agent.pyz").write_bytes(program)
        self.is_installed = True


@dataclass
class Clock:
    at: float = START.timestamp()

    def now(self) -> datetime:
        self.at += 20.0  # longer than any source waits
        return datetime.fromtimestamp(self.at, UTC)


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def source(pod: Pod) -> NodeAgents:
    return NodeAgents(pod, Clock(), program=lambda: (PROGRAM, VERSION))  # type: ignore[arg-type]


async def look(agents: NodeAgents, worker: Worker = WORKER) -> list[Verdict]:
    """Ask, and return what the source says then."""

    async def idle() -> bool:
        return all(each.running is None for each in agents._agents.values())

    await agents.verdicts("c", [worker], agents.clock.now().timestamp() + 1e6)
    await until(idle, seconds=5)
    found = await agents.verdicts("c", [worker], 0.0)  # nothing is due
    return list(found)


def recorded(agents: NodeAgents, shadow: str = "shadow") -> None:
    agents.recorded("c", ["worker-0"], lambda _: shadow)


def of(found: Sequence[Verdict], check: str) -> list[Status]:
    return [each.status for each in found if each.check == check]


async def test_each_change_is_given_in_order_and_acknowledged_once_it_is_recorded(pod: Pod) -> None:
    agents = source(pod)
    pod.writes(verdict("mount_missing", Status.FAIL))
    pod.writes(verdict("mount_missing", Status.PASS))
    found = await look(agents)
    assert of(found, "mount_missing") == [Status.FAIL, Status.PASS, Status.PASS], (
        "changes, then what holds now"
    )
    assert of(found, AGENT) == [Status.PASS]
    await look(agents)
    assert pod.asked[-1][0] == 0 and not pod.spool.has_acknowledged(), "they are in no log yet"
    recorded(agents)
    found = await look(agents)
    assert pod.asked[-1][0] == 2 and pod.spool.has_acknowledged()
    assert of(found, "mount_missing") == [Status.PASS]


async def test_an_agent_that_says_again_that_all_is_well_wakes_nobody(pod: Pod) -> None:
    woken: list[str] = []
    agents = NodeAgents(pod, Clock(), program=lambda: (PROGRAM, VERSION), changed=woken.append)  # type: ignore[arg-type]
    pod.writes(verdict("mount_missing", Status.PASS))
    for _ in range(2):  # the first answer has a record, which is kept after it
        await look(agents)
        recorded(agents)
    told = len(woken)
    await look(agents)
    await look(agents)
    assert told and len(woken) == told
    assert agents.due_in("c", [WORKER], agents._agents["c", "worker-0"].began) == ASK_QUIET
    pod.writes(verdict("mount_missing", Status.FAIL))
    await look(agents)
    assert len(woken) == told + 1
    pod.has(HostPart("gpu", "0000:01:00.0", "H100", "G1"))
    pod.writes(verdict("mount_missing", Status.PASS))
    await look(agents)
    assert len(woken) == told + 2


async def test_the_use_of_gpus_is_told_for_two_minutes_and_not_of_an_earlier_start(pod: Pod) -> None:
    agents, gpus = source(pod), [GpuUse(0, "NVIDIA H100 80GB HBM3", {"power": 600.0})]
    said = gpu_use_json.to_json(GpusSaid(pod.now - 30.0, gpus, "a stand-in"))
    pod.writes()
    (pod.base / "last" / gpu_use_json.FILE).write_text(json.dumps(said))
    await look(agents)
    read_at = agents._agents["c", "worker-0"].gpus_at
    assert agents.gpu_use("c", "worker-0", read_at + 119.0) == (gpus, True)
    assert agents.gpu_use("c", "worker-0", read_at + 121.0) == ((), False), "its agent does not answer"
    assert agents.gpu_use("another", "worker-0", read_at) == ((), False)
    pod.is_installed = False
    await look(agents, replace(WORKER, started_at=START.replace(year=2027)))
    assert agents.gpu_use("c", "worker-0", read_at) == ((), False)


async def test_while_the_store_is_down_for_ten_minutes_nothing_is_lost(pod: Pod) -> None:
    """Answers of the source reach no log; then the server is another, too."""
    agents = source(pod)
    for minute in range(10):
        pod.now += 60.0
        pod.writes(verdict("mount_missing", (Status.FAIL, Status.PASS)[minute % 2], minute))
        await look(agents)
    again = source(pod)
    found = [each for each in await look(again) if each.check == "mount_missing"]
    assert [each.id for each in found[:-1]] == [f"v{minute}" for minute in range(10)]
    ages = [found[-1].at - each.at for each in found[:-1]]
    assert ages == [pytest.approx(60.0 * (9 - minute)) for minute in range(10)], "each has its own time"
    recorded(again)
    await look(again)
    assert pod.spool.drop_acknowledged() == 10 and not list(pod.spool.records())


async def test_what_came_after_the_last_look_is_not_acknowledged_with_it(pod: Pod) -> None:
    agents = source(pod)
    pod.writes(verdict("mount_missing", Status.FAIL))
    await look(agents)
    pod.writes(verdict("mount_missing", Status.PASS))
    state = agents._agents["c", "worker-0"]
    await agents._ask("c", "worker-0", state)  # ends between the look and the record of it
    recorded(agents)
    found = await look(agents)
    assert pod.asked[-1][0] == 1
    assert of(found, "mount_missing")[-2:] == [Status.PASS, Status.PASS]


async def test_numbers_of_an_earlier_start_acknowledge_nothing_of_the_next(pod: Pod) -> None:
    agents = source(pod)
    pod.writes(verdict("mount_missing", Status.PASS))
    await look(agents)
    recorded(agents)
    pod.restart()
    pod.writes(verdict("mount_missing", Status.FAIL))
    found = await look(agents)
    assert not pod.spool.has_acknowledged(), "the number was of another spool"
    assert Status.FAIL in of(found, "mount_missing")


async def test_no_agent_is_unknown_and_one_is_put_there(pod: Pod) -> None:
    pod.is_installed = False
    agents = source(pod)
    found = await look(agents)
    assert of(found, AGENT) == [Status.UNKNOWN] and "does not run" in found[-1].sample
    pod.writes(verdict("mount_missing", Status.PASS))
    assert of(await look(agents), AGENT) == [Status.PASS]


async def test_an_agent_that_is_being_put_there_is_a_finding_only_when_that_lasts(pod: Pod) -> None:
    """A worker that has just started is well: its history begins without what could not be there yet."""
    pod.missing, agents = True, source(pod)
    now = agents.clock.now().timestamp()

    async def asked(seconds: float) -> list[Verdict]:
        await agents.verdicts("c", [WORKER], now + seconds)
        await until(lambda: all(each.running is None for each in agents._agents.values()), seconds=5)
        return list(await agents.verdicts("c", [WORKER], now + seconds))

    assert not await asked(0.0) and not await asked(START_SECONDS - 1.0)
    assert of(await asked(START_SECONDS + 1.0), AGENT) == [Status.UNKNOWN]
    pod.missing = False
    pod.restart()
    assert "has not checked yet" in (await asked(START_SECONDS + 300.0))[-1].sample
    pod.writes(verdict("mount_missing", Status.PASS))
    assert of(await asked(START_SECONDS + 600.0), AGENT) == [Status.PASS]
    pod.missing = True
    assert of(await asked(START_SECONDS + 900.0), AGENT) == [Status.UNKNOWN], "it has been there"


async def test_an_agent_that_somebody_stopped_is_unknown(pod: Pod) -> None:
    """Root of a tenant can stop it, and cannot make it say that all is well."""
    agents = source(pod)
    pod.writes(verdict("mount_missing", Status.PASS))
    pod.now += 61.0
    found = await look(agents)
    assert of(found, AGENT) == [Status.UNKNOWN] and "checked nothing for 61 s" in found[-1].sample


async def test_another_release_puts_its_agent_in_place_of_the_old_one(pod: Pod) -> None:
    (pod.base / "agent.pyz").write_bytes(b"older")
    pod.writes(verdict("mount_missing", Status.PASS))
    await look(source(pod))
    assert (pod.base / "agent.pyz").read_bytes() == PROGRAM


HOST_ONLY = ("kernel.io_error", "xid.79", "load_per_cpu", "blocked_task_s", "disk_full", "ib_port_down_s")


@pytest.mark.parametrize("check", [*HOST_ONLY, *Check])
async def test_what_is_of_the_host_or_of_another_source_is_left_out(pod: Pod, check: str) -> None:
    """The kernel log is of all tenants, and a name of another source would have that one's trust."""
    assert check not in OF_PODS
    pod.writes(verdict(check, Status.FAIL, is_fatal=True))
    assert of(await look(source(pod)), check) == []


def forged(**changes: object) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **changes}).encode()


OTHER = document.to_json(Document("worker-1", "kernel", 1.0, 1.0))


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda _: b"\xff",
        lambda _: b"[" * 100_000,
        lambda data: data + b" " * delivery.MOST_BYTES,
        forged(format=2),
        forged(n=-1),
        forged(n=True),
        forged(n=1 << 70),
        forged(spool=""),
        forged(spool="x" * 1000),
        forged(version=None),
        forged(changes=None),
        forged(changes=[OTHER]),
        forged(changes=["x"]),
        forged(last=OTHER),
        forged(last=[]),
        forged(now_s="soon"),
        forged(has_more=1),
        forged(inventory=[]),
        forged(inventory={"id": "--after", "found": hardware.to_json(Hardware("worker-0", "kernel", []))}),
        forged(inventory={"id": "0" * 64, "found": hardware.to_json(Hardware("worker-1", "kernel", []))}),
        forged(inventory={"id": "0" * 64, "found": {"parts": []}}),
    ],
)
async def test_an_answer_that_is_forged_is_unknown_and_acknowledges_nothing(
    pod: Pod, change: Callable[[bytes], bytes]
) -> None:
    pod.writes(verdict("mount_missing", Status.FAIL))
    pod.change = change
    agents = source(pod)
    found = await look(agents)
    assert [each.check for each in found] == [AGENT] and found[0].status is Status.UNKNOWN
    assert found[0].sample.isprintable() and len(found[0].sample) <= 180
    recorded(agents)
    await look(agents)
    assert pod.asked[-1][0] == 0


async def test_a_verdict_from_the_future_is_of_now(pod: Pod) -> None:
    pod.writes(verdict("mount_missing", Status.FAIL))
    pod.now -= 500.0
    agents = source(pod)
    found = await look(agents)
    assert all(each.at <= agents.clock.now().timestamp() for each in found)
    assert {each.boot for each in found} == {WORKER.boot}, "the boot is what the engine says"


async def test_a_restarted_worker_is_asked_for_all_records(pod: Pod) -> None:
    agents = source(pod)
    pod.writes(verdict("mount_missing", Status.FAIL))
    await look(agents)
    later = replace(WORKER, started_at=datetime(2026, 11, 2, tzinfo=UTC))
    assert await agents.verdicts("c", [later], 0.0) == []
    await asyncio.gather(*(each.running for each in agents._agents.values() if each.running))
    assert {each.boot for each in await agents.verdicts("c", [later], 0.0)} == {later.boot}


async def test_only_checks_that_are_out_of_the_shadow_keep_jobs_away(pod: Pod) -> None:
    """The prolog and the health check read one file: the failing checks that the controller trusts."""
    failing = pod.base / "last" / delivery.FAILING
    agents = source(pod)
    pod.writes(verdict("mount_missing", Status.FAIL, sample="1 (/jail)\x1b\n"))
    assert failing.read_text() == "1\n\n", "nothing is trusted before the cloud has asked"
    await look(agents)
    recorded(agents)
    assert not agents._trusted and not LIMITS.trusted & OF_PODS
    recorded(agents, shadow="")
    await look(agents)
    assert "mount_missing" in pod.trusted
    pod.writes(verdict("mount_missing", Status.FAIL, sample="1 (/jail)"), verdict("gpu_lost", Status.PASS))
    assert failing.read_text() == "1\nnode problem: mount_missing: 1 (/jail)\n"
    pod.writes(verdict("mount_missing", Status.PASS))
    assert failing.read_text() == "1\n\n"


async def test_each_change_of_a_check_becomes_an_event(pod: Pod) -> None:
    """Also one that was over before anybody looked."""
    log, agents = PoolLog.of("pool"), source(pod)
    boot = e.Booted(1.0, "worker-0", WORKER.boot)
    earlier = replace(verdict("mount_missing", Status.PASS), at=2.0, boot=WORKER.boot)
    for position, event in enumerate(
        (e.Registered(1.0, "worker-0", "", "", Phase.DRAINED), boot, earlier), 1
    ):
        log.take([LogEvent("worker-0", START, encode(event), position)])
    pod.writes(verdict("mount_missing", Status.FAIL))
    pod.now += 5.0
    pod.writes(verdict("mount_missing", Status.PASS))
    pod.now += 5.0
    found = await look(agents)
    events = new_events(log, "tenant", [WORKER], found, agents.clock.now().timestamp())
    told = [each for each in events if isinstance(each, Verdict) and each.check == "mount_missing"]
    assert [each.status for each in told] == [Status.FAIL, Status.PASS] and told[0].at < told[1].at


async def test_checks_in_shadow_neither_pass_nor_fail_a_verification(pod: Pod) -> None:
    state = NodeState(
        *("worker-0", Phase.VERIFYING),
        boot=WORKER.boot,
        running=Attempt(1, 5.0, 100.0, WORKER.boot),
    )
    fails = replace(verdict("mount_missing", Status.FAIL), at=6.0, boot=WORKER.boot)
    passes = replace(verdict("slurm", Status.PASS), at=6.0, boot=WORKER.boot)

    def ended(*answers: Sequence[Verdict], shadow: str) -> list[bool]:
        sources = [source(pod) for _ in answers]
        events = verification(
            *(sources, "c", WORKER, state, answers, 7.0),
            shadow=lambda check, status: shadow if check == "mount_missing" else "",
        )
        return [each.passed for each in events if isinstance(each, e.VerificationEnded)]

    assert ended([passes], [fails], shadow="shadow") == [True]
    assert ended([passes], [fails], shadow="") == [False]
    later = replace(fails, status=Status.PASS, at=6.5)
    assert ended([passes], [fails, later], shadow="") == [True], "its last word counts"
    assert ended([passes], [], shadow="shadow") == [], "a source that said nothing is waited for"


GPU = HostPart("gpu", "0000:18:00.0", "NVIDIA H100", "SERIAL-1", "96.00")


def pool(*events: e.Event) -> PoolLog:
    log = PoolLog.of("pool")
    first = (e.Registered(1.0, "worker-0", "", "", Phase.DRAINED), e.Booted(1.0, "worker-0", WORKER.boot))
    add(log, *first, *events)
    return log


def add(log: PoolLog, *events: e.Event) -> None:
    log.take(
        [
            LogEvent(each.node, START, encode(each), position)
            for position, each in enumerate(events, log.position + 1)
        ]
    )


def changed(log: PoolLog, agents: NodeAgents, now: float) -> list[e.InventoryChanged]:
    """Append what one look finds of the node's parts, and return it."""
    found = new_events(log, "tenant", [WORKER], [], now, agents.inventories("c", [WORKER]))
    inventories = [each for each in found if isinstance(each, e.InventoryChanged)]
    add(log, *inventories)
    return inventories


async def test_the_parts_of_a_pod_become_an_event_when_they_change(pod: Pod) -> None:
    log, agents = pool(), source(pod)
    pod.writes()
    pod.has(GPU)
    await look(agents)
    (event,) = changed(log, agents, 1000.0)
    assert event.parts == (GPU,) and event.reader is Reader.POD and event.simulated == "a stand-in"
    await look(agents)
    assert len(pod.known) == 64, "it is sent again only when it changes"
    assert changed(log, agents, 3000.0) == []
    again = source(pod)
    await look(again)
    assert changed(log, again, 4000.0) == [], "nor is it an event again when the server starts again"
    pod.has(GPU._replace(serial="SERIAL-2"))
    await look(again)
    (event,) = changed(log, again, 5000.0)
    assert [each.serial for each in event.parts] == ["SERIAL-2"]
    (place,) = log.fleet.parts.records["gpu", "SERIAL-1"].places
    assert (place.since, place.until) == (1000.0, 5000.0)


async def test_a_pod_that_changes_its_parts_all_the_time_writes_one_event_in_ten_minutes(pod: Pod) -> None:
    log, agents = pool(), source(pod)
    pod.writes()
    told = 0
    for number in range(30):
        pod.has(GPU._replace(serial=f"FORGED-{number}"))
        await look(agents)
        told += len(changed(log, agents, 1000.0 + 100 * number))
    assert told == 5


async def test_a_pod_tells_of_gpus_alone_bounded_and_each_once(pod: Pod) -> None:
    """Its files of the host are not its own, and a list of any length is cut."""
    log, agents = pool(), source(pod)
    pod.writes()
    many = [GPU._replace(slot=f"{number:04x}", serial=f"S{number}\u00b0") for number in range(500)]
    host = HostPart("system", "host", "XE9680", "SERIAL-OF-HOST")
    pod.has(host, GPU, GPU._replace(slot="0000:99:00.0"), *many)
    await look(agents)
    (event,) = changed(log, agents, 100.0)
    assert {each.kind for each in event.parts} == {"gpu"} and len(event.parts) == 64
    assert len({each.serial for each in event.parts}) == 64
    assert all(text.isascii() and text.isprintable() for part in event.parts for text in part)


async def test_a_gpu_that_does_not_answer_is_not_gone(pod: Pod) -> None:
    log, agents = pool(), source(pod)
    pod.writes()
    pod.has(GPU)
    await look(agents)
    changed(log, agents, 100.0)
    pod.has(not_run=[NotRun("gpus", "NVML does not answer")])
    await look(agents)
    assert changed(log, agents, 3000.0) == []


async def test_a_node_that_leaves_its_cluster_has_no_parts_any_more(pod: Pod) -> None:
    log, agents = pool(), source(pod)
    pod.writes()
    pod.has(GPU)
    await look(agents)
    changed(log, agents, 100.0)
    found = new_events(log, "tenant", [], [], 200.0)
    add(log, *found)
    assert log.fleet.parts.records["gpu", "SERIAL-1"].open_places == ()
    assert not [each for each in new_events(log, "tenant", [], [], 300.0) if type(each) is e.InventoryChanged]
