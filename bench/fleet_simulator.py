"""Measure the fleet simulator and the node controller, on one core and without any node.

The simulation is of 16,384 GPUs for 54 days. The controller's part: events of 5,000 nodes that change
something and that do not, faults of many nodes decided at once with the breakers open wide, and a log
replayed. The walk checks the promises of the lifecycle at each step and stops at the first broken one;
`--walk 1000000` takes long.

    python bench/fleet_simulator.py [--gpus 16384] [--days 54] [--nodes 5000] [--faults 750] [--walk 20000]
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neocloud.fleet.control.controller import Fleet, decide
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event, Phase, Status
from neocloud.fleet.policy.actions import Suite
from neocloud.fleet.policy.limits import DAY, Limits
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.result import summarize
from neocloud.fleet.simulator.scenario import Scenario
from tests.fast.fleet.control.walk import Walk

CHECK = "gpu-lost"
WIDE = Limits(
    trusted=frozenset({CHECK}),
    cluster_drains=1,
    cluster_out=1,
    rack_drains=10**6,
    leaf_drains=10**6,
    check_minimum=10**6,
)


def timed(do: Callable[[], object]) -> tuple[float, float]:
    """Return seconds by the clock and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    do()
    return time.perf_counter() - wall, time.process_time() - cpu


def show(what: str, count: float, times: tuple[float, float]) -> None:
    wall, cpu = times
    print(
        f"{what:45} {count:10,.0f} in {wall:7.2f} s ({cpu:.2f} s of CPU): {count / cpu:,.0f} per CPU second"
    )


def simulate(gpus: int, days: float) -> None:
    simulation = Simulation(Scenario(gpus=gpus, days=days), keeps_log=True)
    times = timed(simulation.run)
    show(f"events of {gpus:,} GPUs for {days:g} days, simulated", simulation.events, times)
    found = summarize(simulation)
    print(f"  simulated: {found.interruptions} interruptions, ETTR {100 * found.ettr:.2f}%")
    log = simulation.log or []
    fleet = simulation.fleet
    show(
        "events of that log, replayed", len(log), timed(lambda: Fleet.replay(fleet.limits, fleet.wanted, log))
    )


def start_of(nodes: int) -> Iterator[Event]:
    for number in range(nodes):
        name = f"n{number}"
        yield e.Registered(0, name, f"r{number // 4}", f"l{number // 16}", Phase.DRAINED)
        yield e.Booted(1, name, "b")
        yield e.VerificationStarted(2, name, Suite.FULL, 1, 99)
        yield e.VerificationEnded(3, name, 1, passed=True, valid_until=7 * DAY)
        if number < nodes * 0.9:
            yield e.SpareReserved(4, name)
            yield e.Attached(5, name)
            yield e.Returned(6, name)
            yield e.Assigned(7, name, "tenant", f"j{number // 64}")


def verdict(at: float, node: int, status: Status) -> e.Verdict:
    sample = (status, "b", "s", "t", "bench", "1")
    return e.Verdict(at, f"n{node}", f"v{node}-{at}", CHECK, *sample, is_fatal=True)


def control(nodes: int, faults: int) -> None:
    fleet = Fleet(replace(WIDE), int(nodes * 0.9))
    for event in start_of(nodes):
        fleet.apply(event)
    passes = [verdict(100.0 + turn, node, Status.PASS) for turn in range(4) for node in range(nodes)]
    show(
        f"verdicts of {nodes:,} nodes, one after the other", len(passes), timed(lambda: apply(fleet, passes))
    )
    show("the same again, as duplicates", len(passes), timed(lambda: apply(fleet, passes)))
    failures = [verdict(200.0, node, Status.FAIL) for node in range(faults)]
    apply(fleet, failures)
    plans = []
    times = timed(lambda: plans.append(decide(fleet, 201.0)))
    drains = sum(isinstance(each.event, e.DrainRequested) for each in plans[0].decisions)
    show("drains decided at once", drains, times)
    each = timed(lambda: one_by_one(fleet, faults, faults + 100))
    show("events that each had a decision of their own", 100, each)


def apply(fleet: Fleet, events: list[e.Verdict]) -> None:
    for event in events:
        fleet.apply(event)


def one_by_one(fleet: Fleet, start: int, end: int) -> None:
    for node in range(start, end):
        for decision in decide(fleet, 300.0 + node).decisions:
            fleet.apply(decision.event)
        fleet.apply(verdict(300.0 + node, node, Status.FAIL))


def walk(steps: int) -> None:
    walked = Walk(seed=1)

    def run() -> None:
        for _ in range(steps):
            walked.step()

    show("steps of a random walk, each checked", steps, timed(run))
    walked.check_replay()
    print(
        f"  {len(walked.log):,} events, {walked.drained_ever:,} drains, no promise broken; replay equals live"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=16_384)
    parser.add_argument("--days", type=float, default=54)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--faults", type=int, default=750)
    parser.add_argument("--walk", type=int, default=20_000)
    options = parser.parse_args()
    simulate(options.gpus, options.days)
    control(options.nodes, options.faults)
    walk(options.walk)


if __name__ == "__main__":
    main()
