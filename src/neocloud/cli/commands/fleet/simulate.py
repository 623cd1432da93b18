"""`neo fleet simulate`: the node controller on a virtual clock, with faults of published rates."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from neocloud.cli.commands.fleet.compare import (
    AgainstOption,
    CompareOption,
    FailOption,
    SeedsOption,
    compare_policies,
)
from neocloud.cli.lazy import Options, command_group, take
from neocloud.cli.output import Format, OutputOption, View, counted, fields_table, show
from neocloud.cli.progress import duration, stage
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.fleet.policy.limits import DAY
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.rates import OUTLIER
from neocloud.fleet.simulator.result import Result, summarize
from neocloud.fleet.simulator.scenario import Scenario

NODE = 8
NEVER = 1.1
"""A probability that nothing has."""
app = command_group()


def _number(
    default: float | None, least: float, most: float, help: str, kind: Any = float
) -> tuple[Any, float | None]:
    return Annotated[kind, typer.Option(min=least, max=most, help=help)], default


SCENARIO: Mapping[str, tuple[Any, Any]] = {
    "gpus": _number(16_384, NODE, 131_072, "GPUs of the job, 8 to a node.", int),
    "days": _number(54.0, 0.1, 3660, "Length of the simulated time."),
    "spares": _number(
        None, 0, 16_384, "Nodes beside those of the job; by the Poisson rule if left out.", int | None
    ),
    "seed": (Annotated[int, typer.Option(help="The same seed gives the same faults.")], 1),
    "rate": _number(1.0, 0.01, 100, "Faults, as a multiple of the Llama 3 405B run."),
    "lemons": _number(0.0, 0, 0.5, "Share of nodes with half of the faults, e.g. 0.05."),
    "lemon_triage": (
        Annotated[bool, typer.Option(help="Send nodes that fail again and again to repair.")],
        True,
    ),
    "rack_faults": _number(0.0, 0, 1000, "Racks that lose power, per year."),
    "recall": _number(0.9, 0, 1, "Share of faults that a check names; others are searched for."),
    "false_positives": _number(0.0001, 0, 1, "Wrong verdicts of trusted checks, per node and day."),
    "trust_outlier": (
        Annotated[
            bool,
            typer.Option("--trust-outlier", help="Let the outlier detector drain nodes without a record."),
        ],
        False,
    ),
    "save": _number(60.0, 0.1, 3600, "Seconds that a checkpoint takes."),
    "interval": _number(0.0, 0, 86_400, "Seconds between checkpoints; 0 for Daly's."),
    "restart": _number(120.0, 0, 86_400, "Seconds to start the job and load a checkpoint."),
    "repair_days": _number(7.0, 0.01, 365, "Days that a node is out for a new part."),
    "maintenance_minutes": _number(30.0, 0, 1440, "Length of the daily planned interruption; 0 for none."),
}
"""The options that make the scenario, each with its type and default."""


SAME_NAMES = (
    *("gpus", "days", "spares", "seed", "rate", "recall"),
    *("false_positives", "trust_outlier", "save", "restart"),
)
"""Options that are called as what they set."""


def _scenario(**given: Any) -> Scenario:
    if given["gpus"] % NODE:
        raise ClientError("INVALID_ARGUMENT", f"--gpus: {given['gpus']} is not a multiple of {NODE}.")
    scenario = Scenario(
        **{name: given[name] for name in SAME_NAMES},
        lemon_nodes=given["lemons"],
        rack_faults_per_year=given["rack_faults"],
        checkpoint_interval=given["interval"] or None,
        repair=given["repair_days"] * DAY,
        maintenance=given["maintenance_minutes"] * 60,
    )
    limits = scenario.limits
    if scenario.trust_outlier:
        limits = replace(limits, trusted=limits.trusted | {OUTLIER})
    if not given["lemon_triage"]:
        limits = replace(limits, lemon_probability=NEVER)
    return replace(scenario, limits=limits)


take(_scenario, SCENARIO)


@app.command()
def simulate(
    scenario: Annotated[Scenario, Options(_scenario)],
    compare: CompareOption = None,
    against: AgainstOption = None,
    seeds: SeedsOption = 10,
    fail_if_worse: FailOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Simulate one job on a fleet whose nodes fail: interruptions, useful time, spares, checkpoint interval.

    Nothing here is measured. The faults are random, with the rates of the Llama 3 405B run and with
    assumptions that --output json lists. States, decisions and breakers are those of the node controller.

    Examples:

      neo fleet simulate --gpus 1024
      neo fleet simulate --gpus 4096 --days 30 --spares 8 --lemons 0.05
      neo fleet simulate --save 10 --restart 60 --output json
      neo fleet simulate --gpus 2048 --compare limits.yaml --seeds 10
    """
    if compare or against:
        compare_policies(scenario, compare or [], against or [], seeds, output, fail_if_worse=fail_if_worse)
        return
    simulation = Simulation(scenario)
    title = f"Simulating {scenario.gpus:,} GPUs for {scenario.days:g} days"
    with stopped_by_signals(), stage(title) as show_detail:
        simulation.run(lambda share: show_detail(_tenths(share)))
    result = summarize(simulation)
    show(output, result.document(simulation), View(list(fields_table(_rows(simulation, result)).rows)))
    if output is Format.TABLE:
        echo("\nAll of this is simulated. The inputs and their sources: --output json.")


def _tenths(share: float) -> str:
    return f"{int(share * 10) * 10}%"


def _rows(simulation: Simulation, result: Result) -> Iterator[tuple[str, str]]:
    scenario = simulation.scenario
    yield "Evidence", "simulated"
    yield "Job", f"{scenario.gpus:,} GPUs on {scenario.job_nodes:,} nodes, {scenario.days:g} days"
    yield "Unplanned interruptions", f"{result.interruptions:,} ({result.relapses} by faults that came back)"
    for cause, count in list(result.by_cause.items())[:5]:
        yield f"  {cause}", f"{count:,}"
    yield "Planned interruptions", f"{result.planned_interruptions:,}"
    yield "Time to interruption", f"{result.mtti_hours:.1f} h" if result.mtti_hours else "none occurred"
    if result.recovery_seconds is not None:
        yield "Time to recover", duration(result.recovery_seconds)
    yield "ETTR", _share(result.ettr)
    if result.ettr_closed_form is not None and result.ettr_first_order is not None:
        forms = f"{_share(result.ettr_closed_form)}; first order {_share(result.ettr_first_order)}"
        yield "ETTR by closed form", forms
    yield "Goodput", _share(result.goodput)
    yield "Drains without a fault", f"{result.false_drains:,}, {_share(result.false_drain_loss)} of the time"
    if result.lemons or result.lemons_sent_to_triage:
        right = f"{result.lemons_among_them} of them lemons ({result.lemons} in all)"
        yield "Sent to triage as lemons", f"{result.lemons_sent_to_triage}, {right}"
    waited = duration(result.waiting_for_spares) if result.waiting_for_spares else "not at all"
    yield "Waited for spares", f"{waited}, with {result.spares} spares"
    yield "Nodes out", f"{result.spares_needed_p99} (P99), {result.spares_needed_most} at most"
    yield "Spares by the Poisson rule", f"{result.spares_by_rule} (P99)"
    yield "Checkpoint every", duration(result.checkpoint_interval)
    if result.young_interval and result.daly_interval:
        yield "  best by Young, Daly", f"{duration(result.young_interval)}, {duration(result.daly_interval)}"
    yield "  best in these runs", f"{duration(result.best_interval)}, ETTR {_share(result.best_ettr)}"
    yield "Breakers tripped", counted(result.breaker_trips, "time")


def _share(value: float) -> str:
    return f"{100 * value:.2f}%"
