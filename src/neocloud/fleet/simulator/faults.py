"""Simulated faults, with their time and place; and the answers of checks about them, right or wrong."""

import random
from collections import Counter
from typing import TYPE_CHECKING

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import CheckScope, Phase, Status
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.limits import DAY, HOUR
from neocloud.fleet.policy.policy import Severity
from neocloud.fleet.simulator import rates
from neocloud.fleet.simulator.job import Stop
from neocloud.fleet.simulator.rates import CAUSES, LLAMA_GPU_HOURS, Cause

if TYPE_CHECKING:
    from neocloud.fleet.simulator.engine import Simulation


class Faults:
    def __init__(self, simulation: "Simulation") -> None:
        self.simulation, self.scenario = simulation, simulation.scenario
        self.random = simulation.random
        self.arrivals = self._stream("arrivals")
        self.accusations = self._stream("accusations")
        self.faults = 0
        self.broken: dict[str, tuple[Cause, Action]] = {}
        """The truth: nodes with a fault, and the lowest rung of the ladder that cures it."""
        self.lemons: list[str] = []
        """Nodes with a part that fails now and then. A step cures it for that time, so no test finds it; only
        new parts end it."""
        self.cured_lemons: set[str] = set()
        self.dark_racks: set[str] = set()
        """Racks without power."""
        self.verdicts = 0
        self.by_cause: Counter[str] = Counter()
        self.relapses = 0
        """Faults that verification missed and that struck again; not among the causes."""

    def _stream(self, name: str) -> random.Random:
        """Return random numbers of their own: runs with the same seed then have the same faults at the same
        times, whatever is decided about them, and two policies can be compared by pairs of runs."""
        return random.Random(f"{self.scenario.seed} {name}")  # repeated by its seed  # nosec B311

    def start(self) -> None:
        scenario = self.scenario
        count = round(scenario.lemon_nodes * scenario.job_nodes)
        self.lemons = self.random.sample(self.simulation.members, count)
        self._next_fault()
        if scenario.false_positives > 0:
            self._next_false_positive("", scenario.false_positives)
        if scenario.outlier_false_positives > 0:
            self._next_false_positive(rates.OUTLIER, scenario.outlier_false_positives)
        if scenario.rack_faults_per_year > 0:
            self._next_rack_fault()

    def repair(self, node: str, action: Action) -> bool:
        """Cure what a step can cure; return whether the step could be done at all."""
        if self.simulation.fleet.nodes[node].rack in self.dark_racks:
            return False
        if self.random.random() < self.scenario.step_failure:
            return False
        if node in self.broken and action.rung >= self.broken[node][1].rung:
            del self.broken[node]
        return True

    def replace_part(self, node: str) -> None:
        self.broken.pop(node, None)
        self.cured_lemons.add(node)

    def is_found(self, node: str) -> bool:
        """Return whether a verification finds a fault; one that it misses strikes again later."""
        if node not in self.broken:
            return False
        if self.random.random() < self.scenario.verify_recall:
            return True
        self._relapse_later(node)
        return False

    def _relapse_later(self, node: str, mean: float | None = None) -> None:
        wait = self.random.expovariate(1 / (mean or self.scenario.relapse))
        self.simulation.after(wait, lambda: self._relapse(node))

    def _relapse(self, node: str) -> None:
        if node not in self.broken:
            return
        if node in self.simulation.member_places:
            self.relapses += 1
            self._strike(node, *self.broken[node], self.random)
        elif self.simulation.fleet.nodes[node].phase in (Phase.IN_SERVICE, Phase.READY_SPARE):
            self._relapse_later(node)

    def _next_fault(self) -> None:
        """Faults of one constant rate; the cause, and then the node, are drawn."""
        scenario = self.scenario
        total = sum(cause.count for cause in CAUSES)
        per_hour = scenario.rate * total / LLAMA_GPU_HOURS * scenario.gpus
        self.simulation.after(self.arrivals.expovariate(per_hour) * HOUR, self._fault)

    def _fault(self) -> None:
        self._next_fault()
        self.faults += 1
        draw = self._stream(f"fault {self.faults}")
        cause = draw.choices(CAUSES, [each.count for each in CAUSES])[0]
        if cause.cured_by is None:
            self.by_cause[cause.name] += 1
            self.simulation.stop(Stop.UNPLANNED)
            self.simulation.block("restart", self.scenario.detect)
            return
        node = self._victim(draw)
        if node is None:
            return
        if cause.scope is CheckScope.LINK and draw.random() < self.scenario.leaf_share:
            self._leaf_fault(cause, self.simulation.fleet.nodes[node].leaf)
            return
        cure = draw.choices(list(cause.cured_by), list(cause.cured_by.values()))[0]
        if node in self.lemons and node not in self.cured_lemons:
            cure = min(cure, Action.REBOOT, key=lambda action: action.rung)
        self.by_cause[cause.name] += 1
        self._strike(node, cause, cure, draw)

    def _victim(self, draw: random.Random) -> str | None:
        """Draw a node of the job; a lemon whose parts were replaced is a node like the others."""
        scenario = self.scenario
        if self.lemons and draw.random() < scenario.lemon_faults:
            node = draw.choice(self.lemons)
            usual = (1 - scenario.lemon_faults) / scenario.job_nodes
            weight = scenario.lemon_faults / len(self.lemons)
            if node in self.cured_lemons and draw.random() > usual / weight:
                return None
            return node if node in self.simulation.member_places else None
        return draw.choice(self.simulation.members) if self.simulation.members else None

    def _strike(self, node: str, cause: Cause, cure: Action, draw: random.Random) -> None:
        known = self.broken.get(node)
        if known is None or cure.rung > known[1].rung:
            self.broken[node] = cause, cure
        self.simulation.stop(Stop.UNPLANNED)
        is_named = draw.random() < self.scenario.recall
        check = cause.check if is_named else rates.SEARCH
        wait = self.scenario.detect + (0.0 if is_named else self.scenario.search)
        scope = cause.scope if is_named else CheckScope.NODE
        severity, action = self._response(cause) if is_named else (Severity.FATAL, Action.REBOOT)

        def report() -> None:
            if severity is Severity.INFO:
                self._relapse_later(node, self.scenario.ignored)  # the job starts on the broken node again
            else:
                self._report(node, check, action, scope, is_fatal=severity is Severity.FATAL)

        self.simulation.block("search", wait, report)

    def _response(self, cause: Cause) -> tuple[Severity, Action]:
        """Return what is done about a named fault: what the policy says, where one is given that knows it."""
        policy = self.scenario.policy
        if policy is None or cause.in_policy is None:
            gpu = cause.check.startswith(("gpu", "ecc"))
            return Severity.FATAL, Action.RESET_GPU if gpu else Action.REBOOT
        found = policy.response_to(*cause.in_policy, gpu=self.scenario.gpu_type)
        return found.severity, found.action

    def _report(
        self,
        node: str,
        check: str,
        action: Action,
        scope: CheckScope = CheckScope.NODE,
        *,
        is_fatal: bool = True,
        status: Status = Status.FAIL,
    ) -> str:
        self.verdicts += 1
        verdict = f"v{self.verdicts}"
        boot = self.simulation.fleet.nodes[node].boot
        self.simulation.append(
            e.Verdict(
                self.simulation.now,
                node,
                verdict,
                check,
                status,
                boot,
                sample="simulated",
                threshold="simulated",
                source="simulator",
                version="1",
                action=action,
                scope=scope,
                is_fatal=is_fatal,
            )
        )
        return verdict

    def _leaf_fault(self, cause: Cause, leaf: str) -> None:
        """A leaf switch fails: the links of all its nodes are down until it is repaired."""
        self.by_cause[cause.name] += 1
        self.simulation.stop(Stop.UNPLANNED)
        nodes = [node for node in self.simulation.members if self.simulation.fleet.nodes[node].leaf == leaf]

        def report(status: Status) -> None:
            for node in nodes:
                self._report(node, cause.check, Action.REBOOT, CheckScope.LINK, status=status)

        self.simulation.block("search", self.scenario.detect, lambda: report(Status.FAIL))
        self.simulation.after(self.scenario.detect + self.scenario.leaf_repair, lambda: report(Status.PASS))

    def _next_rack_fault(self) -> None:
        mean = 365 * DAY / self.scenario.rack_faults_per_year
        self.simulation.after(self.random.expovariate(1 / mean), self._rack_fault)

    def _rack_fault(self) -> None:
        """A rack loses power until it is repaired."""
        self._next_rack_fault()
        rack = (
            self.simulation.fleet.nodes[self.random.choice(self.simulation.members)].rack
            if self.simulation.members
            else ""
        )
        if rack in self.dark_racks or not rack:
            return
        self.by_cause[rates.RACK_CAUSE] += 1
        self.dark_racks.add(rack)
        self.simulation.stop(Stop.UNPLANNED)
        nodes = [node for node in self.simulation.members if self.simulation.fleet.nodes[node].rack == rack]
        cause = Cause(rates.RACK_CAUSE, 0, rates.RACK_POWER)
        for node in nodes:
            self.broken.setdefault(node, (cause, Action.POWER_CYCLE))

        def report() -> None:
            for node in nodes:
                self._report(node, rates.RACK_POWER, Action.POWER_CYCLE)

        self.simulation.block("search", self.scenario.detect, report)
        self.simulation.after(self.scenario.rack_repair, lambda: self.dark_racks.discard(rack))

    def _next_false_positive(self, check: str, per_day: float) -> None:
        mean = DAY / (per_day * self.scenario.job_nodes)
        wait = self.accusations.expovariate(1 / mean)
        self.simulation.after(wait, lambda: self._false_positive(check, per_day))

    def _false_positive(self, check: str, per_day: float) -> None:
        self._next_false_positive(check, per_day)
        number, place = self.accusations.random(), self.accusations.random()
        members = self.simulation.members
        node = members[int(place * len(members))] if members else ""
        if not node or node in self.broken:
            return
        checks = sorted(self.scenario.limits.trusted - {rates.OUTLIER})
        named = check or checks[int(number * len(checks))]
        is_in_shadow = bool(self.simulation.fleet.breakers.in_shadow(named))
        verdict = self._report(node, named, Action.RESET_GPU, is_fatal=False)
        if is_in_shadow:
            # An active test judges it when the node is idle.
            wait = self.scenario.maintenance_every
            self.simulation.after(
                wait,
                lambda: self.simulation.append(e.Judged(self.simulation.now, node, named, verdict, False)),
            )
