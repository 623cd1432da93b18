"""All checks of one host: runs the probes that are due, and knows what each check said last."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from neocloud.fleet.agent.child import Children, Job, ProbeOutcome
from neocloud.fleet.agent.document import LATEST, LONGEST_NAME, LONGEST_TEXT, Document
from neocloud.fleet.agent.document import NotRun as DocumentNotRun
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.history import History
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.judge import CheckAnswer, Judge
from neocloud.fleet.agent.kernel_faults import KernelFaults
from neocloud.fleet.agent.plan import (
    DEADLINE_S,
    GPU_USE,
    KERNEL,
    POD_PROBES,
    PROBES,
    RETRY_INTERVALS,
    ROOM,
    Probe,
)
from neocloud.fleet.agent.probe_result import NotRun, Reading, Unreadable
from neocloud.fleet.agent.probes import storage
from neocloud.fleet.agent.probes.kernel import KernelProbe
from neocloud.fleet.nodes.events import CheckScope, Status, Verdict
from neocloud.fleet.nodes.gpu_use import GpuUse
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import Policy

NOT_RUN = "not_run"
Clock = Callable[[], float]


def since_boot() -> float:
    """Return the seconds since the boot, with those of sleep. No clock that somebody sets changes it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Memory:
    """State of one boot that survives a restart of the agent."""

    boot: str
    history: History = field(default_factory=History)
    kernel: KernelFaults = field(default_factory=KernelFaults)


@dataclass(frozen=True)
class Said:
    """The last word of a check."""

    at: float
    """Since the boot."""
    answer: CheckAnswer | NotRun

    @property
    def mark(self) -> str:
        """Return the text whose change makes an answer worth a new record."""
        if isinstance(self.answer, NotRun):
            return NOT_RUN
        return f"{self.answer.status} {self.answer.action} {self.answer.about}"[:LONGEST_TEXT]


class HostChecks:
    """The checks of one host, or of a tree in its shape."""

    def __init__(
        self,
        tree: Tree,
        policy: Policy,
        expected: Expected,
        memory: Memory,
        *,
        probes: Sequence[Probe] | None = None,
        now: Clock = since_boot,
        children: Children | None = None,
        is_pod: bool = False,
    ) -> None:
        """`is_pod`: look only at what belongs to this container. Tasks, load, links, disks and the kernel log
        are the host's: what a tenant does in another container would otherwise be a fault of this one."""
        self._tree, self._policy, self._expected, self._memory = tree, policy, expected, memory
        self._probes = probes if probes is not None else POD_PROBES if is_pod else PROBES
        self._now, self._is_pod = now, is_pod
        self._judge = Judge(policy, memory.history)
        self._children = children or Children()
        self._kernel = KernelProbe(tree, memory.boot)
        self._paused = dict[str, int]()
        self._gpu = ""
        self._of_probe = dict[str, set[str]]()
        self.said = dict[str, Said]()
        self._readings = dict[str, Sequence[Reading]]()
        self.gpus: Sequence[GpuUse] = ()
        """Last readings of the probe of GPU use; none for a probe without an answer."""
        self.gpus_at = 0.0
        self._simulated = dict[str, str]() if tree.is_host else {"": f"files below {tree.root}"}

    def run(self, interval: int = 0) -> None:
        """Run the probes whose turn it is in this interval; all of them in the first."""
        due = [
            each for each in self._probes if interval % each.every == 0 and self._may_run(each.name, interval)
        ]
        jobs = [Job(each.name, self._reader(each), each.deadline_s) for each in due]
        if not self._is_pod and self._may_run(KERNEL, interval):
            self._kernel.open(self._memory.kernel.next_sequence)
            jobs.append(Job(KERNEL, self._kernel.read, DEADLINE_S))
        outcomes = self._children.run(jobs)
        points = [point for each in outcomes if each.found for point in each.found.mounts]
        rooms = self._children.run([Job(f"{ROOM}{each}", self._room(each), DEADLINE_S) for each in points])
        for each in outcomes:
            self._take(each, interval)
        if points:
            self._take_rooms(rooms)

    def document(self, host: str, checks: Sequence[str] | None = None) -> Document:
        """Return what the checks said last; of these checks only, where they are given."""
        now, wall = self._now(), max(0.0, min(float(LATEST), time.time()))
        names = sorted(self.said) if checks is None else checks
        verdicts, not_run = list[Verdict](), list[DocumentNotRun]()
        for name in names:
            said = self.said[name]
            if isinstance(said.answer, NotRun):
                not_run.append(DocumentNotRun(_short(name), _plain(said.answer.why)))
            else:
                verdicts.append(_verdict(said, host, self._memory.boot, wall))
        return Document(
            host, self._memory.boot, wall, max(0.0, now), verdicts, not_run, _plain(self.simulated)
        )

    @property
    def simulated(self) -> str:
        """Return what was simulated; "" where everything was real."""
        return "; ".join(dict.fromkeys(self._simulated.values()))

    @property
    def readings(self) -> list[Reading]:
        """Return the last readings of all probes; a probe without an answer adds none."""
        return [each for found in self._readings.values() for each in found]

    def counts(self) -> dict[str, int]:
        """Return how many checks said what."""
        found = {status.value: 0 for status in Status} | {NOT_RUN: 0}
        for each in self.said.values():
            found[NOT_RUN if isinstance(each.answer, NotRun) else each.answer.status.value] += 1
        return found

    def _may_run(self, name: str, interval: int) -> bool:
        return interval >= self._paused.get(name, 0)

    def _reader(self, probe: Probe):
        return lambda: probe.run(self._tree, self._expected)

    def _room(self, point: str):
        return lambda: storage.room(self._tree, point)

    def _take(self, outcome: ProbeOutcome, interval: int) -> None:
        self._say_probe(outcome)
        found = outcome.found
        self._readings[outcome.name] = found.readings if found is not None else ()
        if outcome.name == GPU_USE:
            self.gpus, self.gpus_at = found.gpus if found is not None else (), self._now()
        if outcome.name == KERNEL:
            self._kernel.end(is_answered=found is not None)
        if found is None:
            self._paused[outcome.name] = interval + RETRY_INTERVALS
            return
        if found.simulated:
            self._simulated[outcome.name] = found.simulated
        models = {each.gpu for each in found.readings if each.gpu}
        if len(models) == 1:
            self._gpu = self._policy.type_of(models.pop())
        answers, left_out = self._judge.answers(found.readings, found.unreadable, self._now())
        if found.kernel:
            answers += self._memory.kernel.take(found.kernel, self._policy, self._gpu)
        self._say(
            outcome.name, [*answers, *found.not_run, *(NotRun(each.check, each.why) for each in left_out)]
        )

    def _take_rooms(self, outcomes: Sequence[ProbeOutcome]) -> None:
        readings, unreadable = list[Reading](), list[Unreadable]()
        for each in outcomes:
            point = each.name.removeprefix(ROOM)
            is_silent = each.found is None
            readings.append(Reading("mount_silent_s", point, float(is_silent), each.why))
            if each.found and not self._is_pod:  # the tenant may fill what its container has
                readings += each.found.readings
                unreadable += each.found.unreadable
        self._readings[ROOM] = readings
        answers, left_out = self._judge.answers(readings, unreadable, self._now())
        self._say(ROOM, [*answers, *(NotRun(each.check, each.why) for each in left_out)])

    def _say_probe(self, outcome: ProbeOutcome) -> None:
        check = f"probe.{outcome.name}"
        is_answered = outcome.found is not None
        sample = f"answered after {outcome.seconds * 1000:.0f} ms" if is_answered else outcome.why
        answer = CheckAnswer(
            check,
            Status.PASS if is_answered else Status.UNKNOWN,
            sample,
            f"answer within {self._deadline(outcome.name):g} s",
            "neocloud",
            "with the agent",
            Action.REBOOT if outcome.lives else Action.TRIAGE,
            CheckScope.NODE,
            False,
            "" if is_answered else "lives" if outcome.lives else "ended",
        )
        self.said[check] = Said(self._now(), answer)

    def _deadline(self, name: str) -> float:
        return next((each.deadline_s for each in self._probes if each.name == name), DEADLINE_S)

    def _say(self, probe: str, words: Sequence[CheckAnswer | NotRun]) -> None:
        """Store the answers of a probe; checks that it no longer names become NotRun."""
        now = self._now()
        new = {each.check: Said(now, each) for each in words}
        for check in self._of_probe.get(probe, set()) - new.keys():
            new[check] = Said(now, NotRun(check, "It is not there any more"))
        self._of_probe[probe] = set(new)
        self.said |= new


def _verdict(said: Said, host: str, boot: str, wall: float) -> Verdict:
    answer = said.answer
    assert isinstance(answer, CheckAnswer)
    return Verdict(
        at=wall,
        node=host,
        id=_short(f"{boot[:8]}-{int(said.at * 1000)}-{answer.check}"),
        check=_short(answer.check),
        status=answer.status,
        boot=boot,
        sample=_plain(answer.sample),
        threshold=_plain(answer.threshold),
        source=_plain(answer.source),
        version=_plain(answer.version),
        action=answer.action,
        scope=answer.scope,
        is_fatal=answer.is_fatal,
        devices=_plain(answer.devices) if answer.status is not Status.PASS else "",
    )


def _plain(text: str) -> str:
    """Return the text as the document allows it: without what cannot be printed, and bounded."""
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text[:LONGEST_TEXT])
    return shown.encode(errors="replace").decode()


def _short(text: str) -> str:
    return _plain(text)[:LONGEST_NAME]
