"""The simulation: a queue of events in time, true faults of nodes, and an executor of decisions.

It is driven by events, not stepped: the clock jumps from one to the next. The life of the nodes and of the
job is simulated; the states, decisions and breakers are those of `neocloud.fleet.control.controller`.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable

from neocloud.fleet.control.controller import Fleet, decide
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event, Phase
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.fleet.policy.limits import DAY
from neocloud.fleet.simulator.faults import Faults
from neocloud.fleet.simulator.job import Job, Stop
from neocloud.fleet.simulator.scenario import Scenario

JOB = "job"
WAKE_FIRST, WAKE_LAST = 5.0, 600.0
"""Seconds until decisions that were held are tried again, doubled each time they are still held."""


class Simulation:
    def __init__(self, scenario: Scenario, *, keeps_log: bool = False) -> None:
        self.scenario = scenario
        self.random = random.Random(scenario.seed)  # repeated by its seed  # nosec B311
        self.fleet = Fleet(scenario.limits, scenario.job_nodes)
        self.log: list[Event] | None = [] if keeps_log else None
        self.now, self.queued = 0.0, 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.job = Job()
        self.start_token = 0
        self.blocks: Counter[str] = Counter()
        """Reasons why the job waits beside its nodes: faults that nothing has named yet, and planned work."""
        self.members: list[str] = []
        self.member_places: dict[str, int] = {}
        self.unfit: set[str] = set()
        """Nodes of the job that are not in good service."""
        self.accused: dict[str, list[tuple[str, str, bool]]] = {}
        """For each drained node: check, verdict and whether it was right."""
        self.boots = 0
        self.events, self.plans = 0, 0
        self.decisions: Counter[str] = Counter()
        self.false_drains = 0
        self.sent_as_lemons: list[bool] = []
        """For each node that went to triage as a lemon, whether it was one."""
        self.held: dict[str, str] = {}
        self.breaker_trips = 0
        self.wake_after, self.wakes_at = WAKE_FIRST, math.inf
        self.out_since, self.out_count = 0.0, 0
        self.out_seconds: dict[int, float] = {}
        self.short_since: float | None = None
        self.short_seconds = 0.0
        self.faults = Faults(self)

    # The queue

    def at(self, when: float, do: Callable[[], None]) -> None:
        self.queued += 1
        heapq.heappush(self.queue, (when, self.queued, do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.at(self.now + seconds, do)

    def run(self, on_progress: Callable[[float], None] = lambda _: None) -> None:
        """Run to the end; `on_progress` is called with the share of the time that has passed, about 100
        times.
        """
        end, shown = self.scenario.days * DAY, 0
        self._set_up()
        self._settle()
        while self.queue and self.queue[0][0] < end:
            self.now = self.queue[0][0]
            while self.queue[0][0] == self.now:
                heapq.heappop(self.queue)[2]()
                if not self.queue:
                    break
            self._settle()
            if (percent := int(100 * self.now / end)) > shown:
                shown = percent
                on_progress(self.now / end)
        self.now = end
        self.job.end(end)
        self._count_short(is_short=False)
        self._count_out(force=True)
        on_progress(1.0)

    # The start of the fleet

    def _set_up(self) -> None:
        scenario = self.scenario
        term = scenario.limits.certificate_term
        for number in range(scenario.job_nodes + scenario.spare_nodes):
            node = f"n{number:05d}"
            rack, leaf = number // scenario.nodes_per_rack, number // scenario.nodes_per_leaf
            start = -2 * term
            self.append(e.Registered(start, node, f"r{rack}", f"l{leaf}", Phase.DRAINED))
            self._boot(node, start)
            verified = -self.random.uniform(0, term - scenario.limits.renew_before - DAY)
            begun = verified - scenario.verify[Suite.FULL]
            self.append(e.VerificationStarted(begun, node, Suite.FULL, 1, verified + 1))
            self.append(e.VerificationEnded(verified, node, 1, passed=True, valid_until=verified + term))
            if number < scenario.job_nodes:
                self.append(e.SpareReserved(0.0, node))
                self.append(e.Attached(0.0, node))
                self.append(e.Returned(0.0, node))
                self.append(e.Assigned(0.0, node, "tenant", JOB))
        self.faults.start()
        if scenario.maintenance > 0:
            self.after(scenario.maintenance_every, self._open_window)

    def _boot(self, node: str, at: float) -> None:
        self.boots += 1
        self.append(e.Booted(at, node, f"b{self.boots}"))

    # Events, decisions and their execution

    def append(self, event: Event) -> None:
        self.events += 1
        if self.log is not None:
            self.log.append(event)
        trips = len(self.fleet.breakers.trips)
        if not self.fleet.apply(event):
            return
        self.breaker_trips += max(0, len(self.fleet.breakers.trips) - trips)
        state = self.fleet.nodes[event.node]
        if not state.job:
            self._leave(event.node)
        else:
            if event.node not in self.member_places:
                self.member_places[event.node] = len(self.members)
                self.members.append(event.node)
            if state.phase is Phase.IN_SERVICE:
                self.unfit.discard(event.node)
            else:
                self.unfit.add(event.node)
        self._count_out()

    def _leave(self, node: str) -> None:
        self.unfit.discard(node)
        place = self.member_places.pop(node, None)
        if place is None:
            return
        last = self.members.pop()
        if last != node:
            self.members[place] = last
            self.member_places[last] = place

    def _count_out(self, *, force: bool = False) -> None:
        if force or self.fleet.drained_by_us != self.out_count:
            seconds = self.out_seconds.get(self.out_count, 0.0)
            self.out_seconds[self.out_count] = seconds + self.now - self.out_since
            self.out_since, self.out_count = self.now, self.fleet.drained_by_us

    def _settle(self) -> None:
        """Let the controller decide and carry out what it decides; start the job when it can run."""
        plan = decide(self.fleet, self.now)
        self.plans += 1
        for decision in plan.decisions:
            self.decisions[type(decision.event).__name__] += 1
            before = self.fleet.nodes[decision.event.node]
            self.append(decision.event)
            self._execute(decision.event, before.job != "")
        self._wake_for(plan.held)
        self._fill_job()
        self._start_if_ready()

    def _wake_for(self, held: dict[str, str]) -> None:
        if held != self.held:
            self.held, self.wake_after = held, WAKE_FIRST
        if not held:
            return
        if self.wakes_at <= self.now:
            self.wake_after = min(WAKE_LAST, 2 * self.wake_after)
            self.wakes_at = math.inf
        if self.now + self.wake_after < self.wakes_at:
            self.wakes_at = self.now + self.wake_after
            self.at(self.wakes_at, lambda: None)

    def _execute(self, event: Event, was_in_job: bool) -> None:
        scenario, node = self.scenario, event.node
        match event:
            case e.DrainRequested():
                self._drain(event, was_in_job)
            case e.StepStarted():
                self.after(scenario.steps[event.action], lambda: self._end_step(event))
            case e.VerificationStarted():
                self.after(scenario.verify[event.suite], lambda: self._end_verification(event))
            case e.SpareReserved():
                self.after(scenario.attach, lambda: self.append(e.Attached(self.now, node)))
            case e.Returned():
                self.append(e.Assigned(self.now, node, "tenant", JOB))
            case e.Moved() if event.to is Phase.TRIAGE:
                if self.fleet.lemons.reason(node, self.now):
                    self.sent_as_lemons.append(node in self.faults.lemons)
                self.after(scenario.triage, lambda: self._end_triage(node))
            case _:
                pass

    def _drain(self, event: e.DrainRequested, was_in_job: bool) -> None:
        is_right = event.node in self.faults.broken
        self.accused[event.node] = [(event.check, event.evidence, is_right)]
        self.false_drains += not is_right
        wait = self.scenario.drain
        if was_in_job and self.job.is_running:
            # The job is asked for a checkpoint first.
            wait += self.scenario.save
            self.job.stop(self.now, Stop.DRAIN if is_right else Stop.FALSE_DRAIN)
        self.after(wait, lambda: self.append(e.Drained(self.now, event.node)))

    def _end_step(self, event: e.StepStarted) -> None:
        node = event.node
        succeeded = self.faults.repair(node, event.action)
        if succeeded and event.action is not Action.RESET_GPU:
            self._boot(node, self.now)
        for check, verdict, is_right in self.accused.pop(node, ()):
            if check:
                self.append(e.Judged(self.now, node, check, verdict, is_right))
        self.append(e.StepEnded(self.now, node, event.attempt, succeeded))

    def _end_verification(self, event: e.VerificationStarted) -> None:
        node = event.node
        passed = not self.faults.is_found(node)
        until = self.now + self.scenario.limits.certificate_term
        self.append(e.VerificationEnded(self.now, node, event.attempt, passed, until))

    def _end_triage(self, node: str) -> None:
        if node not in self.faults.broken and not self.fleet.lemons.reason(node, self.now):
            self._burn_in(node)
            return
        self._move(node, Phase.RMA_OUT)
        self.after(self.scenario.repair, lambda: self._return_from_repair(node))

    def _return_from_repair(self, node: str) -> None:
        self.faults.replace_part(node)
        self._move(node, Phase.RMA_RETURNED)
        self.after(1.0, lambda: self._burn_in(node))

    def _burn_in(self, node: str) -> None:
        self._move(node, Phase.BURN_IN)
        self._boot(node, self.now)
        self.after(self.scenario.limits.burn_in, lambda: None)

    def _move(self, node: str, to: Phase) -> None:
        self.append(e.Moved(self.now, node, to, "operator"))

    # The job

    def _fill_job(self) -> None:
        """Give the job the nodes in service that run nothing."""
        if len(self.members) >= self.scenario.job_nodes or self.blocks["window"]:
            return
        for node in [node for node in self.fleet.unsettled]:
            if self.fleet.nodes[node].is_schedulable(self.now):
                self.append(e.Assigned(self.now, node, "tenant", JOB))

    def _start_if_ready(self) -> None:
        is_complete = len(self.members) == self.scenario.job_nodes and not self.unfit
        is_ready = is_complete and not self.blocks.total()
        if self.job.is_running:
            return
        is_incomplete = len(self.members) < self.scenario.job_nodes and not self.blocks["window"]
        self._count_short(is_short=is_incomplete and not self._has_spare())
        if not is_ready:
            self.start_token += self.start_token % 2
        elif self.start_token % 2 == 0:
            self.start_token += 1
            token = self.start_token
            self.after(self.scenario.restart, lambda: self._start(token))

    def _has_spare(self) -> bool:
        return self.fleet.phases[Phase.READY_SPARE] > 0

    def _count_short(self, *, is_short: bool) -> None:
        if is_short and self.short_since is None:
            self.short_since = self.now
        elif not is_short and self.short_since is not None:
            self.short_seconds += self.now - self.short_since
            self.short_since = None

    def _start(self, token: int) -> None:
        if token == self.start_token:
            self.start_token += 1
            self.job.start(self.now)

    def stop(self, reason: Stop) -> None:
        self.job.stop(self.now, reason)
        self.start_token += self.start_token % 2

    def block(self, what: str, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        """Keep the job down for a time, and do something at its end."""
        self.blocks[what] += 1

        def release() -> None:
            self.blocks[what] -= 1
            then()

        self.after(seconds, release)

    def _open_window(self) -> None:
        """Planned maintenance: the job saves and stops, and nodes whose certificate ends soon are tested."""
        scenario, limits = self.scenario, self.scenario.limits
        self.stop(Stop.PLANNED)
        self.block("window", scenario.maintenance)
        at_once = int(limits.renew_share * len(self.fleet.nodes)) - self.fleet.phases[Phase.VERIFYING]
        due = [
            node
            for node in self.members
            if (certificate := self.fleet.nodes[node].certificate) is not None
            and certificate.valid_until - limits.renew_before <= self.now
        ]
        for node in due[: max(0, at_once)]:
            self.append(e.Unassigned(self.now, node, JOB))
        self.after(scenario.maintenance_every, self._open_window)
