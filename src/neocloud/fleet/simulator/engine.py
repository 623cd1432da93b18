# pyright: strict
"""The simulation: a queue of events in time, true faults of nodes, and an executor of decisions.

It is driven by events, not stepped: the clock jumps from one to the next. What the nodes and the job go
through is simulated; the states, decisions and breakers are those of `neocloud.fleet.controller`.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable

from neocloud.fleet import events as e
from neocloud.fleet.actions import Action
from neocloud.fleet.controller import Fleet, decide
from neocloud.fleet.events import Event, Phase, Scope, Status, Suite
from neocloud.fleet.limits import DAY, HOUR
from neocloud.fleet.simulator import rates
from neocloud.fleet.simulator.job import Job, Stop
from neocloud.fleet.simulator.rates import CAUSES, LLAMA_GPU_HOURS, Cause
from neocloud.fleet.simulator.scenario import Scenario

JOB = "job"
WAKE_FIRST, WAKE_LAST = 5.0, 600.0
"""Seconds until decisions that were held are tried again, doubled each time they are still held."""


class Simulation:
    def __init__(self, scenario: Scenario, *, keeps_log: bool = False) -> None:
        self.scenario = scenario
        self.random = random.Random(scenario.seed)  # nosec B311 - a simulation, to be repeated by its seed
        self.fleet = Fleet(scenario.limits, scenario.job_nodes)
        self.log: list[Event] | None = [] if keeps_log else None
        self.now, self.queued = 0.0, 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.job = Job()
        self.start_token = 0
        self.blocks: Counter[str] = Counter()
        """What the job waits for beside its nodes: faults that nothing has named yet, and planned work."""
        self.members: list[str] = []
        self.member_places: dict[str, int] = {}
        self.unfit: set[str] = set()
        """Nodes of the job that are not in good service."""
        self.broken: dict[str, tuple[Cause, Action]] = {}
        self.lemons: list[str] = []
        self.cured_lemons: set[str] = set()
        self.accused: dict[str, list[tuple[str, str, bool]]] = {}
        """For each drained node: check, verdict and whether it was right."""
        self.dark_racks: set[str] = set()
        self.verdicts, self.boots = 0, 0
        self.events, self.plans = 0, 0
        self.by_cause: Counter[str] = Counter()
        self.relapses = 0
        """Faults that verification missed and that struck again; not among the causes."""
        self.decisions: Counter[str] = Counter()
        self.false_drains = 0
        self.held: dict[str, str] = {}
        self.breaker_trips = 0
        self.wake_after, self.wakes_at = WAKE_FIRST, math.inf
        self.out_since, self.out_count = 0.0, 0
        self.out_seconds: dict[int, float] = {}
        self.short_since: float | None = None
        self.short_seconds = 0.0

    # The queue

    def at(self, when: float, do: Callable[[], None]) -> None:
        self.queued += 1
        heapq.heappush(self.queue, (when, self.queued, do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.at(self.now + seconds, do)

    def run(self, on_progress: Callable[[float], None] = lambda _: None) -> None:
        """Run to the end; `on_progress` is told the share of the time that has passed, about 100 times."""
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
        count = round(scenario.lemon_nodes * scenario.job_nodes)
        self.lemons = self.random.sample(self.members, count)
        self._next_fault()
        for check, per_day in (
            ("", scenario.false_positives),
            (rates.OUTLIER, scenario.outlier_false_positives),
        ):
            if per_day > 0:
                self._next_false_positive(check, per_day)
        if scenario.maintenance > 0:
            self.after(scenario.maintenance_every, self._open_window)
        if scenario.rack_faults_per_year > 0:
            self._next_rack_fault()

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
                self.after(scenario.triage, lambda: self._end_triage(node))
            case _:
                pass

    def _drain(self, event: e.DrainRequested, was_in_job: bool) -> None:
        is_right = event.node in self.broken
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
        succeeded = self.random.random() >= self.scenario.step_failure
        is_dark = self.fleet.nodes[node].rack in self.dark_racks
        succeeded = succeeded and not is_dark
        if event.action is not Action.RESET_GPU and not is_dark:
            self._boot(node, self.now)
        if succeeded and node in self.broken and event.action.rung >= self.broken[node][1].rung:
            del self.broken[node]
        for check, verdict, is_right in self.accused.pop(node, ()):
            if check:
                self.append(e.Judged(self.now, node, check, verdict, is_right))
        self.append(e.StepEnded(self.now, node, event.attempt, succeeded))

    def _end_verification(self, event: e.VerificationStarted) -> None:
        node = event.node
        is_found = node in self.broken and self.random.random() < self.scenario.verify_recall
        until = self.now + self.scenario.limits.certificate_term
        self.append(
            e.VerificationEnded(self.now, node, event.attempt, passed=not is_found, valid_until=until)
        )
        if node in self.broken and not is_found:
            self.after(self.random.expovariate(1 / self.scenario.relapse), lambda: self._relapse(node))

    def _relapse(self, node: str) -> None:
        if node not in self.broken:
            return
        if node in self.member_places:
            self.relapses += 1
            self._strike(node, *self.broken[node])
        elif self.fleet.nodes[node].phase in (Phase.IN_SERVICE, Phase.READY_SPARE):
            self.after(self.scenario.relapse, lambda: self._relapse(node))

    def _end_triage(self, node: str) -> None:
        if node not in self.broken:
            self._burn_in(node)
            return
        self._move(node, Phase.RMA_OUT)
        self.after(self.scenario.repair, lambda: self._return_from_repair(node))

    def _return_from_repair(self, node: str) -> None:
        self.broken.pop(node, None)
        self.cured_lemons.add(node)
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

    def _stop(self, reason: Stop) -> None:
        self.job.stop(self.now, reason)
        self.start_token += self.start_token % 2

    def _block(self, what: str, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        """Keep the job down for a time, and do something at its end."""
        self.blocks[what] += 1

        def release() -> None:
            self.blocks[what] -= 1
            then()

        self.after(seconds, release)

    def _open_window(self) -> None:
        """Planned maintenance: the job saves and stops, and nodes whose certificate ends soon are tested."""
        scenario, limits = self.scenario, self.scenario.limits
        self._stop(Stop.PLANNED)
        self._block("window", scenario.maintenance)
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

    # Faults

    def _next_fault(self) -> None:
        """Faults of one constant rate; the cause, and then the node, are drawn."""
        scenario = self.scenario
        total = sum(cause.count for cause in CAUSES)
        per_hour = scenario.rate * total / LLAMA_GPU_HOURS * scenario.gpus
        self.after(self.random.expovariate(per_hour) * HOUR, self._fault)

    def _fault(self) -> None:
        self._next_fault()
        cause = self.random.choices(CAUSES, [each.count for each in CAUSES])[0]
        if cause.cured_by is None:
            self.by_cause[cause.name] += 1
            self._stop(Stop.UNPLANNED)
            self._block("restart", self.scenario.detect)
            return
        node = self._victim()
        if node is None:
            return
        if cause.scope is Scope.LINK and self.random.random() < self.scenario.leaf_share:
            self._leaf_fault(cause, self.fleet.nodes[node].leaf)
            return
        cure = self.random.choices(list(cause.cured_by), list(cause.cured_by.values()))[0]
        self.by_cause[cause.name] += 1
        self._strike(node, cause, cure)

    def _victim(self) -> str | None:
        """Draw a node of the job; a lemon whose parts were replaced is a node like the others."""
        scenario = self.scenario
        if self.lemons and self.random.random() < scenario.lemon_faults:
            node = self.random.choice(self.lemons)
            usual = (1 - scenario.lemon_faults) / scenario.job_nodes
            weight = scenario.lemon_faults / len(self.lemons)
            if node in self.cured_lemons and self.random.random() > usual / weight:
                return None
            return node if node in self.member_places else None
        return self.random.choice(self.members) if self.members else None

    def _strike(self, node: str, cause: Cause, cure: Action) -> None:
        known = self.broken.get(node)
        if known is None or cure.rung > known[1].rung:
            self.broken[node] = cause, cure
        self._stop(Stop.UNPLANNED)
        is_named = self.random.random() < self.scenario.recall
        check = cause.check if is_named else rates.SEARCH
        wait = self.scenario.detect + (0.0 if is_named else self.scenario.search)
        action = Action.RESET_GPU if cause.check.startswith(("gpu", "ecc")) else Action.REBOOT
        scope = cause.scope if is_named else Scope.NODE

        def report() -> None:
            self._report(node, check, action, scope)

        self._block("search", wait, report)

    def _report(
        self,
        node: str,
        check: str,
        action: Action,
        scope: Scope = Scope.NODE,
        *,
        is_fatal: bool = True,
        status: Status = Status.FAIL,
    ) -> str:
        self.verdicts += 1
        verdict = f"v{self.verdicts}"
        boot = self.fleet.nodes[node].boot
        self.append(
            e.Verdict(
                self.now, node, verdict, check, status, boot, "simulated", "simulated", "simulator", "1",
                action, scope, is_fatal,
            )
        )  # fmt: skip
        return verdict

    def _leaf_fault(self, cause: Cause, leaf: str) -> None:
        """A leaf switch fails: the links of all its nodes are down until it is repaired."""
        self.by_cause[cause.name] += 1
        self._stop(Stop.UNPLANNED)
        nodes = [node for node in self.members if self.fleet.nodes[node].leaf == leaf]

        def report(status: Status) -> None:
            for node in nodes:
                self._report(node, cause.check, Action.REBOOT, Scope.LINK, status=status)

        self._block("search", self.scenario.detect, lambda: report(Status.FAIL))
        self.after(self.scenario.detect + self.scenario.leaf_repair, lambda: report(Status.PASS))

    def _next_rack_fault(self) -> None:
        mean = 365 * DAY / self.scenario.rack_faults_per_year
        self.after(self.random.expovariate(1 / mean), self._rack_fault)

    def _rack_fault(self) -> None:
        """A rack loses power until it is repaired."""
        self._next_rack_fault()
        rack = self.fleet.nodes[self.random.choice(self.members)].rack if self.members else ""
        if rack in self.dark_racks or not rack:
            return
        self.by_cause[rates.RACK_CAUSE] += 1
        self.dark_racks.add(rack)
        self._stop(Stop.UNPLANNED)
        nodes = [node for node in self.members if self.fleet.nodes[node].rack == rack]
        cause = Cause(rates.RACK_CAUSE, 0, rates.RACK_POWER)
        for node in nodes:
            self.broken.setdefault(node, (cause, Action.POWER_CYCLE))

        def report() -> None:
            for node in nodes:
                self._report(node, rates.RACK_POWER, Action.POWER_CYCLE)

        self._block("search", self.scenario.detect, report)
        self.after(self.scenario.rack_repair, lambda: self.dark_racks.discard(rack))

    def _next_false_positive(self, check: str, per_day: float) -> None:
        mean = DAY / (per_day * self.scenario.job_nodes)
        self.after(self.random.expovariate(1 / mean), lambda: self._false_positive(check, per_day))

    def _false_positive(self, check: str, per_day: float) -> None:
        self._next_false_positive(check, per_day)
        node = self.random.choice(self.members) if self.members else ""
        if not node or node in self.broken:
            return
        named = check or self.random.choice(sorted(self.scenario.limits.trusted - {rates.OUTLIER}))
        is_in_shadow = bool(self.fleet.breakers.in_shadow(named))
        verdict = self._report(node, named, Action.RESET_GPU, is_fatal=False)
        if is_in_shadow:
            # An active test judges it when the node is idle.
            wait = self.scenario.maintenance_every
            self.after(wait, lambda: self.append(e.Judged(self.now, node, named, verdict, False)))
