"""A random walk of a small fleet under the controller, against a model that knows the truth.

The model keeps its own books, from the live events alone; late and duplicate events are sent too, and must
change nothing. Every step checks the promises of the lifecycle.
"""

import random
from collections import deque

from neocloud.fleet.control.controller import Fleet, decide
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, CheckScope, Event, Phase, Status
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.limits import Limits

CHECKS = ("gpu-lost", "link-down", "mount", "untried")
LIMITS = Limits(
    trusted=frozenset(CHECKS[:3]),
    judged_minimum=10,
    dead_checks=frozenset({"gpu-lost"}),
    dead_replacements=2,
)
SCOPES = {"link-down": CheckScope.LINK, "mount": CheckScope.STORAGE}
OWNERS = ("alice", "slurm")


class Walk:
    def __init__(self, seed: int, nodes: int = 24, wanted: int = 18) -> None:
        self.random = random.Random(seed)
        self.fleet = Fleet(LIMITS, wanted)
        self.now, self.log, self.boots, self.verdicts = 0.0, list[Event](), 0, 0
        self.names = [f"n{number}" for number in range(nodes)]
        self.boot: dict[str, str] = {}
        self.verified: dict[str, bool] = dict.fromkeys(self.names, False)
        self.failing: dict[str, dict[str, float]] = {name: {} for name in self.names}
        self.foreign: dict[str, set[str]] = {name: set() for name in self.names}
        self.ours: set[str] = set()
        self.drains: deque[float] = deque()
        self.tested_boot: dict[str, tuple[str, float]] = {}
        self.drained_ever = self.served_steps = self.replaced_dead = 0
        for number, name in enumerate(self.names):
            self.append(e.Registered(0.0, name, f"r{number // 4}", f"l{number // 8}", Phase.DRAINED))
            self.start(name)

    def append(self, event: Event) -> bool:
        self.log.append(event)
        return self.fleet.apply(event)

    def start(self, name: str) -> None:
        self.boots += 1
        self.boot[name] = f"b{self.boots}"
        self.verified[name] = False
        self.append(e.Booted(self.now, name, self.boot[name]))

    def step(self) -> None:
        self.now += self.random.expovariate(1 / 90)
        name = self.random.choice(self.names)
        act = self.random.choices(
            (self.progress, self.judge, self.surprise, self.repeat, self.hold, self.assign, self.repair),
            (10, 4, 0.1, 4, 0.3, 3, 1),
        )[0]
        act(name)
        self.decide()
        self.check()

    def progress(self, _name: str) -> None:
        """Finish what runs somewhere."""
        for name in self.names:
            state = self.fleet.nodes[name]
            if state.phase is Phase.DRAINING and self.random.random() < 0.5:
                self.append(e.Drained(self.now, name))
                self.verified[name] = False
            elif state.running is not None and self.random.random() < 0.4:
                self.finish(name)
            elif state.reserved_for is not None and not state.is_attached:
                self.append(e.Attached(self.now, name))

    def finish(self, name: str) -> None:
        running = self.fleet.nodes[name].running
        assert running is not None
        is_good = self.random.random() < 0.8
        if running.action is not Action.NONE:
            if running.action is not Action.RESET_GPU:
                self.start(name)
            self.append(e.StepEnded(self.now, name, running.number, is_good))
            return
        boot, started = self.tested_boot[name]
        until = self.now + LIMITS.certificate_term
        self.append(e.VerificationEnded(self.now, name, running.number, is_good, until))
        later = [at for at in self.failing[name].values() if at > started]
        if is_good and boot == self.boot[name] and not later:
            self.verified[name] = True
            self.failing[name].clear()
            self.ours.discard(name)

    def judge(self, name: str) -> None:
        """A check answers; the check without a record may not take a node out of service."""
        self.verdicts += 1
        check = self.random.choice(CHECKS)
        status = self.random.choices(list(Status), (0.7, 0.25, 0.05))[0]
        is_shadow = bool(self.fleet.breakers.in_shadow(check))
        verdict = f"v{self.verdicts}"
        action = self.random.choice((Action.RESET_GPU, Action.REBOOT, Action.POWER_CYCLE))
        self.append(
            e.Verdict(
                *(self.now, name, verdict, check, status, self.boot[name], "s", "t", "walk", "1", action),
                SCOPES.get(check, CheckScope.NODE),
                self.random.random() < 0.5,
            )
        )
        if status is Status.PASS:
            self.failing[name].pop(check, None)
        elif not is_shadow:
            self.failing[name][check] = self.now
        if status is Status.FAIL and self.random.random() < 0.1:
            self.append(e.Judged(self.now, name, check, verdict, self.random.random() < 0.7))

    def surprise(self, name: str) -> None:
        self.start(name)

    def repeat(self, _name: str) -> None:
        """Send an event again, or one of an old boot that has a new time; neither changes a node."""
        past = self.log[-1 - int(self.random.random() ** 3 * (len(self.log) - 1))]
        before = self.fleet.nodes[past.node]
        self.append(past)
        assert self.fleet.nodes[past.node] is before, past
        if isinstance(past, e.Verdict) and past.boot != self.boot[past.node]:
            late = e.Verdict(
                *(self.now, past.node, past.id, past.check, Status.PASS, past.boot, "", "", "walk", "1")
            )
            assert not self.append(late)

    def hold(self, name: str) -> None:
        owner = self.random.choice(sorted(self.foreign[name]) or OWNERS)
        if owner in self.foreign[name]:
            self.append(e.DrainReleased(self.now, name, owner))
            self.foreign[name].discard(owner)
        elif self.random.random() < 0.3:
            self.append(e.DrainRequested(self.now, name, owner, "asked"))
            self.foreign[name].add(owner)

    def assign(self, name: str) -> None:
        job = self.fleet.nodes[name].job
        if job:
            self.append(e.Unassigned(self.now, name, job))
        else:
            self.append(e.Assigned(self.now, name, "tenant", f"j{self.random.randrange(4)}"))

    def repair(self, name: str) -> None:
        to = {Phase.TRIAGE: Phase.RMA_OUT, Phase.RMA_OUT: Phase.RMA_RETURNED}
        phase = self.fleet.nodes[name].phase
        if phase in to or phase is Phase.RMA_RETURNED:
            self.append(e.Moved(self.now, name, to.get(phase, Phase.BURN_IN), "alice"))

    def decide(self) -> None:
        nodes, dead_now = dict(self.fleet.nodes), 0
        plan = decide(self.fleet, self.now)
        assert self.fleet.nodes == nodes, "deciding has no effect"
        for decision in plan.decisions:
            event = decision.event
            if isinstance(event, e.DrainRequested):
                assert event.owner == OURS and event.evidence and event.node not in self.ours
                assert not event.check or event.check not in self.fleet.breakers.in_shadow(event.check)
                self.ours.add(event.node)
                self.drained_ever += 1
                if event.is_dead:
                    self.replaced_dead += 1
                    assert not self.verified[event.node] or "gpu-lost" in self.failing[event.node], event
                    dead_now += 1
                self.drains.append(self.now)
            if isinstance(event, e.Returned):
                assert self.verified[event.node] and not self.foreign[event.node]
            if isinstance(event, e.StepStarted):
                assert not self.foreign[event.node]
            if isinstance(event, e.VerificationStarted):
                self.tested_boot[event.node] = self.boot[event.node], self.now
                self.verified[event.node] = False
            assert self.append(event), f"a decision that changes nothing: {decision}"
        reserved = sum(isinstance(each.event, e.SpareReserved) for each in plan.decisions)
        assert dead_now <= reserved, "each is replaced at once"
        again = [each.event for each in decide(self.fleet, self.now).decisions]
        assert not {*again} & {each.event for each in plan.decisions}, "decided twice"

    def check(self) -> None:
        for name in self.names:
            if self.fleet.nodes[name].is_schedulable(self.now):
                self.served_steps += 1
                assert self.verified[name] and not self.foreign[name] and not self.failing[name], name
        while self.drains and self.drains[0] <= self.now - LIMITS.window:
            self.drains.popleft()
        share = int(LIMITS.cluster_drains * len(self.names))
        dead = LIMITS.dead_replacements
        assert len(self.drains) <= max(LIMITS.smallest_cluster_limit, share) + dead
        assert self.fleet.drained_by_us == len(self.ours)
        out = int(LIMITS.cluster_out * len(self.names))
        spare = len(self.names) - self.fleet.wanted  # where one replaces a dead node
        assert len(self.ours) <= max(LIMITS.smallest_cluster_limit, out, spare)

    def check_replay(self) -> None:
        again = Fleet.replay(LIMITS, self.fleet.wanted, self.log)
        assert again.nodes == self.fleet.nodes
        for name, value in vars(self.fleet.breakers).items():
            assert getattr(again.breakers, name) == value, name
        assert again.phases == self.fleet.phases and [*again.unsettled] == [*self.fleet.unsettled]
