"""The result of a simulation, with the closed forms beside it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from neocloud.fleet.policy.limits import DAY, HOUR
from neocloud.fleet.simulator import checkpoints
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.job import Stop
from neocloud.fleet.simulator.rates import CAUSES, LLAMA_GPU_HOURS, SOURCES

SHARE_OF_TIME = 0.99


@dataclass(frozen=True)
class Result:
    """Everything in it is simulated; times are in seconds unless the name says otherwise."""

    interruptions: int
    relapses: int
    by_cause: Mapping[str, int]
    planned_interruptions: int
    false_drains: int
    false_drain_interruptions: int
    lemons: int
    lemons_sent_to_triage: int
    lemons_among_them: int
    """Number of lemons among them; the others had bad luck."""
    mtti_hours: float | None
    """Mean time to interruption, planned ones not counted; None without any."""
    recovery_seconds: float | None
    """Mean time without the job after an interruption, planned ones not counted."""
    checkpoint_interval: float
    ettr: float
    """Useful time as a share of the time outside planned maintenance."""
    ettr_closed_form: float | None
    ettr_first_order: float | None
    goodput: float
    """Useful time as a share of all time; slow nodes are not simulated."""
    false_drain_loss: float
    """Share of all time that the job was down for drains of nodes without a fault."""
    waiting_for_spares: float
    spares: int
    spares_by_rule: int
    spares_needed_p99: int
    """Number of nodes that were out at the same time in 99% of the time."""
    spares_needed_most: int
    young_interval: float | None
    daly_interval: float | None
    best_interval: float
    """The interval of a grid that kept most work of the simulated runs."""
    best_ettr: float
    breaker_trips: int
    open_breakers: tuple[str, ...]
    decisions: Mapping[str, int]
    events: int

    def document(self, simulation: Simulation) -> dict[str, object]:
        """Return the result as JSON, with what it was made from."""
        scenario = simulation.scenario
        numbers = {
            name: value
            for name, value in vars(scenario).items()
            if name != "policy" and (isinstance(value, int | float | str) or value is None)
        }
        sources = [{"input": name, "kind": kind, "source": text} for name, kind, text in SOURCES]
        return {"evidence": "simulated", "scenario": numbers, "result": asdict(self), "inputs": sources}


def expected_mtti(rate: float, gpus: int) -> float:
    """Return the seconds between interruptions at a multiple of the Llama 3 rate."""
    return LLAMA_GPU_HOURS * HOUR / (sum(cause.count for cause in CAUSES) * rate * gpus)


def summarize(simulation: Simulation) -> Result:
    scenario, job = simulation.scenario, simulation.job
    wall = scenario.days * DAY
    unplanned = job.stops[Stop.UNPLANNED]
    surprises = unplanned + job.stops[Stop.DRAIN] + job.stops[Stop.FALSE_DRAIN]
    planned = job.down[Stop.PLANNED]
    available = wall - planned
    expected = expected_mtti(scenario.rate, scenario.gpus)
    interval = scenario.checkpoint_interval or checkpoints.daly(scenario.save, expected)
    useful = checkpoints.useful_seconds(job.runs, interval, scenario.save)
    mtti = available / surprises if surprises else None
    down = sum(seconds for reason, seconds in job.down.items() if reason is not Stop.PLANNED)
    recovery = down / surprises if surprises else None
    best = checkpoints.best_interval(job.runs, scenario.save, interval)
    return Result(
        interruptions=unplanned,
        relapses=simulation.faults.relapses,
        by_cause=dict(simulation.faults.by_cause.most_common()),
        planned_interruptions=job.stops[Stop.PLANNED],
        false_drains=simulation.false_drains,
        false_drain_interruptions=job.stops[Stop.FALSE_DRAIN],
        lemons=len(simulation.faults.lemons),
        lemons_sent_to_triage=len(simulation.sent_as_lemons),
        lemons_among_them=sum(simulation.sent_as_lemons),
        mtti_hours=mtti / HOUR if mtti else None,
        recovery_seconds=recovery,
        checkpoint_interval=interval,
        ettr=useful / available,
        ettr_closed_form=(
            checkpoints.expected_ettr(interval, scenario.save, mtti, _single(recovery, mtti))
            if mtti and recovery is not None
            else None
        ),
        ettr_first_order=(
            checkpoints.first_order_ettr(interval, scenario.save, mtti, recovery)
            if mtti and recovery is not None
            else None
        ),
        goodput=useful / wall,
        false_drain_loss=job.down[Stop.FALSE_DRAIN] / wall,
        waiting_for_spares=simulation.short_seconds,
        spares=scenario.spare_nodes,
        spares_by_rule=scenario.spares_by_rule(),
        spares_needed_p99=_quantile(simulation.out_seconds, SHARE_OF_TIME),
        spares_needed_most=max(simulation.out_seconds, default=0),
        young_interval=checkpoints.young(scenario.save, mtti) if mtti else None,
        daly_interval=checkpoints.daly(scenario.save, mtti) if mtti else None,
        best_interval=best,
        best_ettr=checkpoints.useful_seconds(job.runs, best, scenario.save) / available,
        breaker_trips=simulation.breaker_trips,
        open_breakers=tuple(" ".join(key).strip() for key in simulation.fleet.breakers.trips),
        decisions=dict(simulation.decisions),
        events=simulation.events,
    )


def _single(recovery: float, mtti: float) -> float:
    """Return the time that one recovery takes, from the mean per interruption.

    An interruption during a recovery starts it again and adds nothing to the mean time of a whole recovery
    but the time that had passed: the mean per interruption is M (1 - exp(-R/M)).
    """
    return -mtti * math.log1p(-min(recovery / mtti, 0.999))


def _quantile(seconds: Mapping[int, float], share: float) -> int:
    """Return the smallest number of nodes that was enough in this share of the time."""
    left = share * math.fsum(seconds.values())
    for count in sorted(seconds):
        left -= seconds[count]
        if left <= 0:
            return count
    return max(seconds, default=0)
